//! What the device holds: what the device below may not have yet is stored; of the rest the device below knows.

use spillway_core::{ByteRange, Extent, Kind, mutant};

use super::device::Core;
use super::work::{FOLIO, REGION};
use crate::slice::Slice;

impl Core {
    pub(super) async fn extents(&self, range: ByteRange, count_max: usize) -> Result<Vec<Extent>, Kind> {
        let (mut list, mut at, end) = (Vec::new(), range.offset, range.offset + range.len);
        let mut slice = Slice::new();
        while at < end && list.len() < count_max {
            slice.renew_if_over(&*self.env).await;
            // What is below when this looks was there before the device below is asked.
            let (unsaved, until) = self.next_unsaved(ByteRange::new(at, end - at), &mut slice);
            if unsaved && !mutant::on("page_cache: ask only the device below for extents") {
                Extent::stored(until - at).append_to(&mut list);
                at = until;
                continue;
            }
            while at < until && list.len() < count_max {
                slice.renew_if_over(&*self.env).await;
                let part = ByteRange::new(at, until - at);
                let below = self.below.extents(part, count_max).await?;
                slice.spend(below.len() as u32);
                let covered = Extent::append_in_blocks(&below, part, self.places.block_bytes(), &mut list);
                assert!((1..=until - at).contains(&covered), "{covered} bytes of {part:?}");
                at += covered;
            }
        }
        list.truncate(count_max);
        Ok(list)
    }

    /// Whether the begin of `range` is unsaved, and where that ends.
    fn next_unsaved(&self, range: ByteRange, slice: &mut Slice) -> (bool, u64) {
        let (at, end) = (range.offset, range.offset + range.len);
        let regions = self.places.regions(range);
        slice.spend(REGION);
        let unclean =
            self.shards.iter().filter_map(|shard| shard.read().dirty.unclean(regions.clone()).next());
        let Some(region) = unclean.min() else { return (false, end) };
        let place = self.places.region_range(region);
        if place.offset > at {
            return (false, place.offset);
        }
        let end = end.min(place.offset + place.len);
        let (part, shard) = (ByteRange::new(at, end - at), self.shard(region).read());
        slice.spend(2 * FOLIO * shard.within(part).len() as u32);
        let runs = shard.unsaved_runs(part);
        match runs.first() {
            Some(run) if run.offset <= at => (true, end.min(run.offset + run.len)),
            Some(run) => (false, run.offset),
            None => (false, end),
        }
    }
}
