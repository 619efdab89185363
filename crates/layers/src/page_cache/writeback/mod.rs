//! The cache as a source of the write-back engine: a region at a time, up the device, those past their deadline first.
//!
//! All that is dirty in a region is one batch, copied out and written in its runs. Meanwhile clients write the blocks again as they like:
//! those are dirty, and belong to the region's next batch. A client that needs something below at once takes that by the same rules (`saving`).
//!
//! What fails is dirty again and comes with a later batch. Where there may be none, or a client waits for the outcome, a run that fails is halved
//! down to the blocks that cannot be written: they take no other with them.

mod batch;
pub(super) mod ending;
pub(super) mod saving;

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use spillway_core::buffer::{ALIGNMENT, Shared};
use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{ByteRange, IoBuf, Kind, LocalFuture, Request, mutant};
use spillway_policy::dirty_regions::{BatchEnd, RegionNumber, RegionState, Stamp};
use spillway_policy::watermarks::Goal;

pub(super) use self::batch::Batch;
use super::device::Core;
use super::device::counts::Count;
use super::device::pressure::Pressure;
use super::folios::Folios;
use super::work::{FOLIO, copied};
use crate::decisions::Decision;
use crate::slice::note;
use crate::writeback::{Source, Take};

/// Bytes of one write, at least, where so many follow each other: some devices name a block as what they like best.
const WRITE_BYTES: u64 = 1 << 20;

/// Runs of a batch that are written at a time, at most.
const WRITES_MAX: usize = 64;

/// Charged for each of them: what the file and the driver below take for a write, and 700 bytes here.
const WRITE_MEMORY: usize = 2048;

/// Charged for each run of a batch, for its places in lists.
const RUN_MEMORY: usize = 96;

impl Source for Core {
    type Batch = Batch;

    fn goal(&self) -> Goal {
        let due = self.due();
        if self.zones.dirty() == 0 {
            return Goal::Rest;
        }
        match self.is_above_background() || self.is_waited_for() {
            true => Goal::ToLow,
            false if due > Stamp(0) => Goal::Aged(due.0),
            false => Goal::Rest,
        }
    }

    fn take(self: &Arc<Self>, goal: Goal, _: u64) -> Take<Batch> {
        // Another would only wait as well, with all its runs: the end of the first that does so is heard of. Who else waits for memory has
        // come before or after it: with nothing in that queue, the engine would never come.
        if self.queued.load(Ordering::Relaxed) > 0 {
            return Take::Nothing;
        }
        let found = match goal {
            // A drain has one lap to try everything: what is due and fails must not be all that it tries.
            Goal::All => self.next_region(|_| Stamp::MAX),
            _ => self.next_in_turn(goal),
        };
        let Some(region) = found else { return Take::Nothing };
        self.cursor.store(region.0 + 1, Ordering::Relaxed);
        let mut shard = self.shard(region).write();
        // A client may have taken it meanwhile.
        if shard.dirty.state(region) != RegionState::Dirty {
            return Take::Again;
        }
        let mut batch = self.batch(&mut shard, region);
        batch.in_parts = goal == Goal::All;
        batch.queue();
        let bytes = batch.ranges().map(|run| run.len).sum();
        drop(shard);
        assert!(bytes > 0, "{region:?} was dirty");
        self.decisions.note(Decision("write back", self.rule(goal)), bytes, || self.figures());
        Take::Batch(batch, bytes)
    }

    fn write(self: &Arc<Self>, batch: Batch) -> LocalFuture<Result<(), Kind>> {
        let core = self.clone();
        Box::pin(async move {
            let failed = core.write_back(batch).await;
            failed.first().map_or(Ok(()), |(_, kind)| Err(*kind))
        })
    }

    fn left(&self) -> u64 {
        self.unsaved.used() * self.places.block_bytes()
    }

    fn is_waited_for(&self) -> bool {
        self.unsaved.waiting() > 0 || self.pressure.iter().any(Pressure::is_wanting)
    }

    fn failed(&self, kind: Kind) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.fail("writing back", kind);
    }
}

impl Core {
    /// The rule by which something is written back.
    fn rule(&self, goal: Goal) -> &'static str {
        match goal {
            Goal::All => "a drain, or the end",
            Goal::Aged(_) => "a flush, or dirty_expire",
            _ if self.is_waited_for() => "requests wait for memory",
            _ => "dirty_background_ratio",
        }
    }

    fn figures(&self) -> String {
        let settings = &self.settings;
        let (ratio, expire) = (settings.dirty_background_ratio.get(), settings.dirty_expire.get());
        format!(
            "{} are dirty; dirty_background_ratio {ratio} %, dirty_expire {expire} ms",
            human(self.left())
        )
    }

    /// What became dirty in an epoch before this one is to be written back now.
    fn due(&self) -> Stamp {
        let expired = self.aging.ages.lock().expired().unwrap_or(0);
        Stamp(expired.max(self.wanted.load(Ordering::Acquire)))
    }

    /// The next region for `goal`: those past their deadline first, then those of shards that need memory. Of others only as many are
    /// written as may not stay dirty, or as writers of any shard wait for. After a failure it is the next of all these up the device: what
    /// the device below fails at once would be found again by the same rule, and nothing else ever.
    fn next_in_turn(&self, goal: Goal) -> Option<RegionNumber> {
        let due = self.due();
        let all_if = |asked: bool| if asked { Stamp::MAX } else { Stamp(0) };
        let needed = |shard: usize| all_if(self.pressure[shard].is_wanting());
        let any = || all_if(self.is_above_background() || self.unsaved.waiting() > 0);
        if self.has_failed.swap(false, Ordering::Relaxed) {
            let least = any().max(due);
            return self.next_region(|shard| needed(shard).max(least));
        }
        self.next_region(|_| due).or_else(|| {
            self.have_looked_at_ages();
            if let Goal::Aged(before) = goal {
                return self.next_region(|_| Stamp(before));
            }
            self.next_region(needed).or_else(|| {
                let any = any();
                self.next_region(|_| any)
            })
        })
    }

    fn is_above_background(&self) -> bool {
        self.zones.dirty() > self.background()
    }

    /// Has what is too old written back; whether something is unsaved that becomes so.
    pub(super) fn look_at_ages(self: &Arc<Self>) -> bool {
        self.begin_epoch();
        self.aging.expire(self, &self.writeback) && self.unsaved.used() > 0
    }

    /// Nothing that is too old can be taken: what is on its way may fail, and is looked for again.
    fn have_looked_at_ages(&self) {
        let mut ages = self.aging.ages.lock();
        if let Some(expired) = ages.expired() {
            ages.end(expired, true);
        }
    }

    /// The next region up the device, then from its begin, with something that became dirty in an epoch before what `before` says of its
    /// shard: 0 is before all.
    fn next_region(&self, before: impl Fn(usize) -> Stamp) -> Option<RegionNumber> {
        let from = |region| {
            let shards = self.shards.iter().enumerate().map(|(shard, folios)| (before(shard), folios));
            let asked = shards.filter(|(before, _)| *before > Stamp(0));
            let found =
                asked.filter_map(|(before, folios)| folios.read().dirty.next(RegionNumber(region), before));
            found.min()
        };
        match self.cursor.load(Ordering::Relaxed) {
            0 => from(0),
            cursor => from(cursor).or_else(|| from(0)),
        }
    }

    /// Takes all that is dirty of a region.
    fn batch(self: &Arc<Self>, shard: &mut Folios, region: RegionNumber) -> Batch {
        let (runs, blocks) = (shard.dirty_runs(region), shard.dirty.blocks_of(region));
        let bytes: u64 = runs.iter().map(|run| run.len).sum();
        assert_eq!(bytes, blocks * self.places.block_bytes(), "all of {region:?}");
        shard.dirty.take(region);
        self.begin_batch(shard, region, runs)
    }

    /// Takes what is dirty of a range in `region`, of which no batch has anything.
    pub(super) fn part(
        self: &Arc<Self>,
        shard: &mut Folios,
        region: RegionNumber,
        range: ByteRange,
    ) -> Option<Batch> {
        let runs = shard.unsaved_runs(range);
        let blocks = self.blocks_of(&runs);
        if blocks == 0 {
            return None;
        }
        shard.dirty.take_part(region, blocks);
        Some(self.begin_batch(shard, region, runs))
    }

    /// The same for a client, with what is dirty of all that others wait for in the region; none where nothing of its own is.
    pub(super) fn wanted(
        self: &Arc<Self>,
        shard: &mut Folios,
        region: RegionNumber,
        own: ByteRange,
    ) -> Option<Batch> {
        if shard.unsaved_runs(own).is_empty() {
            return None;
        }
        let wanted = match mutant::on("page_cache: take for all who wait what one of them needs") {
            true => vec![own],
            false => shard.wanted.with(region, own),
        };
        let runs: Vec<ByteRange> = wanted.into_iter().flat_map(|range| shard.unsaved_runs(range)).collect();
        shard.dirty.take_wanted(region, self.blocks_of(&runs));
        Some(self.begin_batch(shard, region, runs))
    }

    pub(super) fn blocks_of(&self, runs: &[ByteRange]) -> u64 {
        runs.iter().map(|run| run.len >> self.places.block_shift).sum()
    }

    /// Writes the runs of a batch, each for itself, many at a time. What could not be written, and why.
    pub(super) async fn write_back(self: &Arc<Self>, mut batch: Batch) -> Vec<(ByteRange, Kind)> {
        let bytes = batch.ranges().map(|run| run.len).sum::<u64>() as usize;
        let (at_once, charge) = self.charge(bytes, batch.runs.len());
        let [mut copy, charge] = self.batches.take_both([bytes, charge]).await;
        batch.queued = None;
        let mut end = 0;
        for run in batch.ranges() {
            let start = end;
            end += run.len as usize;
            self.copy_out(run, &mut copy[start..end]);
        }
        assert_eq!(end, bytes, "all that is written is copied");
        let copy = Shared::new(copy, charge);
        let smallest = if batch.in_parts { self.places.block_bytes() } else { u64::MAX };
        let (copy, core, mut end) = (&copy, &**self, 0);
        let write = |run: ByteRange| {
            let start = end;
            end += run.len as usize;
            let view = move |part: ByteRange| {
                copy.view(start + (part.offset - run.offset) as usize, part.len as usize)
            };
            core.write_run(run, view, smallest)
        };
        let parts = stream::iter(batch.ranges().map(write)).buffered(at_once).concat().await;
        let landed = |result: Result<(), Kind>| {
            result.is_ok() || mutant::on("page_cache: what could not be written back is clean")
        };
        batch.runs = parts.iter().map(|(part, result)| (*part, landed(*result))).collect();
        let landed = batch.runs.iter().all(|(_, landed)| *landed);
        batch.end = if landed { BatchEnd::Landed } else { BatchEnd::Failed };
        let failed = parts.into_iter().filter_map(|(part, result)| Some((part, result.err()?)));
        // Said before the batch ends: who then looks for room does not try it again.
        failed.inspect(|(_, kind)| self.fail("writing back", *kind)).collect()
    }

    /// How many runs of a batch of so many, of `bytes`, are written at a time, and what is charged for them beside the copy.
    pub(super) fn charge(&self, bytes: usize, runs: usize) -> (usize, usize) {
        let list = runs * RUN_MEMORY;
        let room = self.batches.bytes() - bytes.next_multiple_of(ALIGNMENT);
        assert!(list + WRITE_MEMORY <= room, "{runs} runs of {bytes} bytes fit");
        let at_once = runs.min(WRITES_MAX).min((room - list) / WRITE_MEMORY);
        (at_once, list + at_once * WRITE_MEMORY)
    }

    /// Copies what is being written back of a region, a folio at a time: clients that write have their turn in between.
    fn copy_out(&self, run: ByteRange, copy: &mut [u8]) {
        assert_eq!(copy.len() as u64, run.len, "room for the run");
        let mut start = 0;
        while start < copy.len() {
            let shard = self.home(run.offset).read();
            let (folio, piece) = shard.at(run, start as u64).expect("it stays while it is written back");
            let end = start + piece.bytes.len();
            copy[start..end].copy_from_slice(shard.bytes(folio, piece.bytes));
            note(FOLIO + copied((end - start) as u64));
            start = end;
        }
    }

    /// Writes a run, and where it fails its halves, down to `smallest` bytes: what was written at once, and how that ended.
    async fn write_run(
        &self,
        run: ByteRange,
        bytes: impl Fn(ByteRange) -> IoBuf,
        smallest: u64,
    ) -> Vec<(ByteRange, Result<(), Kind>)> {
        let (mut left, mut ended) = (vec![run], Vec::new());
        while let Some(part) = left.pop() {
            let result = self.write_part(part.offset, bytes(part)).await;
            if result.is_ok() || part.len <= smallest {
                ended.push((part, result));
                continue;
            }
            let half = (part.len / 2).next_multiple_of(self.places.block_bytes());
            left.push(ByteRange::new(part.offset + half, part.len - half));
            left.push(ByteRange::new(part.offset, half));
        }
        ended
    }

    async fn write_part(&self, offset: u64, bytes: IoBuf) -> Result<(), Kind> {
        let len = bytes.len() as u64;
        let writing = self.meter.write(len);
        self.below.submit(Request::write(offset, bytes)).await.result?;
        writing.landed();
        self.counts.add(Count::WritebackIos, 1);
        self.counts.add(Count::WrittenBytes, len);
        Ok(())
    }
}
