//! The commands that take long: done in slices, to their end or the device's, whether anybody waits for it or not. What only computes
//! does so on a compute thread.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Answer, Budget, Error, Job, Kind, Place, mutant};
use spillway_policy::compaction::Compaction;

use super::codec::CodecIndex;
use super::codec::encoder::Choice;
use super::config::Config;
use super::control::scan;
use super::device::{Core, Zram};
use super::mover::deferring::Which;
use super::mover::recompress::{self, RecompressOrder};
use super::mover::slices::Caller;
use super::page::PAGE;
use super::spill::writeback::{self, Why};
use super::work::Slice;

/// Moves objects together and returns the memory.
pub(super) fn compact(zram: &Zram) -> Answer<Result<(), Error>> {
    run_on_pages(
        zram,
        Place::Compute,
        |_| Ok(()),
        |core, ()| async move {
            core.make_pass(Compaction::Pack, Caller::Command).await;
            core.go_on().map_err(ended)
        },
    )
}

/// Writes pages back.
pub(super) fn write_back(zram: &Zram, text: &str) -> Answer<Result<(), Error>> {
    let resets = zram.core.resets();
    let parse = |slots| zram.core.backing().and_then(|_| scan::scans(text, slots));
    let write = move |core, scans| writeback::run(core, resets, scans, Why::Command);
    run_on_pages(zram, Place::Background, parse, write)
}

/// Compresses pages again.
pub(super) fn recompress(zram: &Zram, text: &str) -> Answer<Result<(), Error>> {
    run_on_pages(zram, Place::Compute, |_| RecompressOrder::parse(&zram.core, text), recompress::run)
}

/// Marks pages as idle.
pub(super) fn mark_idle(zram: &Zram, text: &str) -> Answer<Result<(), Error>> {
    let resets = zram.core.resets();
    run_on_pages(
        zram,
        Place::Compute,
        |_| scan::idle_age(text),
        move |core, age| async move { core.mark_idle(resets, age).await },
    )
}

/// Runs a command that goes by what pages compress to, with what `parse` makes of its words, of a device with so many slots.
fn run_on_pages<T: Send + 'static, F: Future<Output = Result<(), Error>> + 'static>(
    zram: &Zram,
    place: Place,
    parse: impl FnOnce(u64) -> Result<T, Error>,
    command: impl FnOnce(Arc<Core>, T) -> F + Send + 'static,
) -> Answer<Result<(), Error>> {
    let parsed = match zram.core.size() / PAGE as u64 {
        0 => Err(Error::invalid("there is nothing in it: set disksize first")),
        slots => parse(slots),
    };
    match parsed {
        Ok(parsed) => run(&zram.core, place, |core| async move {
            core.compress_deferred(Which::All, Caller::Command).await;
            core.go_on().map_err(ended)?;
            command(core, parsed).await
        }),
        Err(error) => Answer::Done(Err(error)),
    }
}

/// Gives the device its size, or a larger one.
pub(super) fn set_size(zram: &Zram, bytes: u64) -> Answer<Result<(), Error>> {
    let attaching = zram.core.attaching.get();
    let turn = attaching.map(|attaching| attaching.try_turn());
    if !matches!(turn, Some(None)) || mutant::on("zram: set a size while a spill file is attached") {
        return Answer::Done(zram.core.resize(bytes));
    }
    run(&zram.core, Place::Background, move |core| async move { core.resize_with_file(bytes).await })
}

/// Has the file at a path be the spill file.
pub(super) fn attach(zram: &Zram, path: String) -> Answer<Result<(), Error>> {
    run(&zram.core, Place::Background, move |core| async move { core.attach(path).await })
}

/// Drops everything. The caller makes sure that no client is connected.
pub(super) fn reset(zram: &Zram) -> Answer<Result<(), Error>> {
    run(&zram.core, Place::Background, |core| async move { core.reset().await })
}

/// Runs `command` on a thread of that kind.
fn run<F>(
    core: &Arc<Core>,
    place: Place,
    command: impl FnOnce(Arc<Core>) -> F + Send + 'static,
) -> Answer<Result<(), Error>>
where
    F: Future<Output = Result<(), Error>> + 'static,
{
    let own = core.clone();
    let ended = Job::spawn(&*core.env, place, move || command(own));
    Answer::pending(async move {
        let dropped = || Err(Error::new(Kind::ShuttingDown, "the server ends"));
        ended.await.unwrap_or_else(dropped)
    })
}

/// What a command answers that the end of the device, or a reset, has ended.
fn ended(kind: Kind) -> Error {
    Error::new(kind, "the device ends, or is reset")
}

impl Core {
    /// [`Kind::Busy`] while another reset runs. Dropped before its end, or where the device ends, it leaves one that stays without a size.
    pub(super) async fn reset(&self) -> Result<(), Error> {
        self.begin_reset()?;
        // A run of write-back or recompression ends as soon as it finds no size.
        let backing = self.backing.get();
        let writing_back = match &backing {
            Some(backing) => Some(backing.turn.hold().await),
            None => None,
        };
        let _recompressing = self.recompressor.turn.hold().await;
        self.free_all().await.map_err(ended)?;
        drop(writing_back);
        self.detach().await;
        // Who has just taken a clean copy from a page gives its room back a moment later, and is at work until then.
        if let Some(backing) = &backing {
            backing.rest().await;
        }
        let mut resetting = self.resetting.lock();
        self.table.resize(0).expect("a table without slots takes nothing");
        self.pages.cool();
        self.streams.set_limit(Config::default_streams());
        self.counters.clear();
        self.backing.get().iter().for_each(|backing| backing.reset());
        self.budget.set_limit(Budget::UNLIMITED);
        self.budget.reset_peak();
        *resetting = false;
        // Last: what the device held is room for it.
        self.codecs.clear_secondaries();
        self.choose(CodecIndex::PRIMARY, Choice::default())
    }

    /// Marks what was not accessed for `age` seconds, in slices, of a device that was reset so many times.
    async fn mark_idle(&self, resets: u64, age: u32) -> Result<(), Error> {
        let now = self.seconds();
        let mark = |slots: Range<u64>, slice: &mut Slice| {
            slice.count(self.table.mark_idle(slots.clone(), age, now));
            Ok(slots.end)
        };
        self.walk(|| self.go_on_since(resets), mark).await.map_err(ended)
    }

    fn begin_reset(&self) -> Result<(), Error> {
        let mut resetting = self.resetting.lock();
        if *resetting {
            return Err(Error::new(Kind::Busy, "the device is being reset already"));
        }
        *resetting = true;
        self.size.store(0, Ordering::Release);
        self.resets.fetch_add(1, Ordering::Release);
        Ok(())
    }
}
