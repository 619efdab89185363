//! What a device is made of.

pub(super) mod attaching;
pub(super) mod backing;
pub(super) mod compactor;
pub(super) mod pressure;
pub(super) mod recompressor;

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use spillway_core::size::human;
use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering};
use spillway_core::{Budget, Env, Error, Kind, Works};

use super::codec::codecs::Codecs;
use super::codec::decoders::Decoders;
use super::codec::streams::Streams;
use super::config::Settings;
use super::limit::WritebackLimit;
use super::page::PAGE;
use super::pool::Pool;
use super::pool::cell::SlotIndex;
use super::pool::pages::Pages;
use super::slots::mark::{Away, SECONDS_MAX};
use super::slots::table::{Named, PAGE_SLOTS, SlotTable};
use crate::decisions::Decisions;
use crate::options::Live;
use crate::writeback::{Meter, Writeback};
use attaching::Attaching;
use backing::Attached;
use compactor::Compactor;
use pressure::Pressure;
use recompressor::Recompressor;

/// What is counted; the numbers are indices into [`Core::counters`].
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Count {
    PagesRead,
    PagesWritten,
    FailedReads,
    FailedWrites,
    NotifyFree,
    PagesCompacted,
    HugePagesSince,
    /// Pages read from the spill file, and written to it.
    BackingReads,
    BackingWrites,
    BroughtBack,
    /// Pauses of writers, and their microseconds.
    Pauses,
    PausedMicros,
    /// Pages that recompression has made smaller.
    Recompressed,
}

pub(super) const COUNTS: usize = Count::Recompressed as usize + 1;

/// A compressed RAM device.
pub struct Zram {
    pub(super) core: Arc<Core>,
}

/// The state that requests, the compactor and the attributes share.
pub(super) struct Core {
    pub(super) env: Arc<dyn Env>,
    /// `mem_limit`'s share of the process's budget: pool and table.
    pub(super) budget: Arc<Budget>,
    /// The process's budget, for what a device takes however little it holds.
    pub(super) fixed: Arc<Budget>,
    pub(super) size: AtomicU64,
    pub(super) pages: Pages,
    pub(super) pool: Pool,
    pub(super) table: SlotTable,
    pub(super) streams: Streams,
    pub(super) codecs: Codecs,
    pub(super) decoders: Decoders,
    pub(super) recompressor: Recompressor,
    /// Shared with the background task, which outlives the device by one look.
    pub(super) compactor: Arc<Compactor>,
    pub(super) counters: Counters<COUNTS>,
    pub(super) settings: Settings,
    pub(super) compressed_writeback: Live<bool>,
    pub(super) writeback_limit: WritebackLimit,
    pub(super) backing: Attached,
    /// What is known of spilling under pressure of memory: of each spill file in turn, as is the speed that is measured.
    pub(super) pressure: Arc<Pressure>,
    pub(super) decisions: Decisions,
    pub(super) meter: Arc<Meter>,
    /// Spills where memory is short. Set when the device is made.
    pub(super) spiller: OnceLock<Writeback<Core>>,
    /// How spill files are opened. Set when the device is opened; one that never is has none.
    pub(super) attaching: OnceLock<Attaching>,
    /// Resets that have begun.
    pub(super) resets: AtomicU64,
    /// Whether a reset runs. Held while disksize or the algorithm is set.
    pub(super) resetting: Mutex<bool>,
    /// The device ends: no command goes on.
    pub(super) ending: AtomicBool,
}

impl Core {
    /// For a command that takes long, between its slices: [`Kind::ShuttingDown`] once the device ends.
    pub(super) fn go_on(&self) -> Result<(), Kind> {
        if self.ending.load(Ordering::Relaxed) { Err(Kind::ShuttingDown) } else { Ok(()) }
    }

    /// The same for one that looks at what the device holds: it is also over once a reset has begun after `resets` of them, for what the
    /// device holds after that is not what was meant.
    pub(super) fn go_on_since(&self, resets: u64) -> Result<(), Kind> {
        self.go_on()?;
        if self.resets() == resets { Ok(()) } else { Err(Kind::ShuttingDown) }
    }

    /// Resets that have begun.
    pub(super) fn resets(&self) -> u64 {
        self.resets.load(Ordering::Acquire)
    }

    /// Where its long work is registered.
    pub(super) fn works(&self) -> Works {
        self.attaching.get().map(|attaching| attaching.context().works.clone()).unwrap_or_default()
    }

    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Bytes that the pool takes: all that is charged or borrowed but the table.
    pub(super) fn pool_bytes(&self) -> u64 {
        (self.budget.used() + self.pages.borrowed()).saturating_sub(self.table.charged_bytes())
    }

    /// Asserts that table, pool and budget agree. While no request is at work on another thread.
    pub(super) fn verify(&self) {
        if self.backing.get().is_some_and(|backing| backing.is_at_work()) {
            // What was picked, and what was written and is not named yet, is known to tasks only.
            return;
        }
        let Named { objects, spilled, copies, charged, .. } = self.table.verify();
        let pool_bytes = self.pool.verify(&self.pages, objects.into_iter());
        let taken = self.budget.used() + self.pages.borrowed();
        assert_eq!(taken, charged + pool_bytes + self.pages.warm_bytes(), "bytes charged and in use");
        match self.backing.get() {
            Some(backing) => {
                let record = |(slot, away): (SlotIndex, Away)| self.record(slot, away);
                backing.store.verify(spilled.into_iter().map(record), copies.into_iter().map(record));
            }
            None => {
                assert!(spilled.is_empty() && copies.is_empty(), "nothing is spilled without a spill file")
            }
        }
    }

    /// The slots from `from` on that lie in one page, of the first that has some in use.
    pub(super) fn next_slots(&self, from: u64) -> Option<Range<u64>> {
        self.table.next_slots(from..self.size() / PAGE as u64)
    }

    pub(super) fn count(&self, what: Count, by: u64) {
        self.counters.add(what as usize, by);
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counters.sum(what as usize)
    }

    /// Seconds for the access time of a slot: 24 bits, 194 days.
    pub(super) fn seconds(&self) -> u32 {
        (self.env.coarse_now().as_secs() & SECONDS_MAX) as u32
    }

    /// Locks what a reset changes, so that `what` can be set; [`Kind::Busy`] while one runs.
    pub(super) fn lock_setup(&self, what: &str) -> Result<MutexGuard<'_, bool>, Error> {
        let resetting = self.resetting.lock();
        if *resetting { Err(busy(what, "is being reset: try again after that")) } else { Ok(resetting) }
    }

    /// The same, of what can be set only while the device has no size.
    pub(super) fn lock_blank(&self, what: &str) -> Result<MutexGuard<'_, bool>, Error> {
        let setup = self.lock_setup(what)?;
        if self.size() > 0 { Err(busy(what, "has a size: reset it first")) } else { Ok(setup) }
    }
}

impl Core {
    /// Makes the device `bytes` long, rounded up; [`Kind::Busy`] where it is longer.
    pub(super) fn resize(&self, bytes: u64) -> Result<(), Error> {
        let _setup = self.lock_setup("disksize")?;
        let (size, has) = (bytes.next_multiple_of(PAGE as u64), self.size());
        if size < has {
            let text = format!(
                "disksize {bytes} is less than {has}, and a device in use only grows: reset it first"
            );
            return Err(Error::new(Kind::Busy, text));
        }
        if size == has {
            return Ok(());
        }
        self.table.resize(size / PAGE as u64).map_err(|kind| no_room_for(size, kind))?;
        self.size.store(size, Ordering::Release);
        Ok(())
    }
}

fn no_room_for(size: u64, kind: Kind) -> Error {
    let (size, table) = (human(size), human(size / PAGE as u64 / PAGE_SLOTS / 8));
    Error::new(
        kind,
        format!("disksize {size} takes a table of {table} at once, and --memory has less left: give more"),
    )
}

fn busy(what: &str, why: &str) -> Error {
    Error::new(Kind::Busy, format!("{what} cannot be changed while the device {why}"))
}
