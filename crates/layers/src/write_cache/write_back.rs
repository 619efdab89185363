//! Copies to the origin: the sweep tells which blocks, each run is one write there, many are under way, and those that have been
//! written at the same time share a flush of the origin.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};
use spillway_core::{IoBuf, Kind, LocalFuture, Op, Place, Request, mutant};

use super::block::Victim;
use super::cache::{Core, Opened};
use super::counts::Count;
use super::index::LOOKS;
use super::pieces::Part;
use super::sweep::Next;

/// Bytes of one copy, where so many follow each other.
const COPY_BYTES: u64 = 1 << 20;

/// Copies under way, however small.
const COPIES_MAX: usize = 64;

/// Longest rest of the copier before it looks again.
const REST_MAX: Duration = Duration::from_millis(100);

/// Ages are looked at this often in `max_age`, and blocks are too old from 15 of 16 parts of it on, as in the kernel.
const AGE_PARTS: u32 = 16;

/// Victims of a copy; whatever happens, the index learns how it ended.
pub(super) struct Batch {
    core: Arc<Core>,
    victims: Vec<Victim>,
    pub(super) durable: bool,
}

impl Batch {
    pub(super) fn new(core: Arc<Core>, victims: Vec<Victim>) -> Self {
        Self { core, victims, durable: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.victims.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.victims.len()
    }

    pub(super) fn add(&mut self, victims: Vec<Victim>) {
        self.victims.extend(victims);
    }

    /// Tells the index in slices that all of it is durable on the origin.
    pub(super) async fn end_durable(mut self) {
        self.durable = true;
        while self.victims.len() > LOOKS {
            let some = self.victims.split_off(self.victims.len() - LOOKS);
            self.core.with(|opened| opened.index.end_write_back(&some, true));
            self.core.changes.step();
            self.core.give_way().await;
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if !self.victims.is_empty() {
            self.core.with(|opened| opened.index.end_write_back(&self.victims, self.durable));
            self.core.wake();
            self.core.keep_in_background();
        }
    }
}

/// A write to the origin whose time is measured.
pub(super) struct Writing {
    core: Arc<Core>,
    bytes: u64,
}

impl Writing {
    pub(super) fn new(core: Arc<Core>, bytes: u64) -> Self {
        core.pace.lock().begin(core.env.now());
        Self { core, bytes }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.core.pace.lock().end(self.core.env.now(), self.bytes);
    }
}

/// What the copier is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Nothing.
    Rest,
    /// Copy what is too old.
    Aged(u64),
    /// Copy.
    Some,
    /// Copy everything, and commit what cannot be copied before.
    All,
}

impl Core {
    /// Begins to copy where a watermark or an option says so.
    pub(super) fn copy_if_due(self: &Arc<Self>) {
        let high = self.settings.high_watermark.get();
        let cleaner = self.settings.cleaner.get() == 1;
        let due = self.with(|opened| {
            opened.index.used() > 0
                && (opened.index.free_soon() <= opened.free_at(high) || cleaner || opened.drain.is_running())
        });
        if due {
            self.copy();
        }
    }

    /// Something has changed: whoever waits for room may get it by a copy now.
    pub(super) fn copy_for_waiters(self: &Arc<Self>) {
        if self.room.waiting() > 0 {
            self.copy();
        }
    }

    /// Begins to copy, if that is not being done.
    pub(super) fn copy(self: &Arc<Self>) {
        if self.copying.queue() {
            let core = self.clone();
            self.env.spawn(Place::Background, Box::new(move || Box::pin(core.copy_down())));
        }
    }

    /// Copies until nothing is wished for, or nothing can be copied before something changes.
    async fn copy_down(self: Arc<Self>) {
        let mut copies = FuturesUnordered::new();
        loop {
            let (seen, wish) = (self.changes.current(), self.wish());
            let more = self.start_copy(wish, &mut copies).await;
            // Somebody may begin to wait, which changes the wish and nothing else.
            let has_news = || {
                let now = self.wish();
                now != Wish::Rest && (now != wish || self.changes.current() != seen)
            };
            let ended = match more {
                true => copies.next().now_or_never(),
                false => Some(copies.next().await),
            };
            if let Some(Some(Err(kind))) = ended {
                self.fail("copying to the origin", kind);
            }
            // It ends before its last look: a change that comes later begins another run, or is seen here.
            let idle = matches!(ended, Some(None)) && !more;
            if idle && !self.copying.again() && !(has_news() && self.copying.queue()) {
                return;
            }
        }
    }

    /// Starts one copy if one is wished for; false if there is to be no other before something changes.
    async fn start_copy(
        self: &Arc<Self>,
        wish: Wish,
        copies: &mut FuturesUnordered<LocalFuture<Result<(), Kind>>>,
    ) -> bool {
        let room = self.blocks_at_a_time();
        let under_way = self.with(|opened| opened.index.copying());
        if wish == Wish::Rest || copies.len() >= COPIES_MAX || under_way >= room {
            return false;
        }
        if wish == Wish::Some && copies.is_empty() && self.rest().await {
            return true;
        }
        let before = if let Wish::Aged(before) = wish { before } else { u64::MAX };
        let len_max = (COPY_BYTES / self.block_bytes()).min(u64::from(room - under_way)) as u32;
        let push = |victims| {
            let core = self.clone();
            copies.push(Box::pin(async move { core.copy_out(victims).await }));
        };
        if wish == Wish::Some {
            let low = self.settings.low_watermark.get();
            let islands = self.with(|opened| {
                let missing = opened.free_at(low).saturating_sub(opened.index.free_soon());
                opened.index.take_island((COPY_BYTES / self.block_bytes()) as u32, missing.min(len_max))
            });
            if !islands.is_empty() {
                islands.into_iter().for_each(push);
                return true;
            }
        }
        match self.with(|opened| opened.index.take_next(len_max.max(1), before)) {
            Next::Victims(victims) => {
                push(victims);
                true
            }
            Next::Later => {
                self.env.sleep(Duration::ZERO).await;
                true
            }
            Next::Nothing { skipped } => {
                if let Wish::Aged(before) = wish {
                    self.with(|opened| opened.end_aged(before, skipped));
                }
                if wish == Wish::All && copies.is_empty() && self.with(|opened| opened.index.has_fresh()) {
                    self.want_fresh();
                }
                false
            }
        }
    }

    /// Blocks that may be under way.
    fn blocks_at_a_time(&self) -> u32 {
        let jobs = match self.settings.writeback_jobs.get() {
            0 => u64::MAX,
            jobs => jobs,
        };
        let bytes = self.pace.lock().ahead().min(self.workspaces.copies.bytes() as u64);
        jobs.min(bytes / self.block_bytes()).max(1) as u32
    }

    /// Rests for a while where the origin was written to directly a moment ago and there is still room; whether it did.
    async fn rest(&self) -> bool {
        let pause = Duration::from_millis(self.settings.pause_writeback.get());
        let full = self.with(|opened| opened.index.free.count() == 0);
        let rest = self.pace.lock().rest(self.env.coarse_now(), pause);
        if full || rest.is_zero() {
            return false;
        }
        self.env.sleep(rest.min(REST_MAX)).await;
        true
    }

    fn wish(&self) -> Wish {
        let low = self.settings.low_watermark.get();
        let cleaner = self.settings.cleaner.get() == 1;
        let (waiting, failed) = (self.room.waiting() > 0, self.failure.check().is_err());
        self.with(|opened| {
            let index = &opened.index;
            if failed || index.used() == 0 {
                return Wish::Rest;
            }
            // Whoever waits gets the blocks that are about to be free; without any, some have to be made so.
            let starved = waiting && index.free_soon() == 0;
            if opened.drain.is_running() || starved {
                return Wish::All;
            }
            if cleaner || index.free_soon() < opened.free_at(low) {
                return Wish::Some;
            }
            opened.aged.map_or(Wish::Rest, Wish::Aged)
        })
    }

    /// One copy, from the cache to entries that are to be cleared.
    async fn copy_out(self: &Arc<Self>, victims: Vec<Victim>) -> Result<(), Kind> {
        let mut batch = Batch::new(self.clone(), victims);
        let bytes = self.gather(&batch.victims).await?;
        let at = u64::from(batch.victims[0].origin) * self.block_bytes();
        let writing = Writing::new(self.clone(), bytes.len() as u64);
        let fua = self.settings.fua;
        let write = Request::write(at, bytes);
        self.origin.submit(if fua { write.with_fua() } else { write }).await.result?;
        drop(writing);
        if !fua && !mutant::on("write_cache: free before the origin is durable") {
            self.flush_origin().await?;
        }
        self.counts.add(Count::Copies, 1);
        self.counts.add(Count::Copied, batch.victims.len() as u32);
        batch.durable = true;
        Ok(())
    }

    /// The contents of the victims, in their order; consecutive blocks of the cache are one read.
    async fn gather(&self, victims: &[Victim]) -> Result<IoBuf, Kind> {
        let block = self.block_bytes();
        let runs = victims.chunk_by(|one, next| one.index + 1 == next.index);
        let part = |run: &[Victim]| Part {
            device: &self.cache,
            at: self.cache_offset(run[0].index),
            len: run.len() * block as usize,
        };
        let parts: Vec<Part> = runs.map(part).collect();
        let len = victims.len() * block as usize;
        let whole = match mutant::on("write_cache: copy in memory that nobody counts") {
            true => IoBuf::new(len),
            false => self.workspaces.copies.take(len).await,
        };
        let (results, whole) = self.move_parts(Op::Read, &parts, whole).await;
        let all = if mutant::on("write_cache: copy what could not be read") { 0 } else { results.len() };
        results.into_iter().take(all).fold(Ok(()), Result::and).map(|()| whole)
    }

    /// Looks at ages now and then while there is something to become too old.
    pub(super) fn age_if_due(self: &Arc<Self>) {
        let every = self.age_every().filter(|_| self.with(|opened| opened.index.used() > 0));
        if let Some(every) = every {
            self.later(&self.age_timer, every, Self::age);
        }
    }

    fn age_every(&self) -> Option<Duration> {
        let age = Duration::from_millis(self.settings.max_age.get()?);
        Some((age / AGE_PARTS).max(Duration::from_millis(1)))
    }

    /// Has what is too old copied; when to look again, while something is left to become so.
    fn age(self: &Arc<Self>) -> Option<Duration> {
        self.age_timer.end();
        let every = self.age_every()?;
        let time = self.env.coarse_now().checked_sub(every * (AGE_PARTS - 1));
        let (aged, used) = self.with(|opened| {
            let aged = time.is_some_and(|time| opened.note_aged(time));
            (aged, opened.index.used())
        });
        if aged {
            self.copy();
        }
        let goes_on = used > 0 && self.age_timer.queue();
        goes_on.then_some(every)
    }
}

impl Opened {
    fn note_aged(&mut self, time: Duration) -> bool {
        let before = self.commit_times.take_until(time);
        self.aged = self.aged.max(before).max(self.aged_again.take());
        self.aged.is_some()
    }

    /// What is of an epoch below `before` has been copied, except for what had to be `skipped`: the next look at ages tries that
    /// again.
    fn end_aged(&mut self, before: u64, skipped: bool) {
        self.aged = None;
        self.aged_again = Some(before).filter(|_| skipped);
    }
}
