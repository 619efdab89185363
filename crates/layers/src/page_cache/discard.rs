//! Zeroes and discards: passed to the device below, with nothing of the range on its way anywhere meanwhile.
//!
//! The range is held. Writes there wait, and reads there keep nothing; each of them looks for held ranges with the lock
//! of the shard, which is taken here after the range is held. Then, region by region, what is dirty is written back, so that a device that does
//! not carry it out, or fails, has what the cache had; and the cache forgets the region. So nothing is left to be done when the device below has
//! carried it out, nor where the request is withdrawn before.
//!
//! A discard makes room, and asks for none: where the device below zeroes at no cost, what is dirty is taken as a batch would take it, and given up
//! once the device has zeroes there, and there alone: a discard may leave what was there before, and zeroes may take room, as much as the blocks
//! would have. Where that fails it is dirty as before, and where the device says that zeroes have a cost there, it is written back first. As what
//! is taken takes memory and time, a discard of much that is dirty goes in parts. Zeroes of a discard of a cache above are the same.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt};
use spillway_core::{ByteRange, Flags, Kind, Op, Reply, Request, mutant};
use spillway_policy::dirty_regions::{RegionNumber, RegionState};
use spillway_policy::folio::Look;

use super::device::Core;
use super::work::{FOLIO, REGION};
use super::writeback::Batch;
use crate::slice::{Slice, note};

/// Runs and folios that a discard takes, and as many as one region has beside, before it passes them below: what is kept of them, and what has
/// to be given back at once where it is withdrawn, has a bound.
const TAKEN_MAX: u64 = 1024;

/// Part of the memory for folios that they are at most.
const TAKEN_PART: u64 = 16;

/// Regions that it takes at most: each takes some 200 bytes however little of it is dirty, which nothing but the request is charged for.
const REGIONS_MAX: usize = 16;

/// A part of a held range that the cache has forgotten.
struct Cleared {
    part: ByteRange,
    /// But what was dirty of it.
    dirty: Vec<Batch>,
}

/// What was found of a region.
enum Found {
    /// Nothing that is dirty; the rest is forgotten.
    Clean,
    /// What is dirty was taken; the rest is forgotten.
    Taken(Batch),
    /// Something is to be written back, or is on its way.
    Unsaved,
}

impl Core {
    pub(super) async fn replace(self: &Arc<Self>, request: Request) -> Reply {
        let held = self.outside.hold_in_turn(request.range).await;
        let replaced = self.replace_held(&request).await;
        drop(held);
        let result = match replaced {
            // Its zeroes are not durable by themselves.
            Ok(true) if request.flags.fua => self.sync().await,
            Ok(false) if request.flags.fua => self.failure.check(),
            replaced => replaced.map(drop),
        };
        request.answer(result)
    }

    /// Whether something that was dirty was given up, or may have been.
    async fn replace_held(self: &Arc<Self>, request: &Request) -> Result<bool, Kind> {
        let is_discard = request.op == Op::Discard;
        if (is_discard || request.flags.free) && self.below.geometry().fast_zeroes {
            match self.replace_all(request, true).await {
                Err(Kind::NotSupported) if is_discard => self.replace_all(request, false).await.map(|_| true),
                replaced => replaced,
            }
        } else {
            self.replace_all(request, false).await
        }
    }

    /// The same, where that `drops` what is dirty.
    async fn replace_all(self: &Arc<Self>, request: &Request, drops: bool) -> Result<bool, Kind> {
        let (mut at, end) = (request.range.offset, request.range.offset + request.range.len);
        let (mut slice, mut dropped) = (Slice::new(), false);
        while at < end {
            let cleared = self.clear(ByteRange::new(at, end - at), drops, &mut slice).await?;
            (at, dropped) = (at + cleared.part.len, dropped || !cleared.dirty.is_empty());
            self.replace_part(request, cleared, &mut slice).await?;
        }
        assert_eq!(at, end, "all of {:?} is passed below", request.range);
        self.verify_forgotten(request.range, &mut slice);
        Ok(dropped)
    }

    /// Asserts that nobody has brought anything into a held range; in its first region, so that it costs little.
    fn verify_forgotten(&self, range: ByteRange, slice: &mut Slice) {
        let region = self.places.region_at(range.offset);
        let (part, shard) = (self.places.part_of_region(range, region), self.shard(region).read());
        let folios = shard.within(part);
        slice.spend(FOLIO * folios.len() as u32);
        for folio in folios {
            let blocks = self.places.part(part, folio.span()).blocks;
            let end = blocks.end;
            assert_eq!(
                folio.state.look(blocks),
                (Look::Missing, end),
                "nothing comes into {part:?} meanwhile"
            );
        }
    }

    /// Has the device below carry out a part of a request, and gives up what was dirty there.
    async fn replace_part(
        self: &Arc<Self>,
        request: &Request,
        cleared: Cleared,
        slice: &mut Slice,
    ) -> Result<(), Kind> {
        let Cleared { part, dirty } = cleared;
        let bytes: u64 = dirty.iter().flat_map(Batch::ranges).map(|run| run.len).sum();
        if bytes < part.len {
            let below = Request { flags: request.flags, ..Request::bare(request.op, part) };
            self.below.submit(below).await.result?;
        }
        for batch in dirty {
            slice.renew_if_over(&*self.env).await;
            slice.spend(FOLIO * self.cost(&batch) as u32);
            self.give_up(batch).await?;
        }
        Ok(())
    }

    /// Gives up what was taken, once the device below has zeroes there: as many runs at a time as would be written, and charged as these. Then
    /// writes the rest of the region, where a flush waits for that: it has made room before, and whether there is enough is no matter of a discard.
    async fn give_up(self: &Arc<Self>, batch: Batch) -> Result<(), Kind> {
        let (at_once, charge) = self.charge(0, batch.ranges().count());
        let charge = self.batches.take(charge).await;
        let flags = Flags { free: true, ..Flags::default() };
        let zero = |run| self.below.submit(Request { flags, ..Request::bare(Op::WriteZeroes, run) });
        let zeroed = stream::iter(batch.ranges().map(zero)).buffered(at_once);
        zeroed.fold(Ok(()), async |all: Result<(), Kind>, reply| all.and(reply.result)).await?;
        // Who waits for memory holds none.
        drop(charge);
        if let Some(rest) = batch.forgo() {
            self.write_back(rest).await;
        }
        Ok(())
    }

    /// Runs of a batch, and folios that they have.
    fn cost(&self, batch: &Batch) -> u64 {
        batch.ranges().map(|run| 1 + run.len.div_ceil(self.places.unit_bytes())).sum()
    }

    /// The cache forgets a held range, from its begin on, once nothing there is on its way: all of it, or as much as has enough to be taken where
    /// that `drops` what is dirty. Others that wait for a region hold only such before it.
    async fn clear(
        self: &Arc<Self>,
        range: ByteRange,
        drops: bool,
        slice: &mut Slice,
    ) -> Result<Cleared, Kind> {
        let (regions, mut dirty, mut taken) = (self.places.regions(range), Vec::new(), 0);
        let taken_max = (self.zones.units() / TAKEN_PART).min(TAKEN_MAX);
        for region in (regions.start.0..regions.end.0).map(RegionNumber) {
            slice.renew_if_over(&*self.env).await;
            let part = self.places.part_of_region(range, region);
            loop {
                match self.changes.until(|| self.clear_region(region, part, drops, slice)).await {
                    Found::Clean => break,
                    Found::Unsaved => {
                        slice.renew_if_over(&*self.env).await;
                        self.save_part(region, part).await?;
                    }
                    Found::Taken(batch) => {
                        taken += self.cost(&batch);
                        dirty.push(batch);
                        break;
                    }
                }
            }
            if taken > taken_max || dirty.len() == REGIONS_MAX {
                let part = ByteRange::new(range.offset, part.offset + part.len - range.offset);
                return Ok(Cleared { part, dirty });
            }
        }
        Ok(Cleared { part: range, dirty })
    }

    /// None while a read of the device below is under way for some of it, or a batch has some that would be taken.
    fn clear_region(
        self: &Arc<Self>,
        region: RegionNumber,
        part: ByteRange,
        drops: bool,
        slice: &mut Slice,
    ) -> Option<Found> {
        note(REGION);
        let mut shard = self.shard(region).write();
        let folios = shard.within(part);
        slice.spend(REGION + 2 * FOLIO * folios.len() as u32);
        if folios.iter().any(|folio| folio.fills > 0) {
            return None;
        }
        let batch = match shard.dirty.state(region) {
            RegionState::Dirty if drops => self.part(&mut shard, region, part),
            RegionState::Clean => None,
            _ if shard.unsaved_runs(part).is_empty() => None,
            _ => return (!drops).then_some(Found::Unsaved),
        };
        if let Some(batch) = batch {
            slice.spend(2 * FOLIO * self.cost(&batch) as u32);
            shard.forget_clean(part);
            return Some(Found::Taken(batch));
        }
        if !mutant::on("page_cache: keep what was discarded") {
            shard.forget(part);
        }
        Some(Found::Clean)
    }
}
