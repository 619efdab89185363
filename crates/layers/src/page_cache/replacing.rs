//! Zeroes and discards: passed to the device below, with nothing of the range on its way anywhere meanwhile.
//!
//! The range is held. Writes there wait, and reads there keep nothing; each of them looks for held ranges with the lock
//! of the shard, which is taken here after the range is held. Then what is dirty is written back: so a device that does not carry it
//! out, or fails, has what the cache had. In the end the cache forgets the range.
//!
//! A discard makes room, and asks for none: where the device below zeroes at no cost, what is dirty is taken as a batch would take it, and given up
//! once the device has zeroes there, and there alone: a discard may leave what was there before, and zeroes may take room, as much as the blocks
//! would have. Where that fails it is dirty as before.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use spillway_core::sync::HeldRange;
use spillway_core::{ByteRange, Kind, Op, Reply, Request, mutant};
use spillway_policy::dirty_regions::{RegionNumber, RegionState};

use super::cache::Core;
use super::writeback::Batch;

/// A range that is changed beside the cache.
struct Outside {
    core: Arc<Core>,
    range: ByteRange,
    /// Nothing of it is dirty or on its way, until it is let go.
    still: bool,
    /// But what is given up once it is discarded, and else stays dirty.
    keeps_dirty: bool,
    _held: HeldRange,
}

impl Outside {
    /// The cache forgets the range, a shard at a time.
    async fn forget(mut self) {
        for (turn, shard) in self.core.places.shards_of(self.range).into_iter().enumerate() {
            self.core.give_way(turn).await;
            self.core.forget(shard, &self);
        }
        self.still = false;
    }
}

/// One that is withdrawn forgets at once.
impl Drop for Outside {
    fn drop(&mut self) {
        if self.still {
            let shards = self.core.places.shards_of(self.range);
            shards.into_iter().for_each(|shard| self.core.forget(shard, self));
        }
    }
}

/// What is left to be done before a range is still.
enum Left {
    Nothing,
    /// Something is to be written back, or is on its way.
    Unsaved,
}

impl Core {
    pub(super) async fn replace(self: &Arc<Self>, request: Request) -> Reply {
        let _held = self.outside.hold_in_turn(request.range).await;
        let (core, range) = (self.clone(), request.range);
        let mut outside = Outside { core, range, still: false, keeps_dirty: false, _held };
        let drops = request.op == Op::Discard && self.below.geometry().fast_zeroes;
        if let Err(kind) = self.settle(range, drops).await {
            return request.answer(Err(kind));
        }
        let dirty = if drops { self.take_dirty(range).await } else { Vec::new() };
        (outside.still, outside.keeps_dirty) = (true, !dirty.is_empty());
        let fua = request.flags.fua;
        let bytes: u64 = dirty.iter().flat_map(Batch::ranges).map(|run| run.len).sum();
        let mut reply = match bytes == range.len {
            true => request.answer(Ok(())),
            false => self.below.submit(request).await,
        };
        if reply.result.is_ok() {
            reply.result = self.drop_dirty(dirty).await;
            outside.keeps_dirty = reply.result.is_err();
        } else {
            drop(dirty);
        }
        outside.forget().await;
        if reply.result.is_ok() && fua {
            // The zeroes are not durable by themselves.
            reply.result = if bytes > 0 { self.sync().await } else { self.failure.check() };
        }
        reply
    }

    /// Gives up what was taken of a discarded range, once the device below has zeroes there.
    async fn drop_dirty(&self, dirty: Vec<Batch>) -> Result<(), Kind> {
        let mut dropped = Ok(());
        for batch in dirty {
            let zero = |run| self.below.submit(Request::bare(Op::WriteZeroes, run));
            let zeroed = join_all(batch.ranges().map(zero)).await;
            let zeroed = zeroed.into_iter().map(|reply| reply.result).fold(Ok(()), Result::and);
            match zeroed {
                Ok(()) => batch.forgo(),
                Err(_) => drop(batch),
            }
            dropped = dropped.and(zeroed);
        }
        dropped
    }

    /// Takes what is dirty of a held range, from its begin on: others that wait for a region hold only such before it.
    async fn take_dirty(self: &Arc<Self>, range: ByteRange) -> Vec<Batch> {
        let (all, mut regions, mut taken) = (self.places.regions(range), Vec::new(), Vec::new());
        for shard in self.places.shards_of(range) {
            regions.extend(self.shards[shard].read().dirty.unclean(all.clone()));
        }
        regions.sort_unstable();
        for (turn, region) in regions.into_iter().enumerate() {
            self.give_way(turn).await;
            let batch = self.changes.until(|| self.take_dirty_of(region, range)).await;
            taken.extend(batch);
        }
        taken
    }

    /// What is dirty of `range` in `region`; none while a batch has some of it, or of the rest of the region.
    fn take_dirty_of(self: &Arc<Self>, region: RegionNumber, range: ByteRange) -> Option<Option<Batch>> {
        let (mut shard, range) = (self.shard(region).write(), self.places.part_of_region(range, region));
        match shard.dirty.state(region) {
            RegionState::Writing(_) if !shard.unsaved_runs(range).is_empty() => None,
            RegionState::Dirty => Some(self.part(&mut shard, region, range)),
            _ => Some(None),
        }
    }

    /// Others have their turn before every shard but the first: each may have many folios.
    async fn give_way(&self, turn: usize) {
        if turn > 0 {
            self.env.sleep(Duration::ZERO).await;
        }
    }

    /// Waits until nothing of a held range is on its way into memory, nor dirty or on its way below unless that `drops`. A shard that is still
    /// stays so.
    async fn settle(self: &Arc<Self>, range: ByteRange, drops: bool) -> Result<(), Kind> {
        for (turn, shard) in self.places.shards_of(range).into_iter().enumerate() {
            self.give_way(turn).await;
            loop {
                match self.changes.until(|| self.left(shard, range)).await {
                    Left::Nothing => break,
                    Left::Unsaved if drops => break,
                    Left::Unsaved => self.save(range).await?,
                }
            }
        }
        Ok(())
    }

    /// None while a read of the device below is under way for some of it.
    fn left(&self, shard: usize, range: ByteRange) -> Option<Left> {
        let (shard, mut left) = (self.shards[shard].read(), Left::Nothing);
        for folio in shard.within(range) {
            let blocks = self.places.part(range, folio.span()).blocks;
            if folio.fills > 0 {
                return None;
            }
            if folio.state.unsaved_runs(blocks).next().is_some() {
                left = Left::Unsaved;
            }
        }
        Some(left)
    }

    fn forget(&self, shard: usize, outside: &Outside) {
        let mut shard = self.shards[shard].write();
        match outside.keeps_dirty {
            _ if mutant::on("page_cache: keep what was discarded") => {}
            true => shard.forget_clean(outside.range),
            false => shard.forget(outside.range),
        }
    }
}
