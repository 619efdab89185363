//! What clients need below before they have an answer: writes with FUA or in mode writethrough, and what is about to be zeroed. They write
//! it back themselves, or wait for a batch of others that has it; nothing else of its region is written for them, unless it is due anyway.

use std::sync::Arc;

use spillway_core::{ByteRange, Kind};
use spillway_policy::dirty_regions::{BatchNumber, RegionNumber, RegionState};

use crate::page_cache::device::Core;
use crate::page_cache::folios::Folios;
use crate::page_cache::writeback::Batch;

/// One who needs a part of a region below.
struct Saving {
    core: Arc<Core>,
    region: RegionNumber,
    range: ByteRange,
    /// Its number among those who wait for the region, and the last batch that was taken before.
    entered: Option<(u64, BatchNumber)>,
    /// The first batch after that: it has what this one needs.
    covers: Option<BatchNumber>,
}

impl Saving {
    /// The batch to write; none in it where the device below has all of the range. None while another has the region.
    fn next(&mut self) -> Option<Option<Batch>> {
        let (core, region) = (self.core.clone(), self.region);
        let mut shard = core.shard(region).write();
        if self.covers.is_some_and(|number| shard.dirty.has_landed(region, number)) {
            return Some(None);
        }
        match shard.dirty.state(region) {
            RegionState::Clean => Some(None),
            // Perhaps for what others need.
            RegionState::Dirty
                if self.covers.is_some_and(|number| shard.dirty.has_failed(region, number)) =>
            {
                Some(core.part(&mut shard, region, self.range))
            }
            // The engine may find the region taken whenever it looks, and a flush would wait for as long as such writes follow each other.
            RegionState::Dirty
                if shard.dirty.is_due(region, core.due()) && !shard.unsaved_runs(self.range).is_empty() =>
            {
                Some(Some(core.batch(&mut shard, region)))
            }
            RegionState::Dirty => Some(core.wanted(&mut shard, region, self.range)),
            RegionState::Writing(number) => {
                let last = self.enter(&mut shard);
                self.covers = self.covers.or(Some(number).filter(|number| *number > last));
                None
            }
        }
    }

    /// Waits for the region, if it does not yet; the last batch that was taken before.
    fn enter(&mut self, shard: &mut Folios) -> BatchNumber {
        let (region, range) = (self.region, self.range);
        self.entered.get_or_insert_with(|| (shard.wanted.enter(region, range), shard.dirty.taken())).1
    }
}

impl Drop for Saving {
    fn drop(&mut self) {
        if let Some((number, _)) = self.entered {
            self.core.shard(self.region).write().wanted.leave(self.region, number);
        }
    }
}

impl Core {
    /// Has the device below get what is dirty of `range`, and waits for that. Fails only where something of the range cannot be written.
    pub(crate) async fn save(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        let regions = self.places.regions(range);
        for region in (regions.start.0..regions.end.0).map(RegionNumber) {
            self.save_part(region, self.places.part_of_region(range, region)).await?;
        }
        Ok(())
    }

    pub(crate) async fn save_part(
        self: &Arc<Self>,
        region: RegionNumber,
        range: ByteRange,
    ) -> Result<(), Kind> {
        let whole = self.places.region_range(region);
        let ends_there = range.offset + range.len <= whole.offset + whole.len;
        assert!(whole.offset <= range.offset && ends_there, "{range:?} lies in {region:?}");
        let mut saving = Saving { core: self.clone(), region, range, entered: None, covers: None };
        let batch = self.changes.until(|| saving.next()).await;
        drop(saving);
        let Some(mut batch) = batch else { return Ok(()) };
        batch.in_parts = true;
        let failed = self.write_back(batch).await;
        let failed = failed.into_iter().find(|(part, _)| part.overlaps(range));
        failed.map_or(Ok(()), |(_, kind)| Err(kind))
    }
}
