//! Reclaim that writes, as the kernel's did until 3.2: for comparison ([`Tail::Write`]). Otherwise reclaim takes what is clean, and `reclaim_writes`
//! stays 0.
//!
//! What is dirty of a folio that is to leave next is written, alone, wherever the device below then is. Reclaim goes on meanwhile.

use std::sync::Arc;

use spillway_core::{ByteRange, LocalFuture, Place, mutant};
use spillway_policy::dirty_regions::RegionState;
use spillway_policy::zones::Tail;

use super::cache::Core;
use super::places::FolioNumber;
use super::writeback::Batch;

impl Core {
    /// Whether it matters which dirty folios reclaim meets.
    pub(super) fn notes_dirty(&self) -> bool {
        self.settings.division.tail == Tail::Write && self.failure.check().is_ok()
    }

    /// Reclaim has met a dirty folio.
    pub(super) fn meet_dirty(self: &Arc<Self>, folio: FolioNumber) {
        let Some(batch) = self.folio_batch(folio) else { return };
        let core = self.clone();
        let write = move || {
            // A failure sticks, and who waits for room sees it.
            let written = async move {
                let _ = core.write_back(batch).await;
            };
            Box::pin(written) as LocalFuture<()>
        };
        self.env.spawn(Place::Background, Box::new(write));
    }

    /// All that is dirty of a folio, unless a batch has its region.
    fn folio_batch(self: &Arc<Self>, number: FolioNumber) -> Option<Batch> {
        let region = self.places.region_of(number);
        let mut shard = self.shard(region).write();
        let folio = shard.get(number).filter(|_| shard.dirty.state(region) == RegionState::Dirty)?;
        let runs: Vec<ByteRange> =
            folio.state.dirty_runs().map(|run| self.places.range(number, &run)).collect();
        let zone = folio.zone;
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
        Some(self.begin_batch(&mut shard, region, runs))
    }
}
