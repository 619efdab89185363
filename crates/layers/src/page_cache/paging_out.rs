//! Reclaim that writes, as the kernel's did until 3.2: for comparison ([`Tail::Write`]). Otherwise reclaim takes what is clean, and `reclaim_writes`
//! stays 0.
//!
//! What is dirty of a folio that is to leave next is written, alone, wherever the device below then is. Reclaim goes on meanwhile.

use std::sync::Arc;

use spillway_core::{ByteRange, Place, mutant, task};
use spillway_policy::dirty_regions::RegionState;
use spillway_policy::zones::Tail;

use super::cache::Core;
use super::folios::Folios;
use super::places::UnitNumber;
use super::writeback::Batch;

impl Core {
    /// Whether it matters which dirty folios reclaim meets.
    pub(super) fn notes_dirty(&self) -> bool {
        self.settings.division.tail == Tail::Write && self.failure.check().is_ok()
    }

    /// Reclaim has met a dirty folio of a shard, that of `unit`.
    pub(super) fn meet_dirty(self: &Arc<Self>, shard: &mut Folios, unit: UnitNumber) {
        let Some(batch) = self.folio_batch(shard, unit) else { return };
        let core = self.clone();
        let write = move || async move {
            // A failure sticks, and who waits for room sees it.
            let _ = core.write_back(batch).await;
        };
        self.env.spawn(Place::Background, task(write));
    }

    /// All that is dirty of a folio, unless a batch has its region.
    fn folio_batch(self: &Arc<Self>, shard: &mut Folios, unit: UnitNumber) -> Option<Batch> {
        let region = self.places.region_of(unit);
        let folio = shard.get(unit).filter(|_| shard.dirty.state(region) == RegionState::Dirty)?;
        let runs: Vec<ByteRange> =
            folio.state.dirty_runs().map(|run| self.places.range(folio.span(), &run)).collect();
        let zone = folio.zone();
        let blocks = runs.iter().map(|run| run.len >> self.places.block_shift).sum();
        if blocks == 0 {
            return None;
        }
        if mutant::on("page_cache: reclaim takes a folio for all of its region") {
            shard.dirty.take(region);
        } else {
            shard.dirty.take_part(region, blocks);
        }
        shard.count(zone).reclaim_writes += blocks;
        Some(self.begin_batch(shard, region, runs))
    }
}
