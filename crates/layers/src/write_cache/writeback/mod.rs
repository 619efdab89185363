//! The cache as a source of the write-back engine: a lap tells which blocks, each run is one write to the origin, and the batches
//! that were written at the same time share a flush of the origin.

pub(super) mod emptying;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use spillway_core::sync::{Ordering, Room};
use spillway_core::{IoBuf, Kind, LocalFuture, Op, Place, Request, mutant, task};
use spillway_policy::islands::{self, Neighbour};
use spillway_policy::lap::{Lap, LapEnd};
use spillway_policy::watermarks::{Goal, free_at};

use super::committer::Committer;
use super::device::Core;
use super::device::counts::Count;
use super::device::laps::Next;
use super::index::LOOKS;
use super::index::block::{CacheBlock, Epoch, OriginBlock, Stage};
use super::index::chains::Limit;
use super::index::victims::Victim;
use super::pieces::DevicePart;
use crate::decisions::Decision;
use crate::writeback::{Source, Take};

/// Bytes of one batch, where so many follow each other: at least, and up to what an origin likes best.
const BATCH_BYTES: u64 = 1 << 20;
const BATCH_BYTES_MAX: u64 = 4 << 20;

/// Batches that memory is there for at least.
const BATCHES: u64 = 4;

/// Longest rest before another look.
const REST_MAX: Duration = Duration::from_millis(100);

/// Versions that leave; whatever happens, the index learns how that ended.
pub(super) struct Batch {
    core: Arc<Core>,
    victims: Vec<Victim>,
    outcome: Outcome,
    /// It was dropped, and ends by itself.
    dropped: bool,
}

/// How versions have left, or not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// They can be taken again.
    Withdrawn,
    /// The origin has them, durably.
    WrittenBack,
    /// The origin has something else instead, durably.
    Replaced,
}

impl Batch {
    pub(super) fn new(core: Arc<Core>, victims: Vec<Victim>) -> Self {
        Self { core, victims, outcome: Outcome::Withdrawn, dropped: false }
    }

    pub(super) fn len(&self) -> usize {
        self.victims.len()
    }

    pub(super) fn add(&mut self, victims: Vec<Victim>) {
        self.victims.extend(victims);
    }

    /// Tells the index in slices that all of it is replaced.
    pub(super) async fn end_replaced(mut self) {
        self.outcome = Outcome::Replaced;
        self.end().await;
    }

    /// Tells the index in slices how it ended.
    async fn end(mut self) {
        while self.victims.len() > LOOKS {
            let some = self.victims.split_off(self.victims.len() - LOOKS);
            self.core.end_write_back(&some, self.outcome);
            self.core.changes.wake_all();
            self.core.give_way().await;
        }
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        if self.victims.len() > LOOKS && !self.dropped {
            self.core.ending.fetch_add(1, Ordering::SeqCst);
            let (core, victims) = (self.core.clone(), std::mem::take(&mut self.victims));
            let rest = Self { core, victims, outcome: self.outcome, dropped: true };
            return self.core.env.spawn(Place::Background, task(move || rest.end()));
        }
        if !self.victims.is_empty() {
            self.core.end_write_back(&self.victims, self.outcome);
            self.core.changes.wake_all();
            self.core.run_committer(Committer::Background);
            // Write-back may have looked in vain while a discard had them: for these, or for room beside as many as may be on their way.
            if self.outcome != Outcome::WrittenBack {
                self.core.writeback.kick();
            }
        }
        if self.dropped {
            // Last: who closes the cache then sees the committer at work.
            let before = self.core.ending.fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "what ends was dropped");
            self.core.changes.wake_all();
        }
    }
}

impl Source for Core {
    type Batch = Batch;

    fn goal(&self) -> Goal {
        if self.failure.check().is_err() {
            return Goal::Rest;
        }
        self.load(self.settings.cleaner.get(), self.is_waited_for()).goal(self.settings.low_watermark.get())
    }

    fn take(self: &Arc<Self>, goal: Goal, bytes_max: u64) -> Take<Batch> {
        assert_ne!(goal, Goal::Rest, "nothing is asked for");
        let in_flight = self.index.writing_back();
        let Some(count_max) = self.count_max(in_flight, bytes_max) else { return Take::Nothing };
        if self.failure.check().is_err() {
            return Take::Nothing;
        }
        if goal == Goal::ToLow {
            let rest = self.rest();
            if in_flight == 0 && !rest.is_zero() {
                return Take::After(rest);
            }
            let island = self.take_missing_island(count_max);
            if !island.is_empty() {
                return self.batch(goal, island);
            }
        }
        let before = if let Goal::Aged(before) = goal { before } else { u64::MAX };
        match self.take_next(count_max, before) {
            Next::Victims(victims) => self.batch(goal, victims),
            Next::Later => Take::Again,
            Next::Nothing { skipped } => {
                self.found_nothing(goal, skipped);
                Take::Nothing
            }
        }
    }

    fn write(self: &Arc<Self>, batch: Batch) -> LocalFuture<Result<(), Kind>> {
        let core = self.clone();
        Box::pin(async move { core.write_back(batch).await })
    }

    fn is_waited_for(&self) -> bool {
        self.rooms.iter().any(Room::is_waited_for)
    }

    fn left(&self) -> u64 {
        self.blocks_left() * self.block_bytes()
    }

    fn failed(&self, kind: Kind) {
        self.fail("writing back to the origin", kind);
    }
}

impl Core {
    /// Has the engine look where a watermark or an option says so.
    pub(super) fn write_back_if_due(&self) {
        let cleaning = self.settings.cleaner.get() || self.drain.is_running();
        if self.fill(cleaning, false).is_high(self.settings.high_watermark.get()) {
            self.writeback.kick();
        }
    }

    /// Something has changed: who waits for room may get it by a batch now, and a drain may go on.
    pub(super) fn write_back_for_waiters(&self) {
        if self.is_waited_for() || self.writeback.is_draining() {
            self.writeback.kick();
        }
    }

    fn end_write_back(&self, victims: &[Victim], outcome: Outcome) {
        let stale = |block| {
            self.journal.mark_stale(block);
            // Under the lock: who reads what the origin has instead, and then flushes, waits until this entry is clear.
            if outcome == Outcome::Replaced {
                self.bypass.count_end();
            }
        };
        self.index.end_write_back(victims, outcome != Outcome::Withdrawn, || self.journal.visible(), stale);
    }

    fn batch(self: &Arc<Self>, goal: Goal, victims: Vec<Victim>) -> Take<Batch> {
        assert!(!victims.is_empty(), "a batch has versions");
        let bytes = victims.len() as u64 * self.block_bytes();
        self.decisions.note(Decision("write back", self.rule(goal)), bytes, || self.figures());
        Take::Batch(Batch::new(self.clone(), victims), bytes)
    }

    /// The rule by which something is written back.
    fn rule(&self, goal: Goal) -> &'static str {
        match goal {
            _ if self.writeback.is_draining() => "a drain",
            _ if self.is_waited_for() => "writers wait for blocks",
            _ if self.settings.cleaner.get() => "cleaner",
            Goal::Aged(_) => "max_age",
            _ => "high_watermark",
        }
    }

    fn figures(&self) -> String {
        let (held, blocks) = (u64::from(self.index.held()), self.layout.n_blocks);
        let (high, low) = (self.settings.high_watermark.get(), self.settings.low_watermark.get());
        assert!(held <= blocks, "{held} of {blocks} blocks are held");
        let percent = held * 100 / blocks.max(1);
        format!("{percent} % of {blocks} blocks are dirty; high_watermark {high} %, low_watermark {low} %")
    }

    /// Blocks of the next batch; `None` where as many as may be are in flight.
    fn count_max(&self, in_flight: u32, bytes_max: u64) -> Option<u32> {
        let jobs = match self.settings.writeback_jobs.get() {
            0 => u64::MAX,
            jobs => jobs,
        };
        let (block, memory) = (self.block_bytes(), self.workspaces.batches.bytes() as u64);
        let left = jobs.min((memory / block).max(1)).saturating_sub(in_flight.into());
        let count = left.min((bytes_max.min(self.batch_bytes()) / block).max(1));
        (count > 0).then_some(count as u32)
    }

    /// The next versions of epochs below `before`, and what has been dirty for too long, at most `len_max` of consecutive blocks.
    pub(super) fn take_next(&self, len_max: u32, before: u64) -> Next {
        let dirty_before = Epoch(self.aging.ages.lock().expired().unwrap_or(0));
        let lap = &mut self.laps.order().0;
        let committed = self.journal.committed();
        let limit = Limit { before: committed.min(Epoch(lap.limit(before))), dirty_before, committed };
        let found = self.index.take_next(lap.at(), len_max, limit, |origin| self.bypass.is_busy(origin));
        assert!(found.victims.len() <= len_max as usize, "{} of {len_max} versions", found.victims.len());
        if !found.victims.is_empty() {
            lap.take(found.next, found.skipped);
            return Next::Victims(found.victims);
        }
        lap.pass(found.next, found.skipped);
        if found.at_end { self.end_lap(lap, before) } else { Next::Later }
    }

    fn end_lap(&self, lap: &mut Lap, before: u64) -> Next {
        let idle = lap.is_idle();
        let end = lap.end(self.journal.committed().0, before);
        self.laps.end(lap.laps());
        match end {
            LapEnd::Nothing { skipped } => Next::Nothing { skipped },
            LapEnd::Again
                if idle && mutant::on("write_cache: a lap that began before a commit is the last") =>
            {
                Next::Nothing { skipped: false }
            }
            LapEnd::Again => Next::Later,
        }
    }

    /// Up to `count_max` versions around the longest run of free blocks, if that is shorter than `len`: in the order of the origin,
    /// marked. Every other time there are none.
    pub(super) fn take_island(&self, len: u32, count_max: u32) -> Vec<Victim> {
        let turn = self.laps.order().1.is_turn();
        let Some(run) = Some(()).filter(|()| turn).and_then(|()| self.space.longest_run()) else {
            return Vec::new();
        };
        let committed = self.journal.committed();
        let blocks = self.layout.n_blocks as u32;
        let look = |block| self.neighbour(CacheBlock(block));
        let mut origins: Vec<OriginBlock> =
            islands::around(run, blocks, len, count_max, look).into_iter().map(OriginBlock).collect();
        assert!(origins.len() <= count_max as usize, "{} of {count_max} versions", origins.len());
        origins.sort_unstable();
        self.index.take_each(&origins, committed, |origin| self.bypass.is_busy(origin))
    }

    fn neighbour(&self, block: CacheBlock) -> Neighbour {
        if self.index.stage(block) == Stage::Empty {
            return Neighbour::Free;
        }
        let leaving = self.index.leaving(block, self.journal.committed());
        let leaving = leaving.filter(|&origin| !self.bypass.is_busy(origin));
        leaving.map_or(Neighbour::Stays, |origin| Neighbour::Leaves(origin.0))
    }

    /// How long the origin is left alone, where it was written to directly a moment ago and there is still room.
    fn rest(&self) -> Duration {
        let pause = Duration::from_millis(self.settings.pause_writeback());
        match self.space.count() {
            0 => Duration::ZERO,
            // What clients write to other blocks goes there without end, and would keep these here as long.
            _ if self.settings.cleaner.get() => Duration::ZERO,
            _ => self.bypass.window.lock().rest(self.env.coarse_now(), pause).min(REST_MAX),
        }
    }

    /// Versions whose blocks make the longest run of free ones longer, as long as blocks are missing.
    fn take_missing_island(&self, count_max: u32) -> Vec<Victim> {
        let (low, len) =
            (self.settings.low_watermark.get(), (self.batch_bytes() / self.block_bytes()) as u32);
        let low = free_at(self.layout.n_blocks, low) as u32;
        self.take_island(len, count_max.min(low.saturating_sub(self.free_soon())))
    }

    /// A lap has found nothing.
    fn found_nothing(self: &Arc<Self>, goal: Goal, skipped: bool) {
        match goal {
            Goal::Aged(before) => self.aging.ages.lock().end(before, skipped),
            // Uncommitted versions may not leave.
            Goal::All if self.index.writing_back() == 0 => self.want_acknowledged(),
            _ => {}
        }
    }

    /// Where memory is small, so much that several are in flight.
    pub(super) fn batch_bytes(&self) -> u64 {
        let most = (self.workspaces.batches.bytes() as u64 / BATCHES).clamp(BATCH_BYTES, BATCH_BYTES_MAX);
        u64::from(self.origin.geometry().optimal_io).clamp(BATCH_BYTES, most)
    }

    /// Writes each run of blocks to the origin, from the cache to entries that are to be cleared. None crosses what an origin of large units,
    /// such as the objects of a cluster, likes best.
    async fn write_back(self: &Arc<Self>, mut batch: Batch) -> Result<(), Kind> {
        let unit = u64::from(self.origin.geometry().optimal_io);
        let cut = |at: OriginBlock| {
            unit >= BATCH_BYTES && (u64::from(at.0) * self.block_bytes()).is_multiple_of(unit)
        };
        let follows = |one: &Victim, next: &Victim| one.origin.plus(1) == next.origin && !cut(next.origin);
        let runs = batch.victims.chunk_by(follows);
        let writes = join_all(runs.map(|run| self.write_run(run))).await;
        writes.into_iter().fold(Ok(()), Result::and)?;
        if !self.settings.fua() && !mutant::on("write_cache: free before the origin is durable") {
            self.flush_origin().await?;
        }
        self.counts.add(Count::WrittenBack, batch.victims.len() as u32);
        batch.outcome = Outcome::WrittenBack;
        batch.end().await;
        Ok(())
    }

    /// One write to the origin.
    async fn write_run(&self, run: &[Victim]) -> Result<(), Kind> {
        let unread = |&kind: &Kind| self.fail("reading the cache device to write it back", kind);
        let bytes = self.gather(run).await.inspect_err(unread)?;
        assert_eq!(bytes.len() as u64, run.len() as u64 * self.block_bytes(), "each block is gathered");
        let writing = self.meter.write(bytes.len() as u64);
        let write = Request::write(u64::from(run[0].origin.0) * self.block_bytes(), bytes);
        let write = if self.settings.fua() { write.with_fua() } else { write };
        let result = self.origin.submit(write).await.result;
        if result != Err(Kind::Unreachable)
            || !mutant::on("write_cache: what has reached nobody is written back")
        {
            result?;
        }
        writing.landed();
        self.counts.add(Count::WritebackIos, 1);
        Ok(())
    }

    /// The contents of the victims, in their order; consecutive blocks of the cache are one read.
    async fn gather(&self, victims: &[Victim]) -> Result<IoBuf, Kind> {
        let block = self.block_bytes();
        let runs = victims.chunk_by(|one, next| one.block.plus(1) == next.block);
        let part = |run: &[Victim]| DevicePart {
            device: &self.cache,
            at: self.cache_offset(run[0].block),
            len: run.len() * block as usize,
        };
        let parts: Vec<DevicePart> = runs.map(part).collect();
        let len = victims.len() * block as usize;
        let whole = match mutant::on("write_cache: write back in memory that nobody counts") {
            true => IoBuf::new(len),
            false => self.workspaces.batches.take(len).await,
        };
        let (results, whole) = self.move_parts(Op::Read, &parts, whole).await;
        let all =
            if mutant::on("write_cache: write back what could not be read") { 0 } else { results.len() };
        results.into_iter().take(all).fold(Ok(()), Result::and).map(|()| whole)
    }

    /// Looks at ages now and then while there is something to become too old.
    pub(super) fn age_if_due(self: &Arc<Self>) {
        if self.settings.max_age.get().is_some() && self.index.held() > 0 {
            self.aging.timer.start();
        }
    }

    /// Has what is too old written back; whether something is left to become so.
    pub(super) fn look_at_ages(self: &Arc<Self>) -> bool {
        self.aging.expire(self, &self.writeback) && self.index.held() > 0
    }
}
