//! The cache as Linux 3.1 had it in 2011, for comparison: in builds of benchmarks and of the simulator only.
//!
//! Each part of it that differed is a switch of `config::Of2011`, so that an experiment can change one of them.

use std::sync::Arc;

use spillway_core::{ByteRange, Place, mutant, task};
use spillway_policy::dirty_regions::RegionState;
use spillway_policy::zones::{Watermarks, ZoneAttempt};

use super::config::Of2011;
use super::device::counts::Count;
use super::device::{Core, PageCache};
use super::folios::Folios;
use super::folios::places::UnitNumber;
use super::folios::shares::Share;
use super::folios::slabs::Frame;
use super::writeback::Batch;
use crate::slice::Slice;

/// Pages of the source's machine, and those that Linux kept free of it: 4 times the square root of the memory in KiB, as KiB.
const MACHINE: u64 = 963_840;
const KEPT_FREE: u64 = 1963;

/// Quarters of what is kept free that requests leave, those that they leave while another zone may have more, and those up to which reclaim
/// goes on.
const MIN: u64 = 4;
const LOW: u64 = 5;
const HIGH: u64 = 6;

/// Units of a zone, and of those that are asked before it.
#[derive(Clone, Copy)]
struct Size {
    units: u64,
    before: u64,
}

impl Size {
    /// Of each zone of a shard.
    fn of(zones: &[Share]) -> Vec<Self> {
        let mut before = 0;
        let size = |zone: &Share| {
            let size = Self { units: zone.slabs.units(), before };
            before += size.units;
            size
        };
        zones.iter().map(size).collect()
    }

    /// So many quarters of what the zone keeps free, and what requests that could be for the zones before leave to those that could not.
    fn mark(self, quarters: u64) -> u64 {
        let kept = self.units * KEPT_FREE / MACHINE;
        (kept * quarters / 4 + self.before / 256).min(self.units)
    }

    fn watermarks(self) -> Watermarks {
        let low = self.mark(LOW) + 1;
        let high = self.mark(HIGH).max(low).min(self.units);
        Watermarks { low, high, pass: (self.units / 4096).max(1) }
    }
}

impl PageCache {
    /// Blocks that reclaim has written.
    pub fn reclaim_writes(&self) -> u64 {
        self.core.counts.get(Count::ReclaimWrites)
    }
}

impl Core {
    pub(super) fn of_2011(&self) -> Of2011 {
        self.settings.division.of_2011
    }

    /// Whether any part works as in 2011.
    pub(super) fn is_of_2011(&self) -> bool {
        self.of_2011() != Of2011::default()
    }

    /// Sets the watermarks.
    pub(super) fn keep_free_as_in_2011(&self) {
        for shard in self.shards.iter().filter(|_| self.of_2011().watermarks) {
            let zones = &mut shard.write().zones;
            let sizes = Size::of(zones);
            zones.iter_mut().zip(sizes).for_each(|(zone, size)| zone.watermarks = size.watermarks());
        }
    }

    /// Memory of a shard for a folio of `order` or less; with `percent` for one that is about to be dirtied, in a zone below its share
    /// of that dirty limit where one has any.
    pub(super) fn frame_of_2011(
        self: &Arc<Self>,
        shard: &mut Folios,
        order: u8,
        slice: &mut Slice,
        percent: Option<u64>,
    ) -> Option<Frame> {
        let sizes = Size::of(&shard.zones);
        let mut take = |zone: usize, attempt| match attempt {
            ZoneAttempt::Spare => self.take_above(shard, zone, order, sizes[zone].mark(LOW)),
            ZoneAttempt::Reclaim => self.evict_unless_in_2011(shard, zone, order, slice),
            ZoneAttempt::Fallback => {
                let free = self.take_above(shard, zone, order, sizes[zone].mark(MIN));
                free.or_else(|| self.evict_unless_in_2011(shard, zone, order, slice))
            }
        };
        let frame = match percent.filter(|_| !self.of_2011().scope) {
            Some(percent) => self.zones.place(percent, take),
            None => {
                let mut any = |attempt| (0..sizes.len()).find_map(|zone| take(zone, attempt));
                any(ZoneAttempt::Spare).or_else(|| any(ZoneAttempt::Fallback))
            }
        };
        self.look_at_memory(shard);
        frame
    }

    /// Memory of a zone, of which `left` units remain free with the watermarks of 2011.
    fn take_above(&self, shard: &mut Folios, zone: usize, order: u8, left: u64) -> Option<Frame> {
        if !self.of_2011().watermarks {
            return self.take(shard, zone, order);
        }
        let free = shard.free_of(zone).saturating_sub(left);
        self.take(shard, zone, order.min(free.checked_ilog2()? as u8))
    }

    fn evict_unless_in_2011(
        self: &Arc<Self>,
        shard: &mut Folios,
        zone: usize,
        order: u8,
        slice: &mut Slice,
    ) -> Option<Frame> {
        if self.of_2011().reclaim { None } else { self.evict_directly(shard, zone, order, slice) }
    }

    /// Has a folio of `zone` leave a shard, and writes the dirty ones that it meets; whether one could leave. After a failure it writes
    /// none for a while, as the engine does: what fails at once wakes reclaim, which would find it dirty again.
    pub(super) fn evict_of_2011(
        self: &Arc<Self>,
        shard: &mut Folios,
        zone: usize,
        slice: &mut Slice,
    ) -> bool {
        let mut dirty: Vec<UnitNumber> = Vec::new();
        let slot = shard.zones[zone].leaving(slice, |folio| {
            dirty.extend(folio.state.dirty_runs().next().map(|_| folio.unit));
        });
        let rests = !self.page_outs.lock().left(self.env.now()).is_zero();
        if self.failure.check().is_ok() && !rests {
            dirty.into_iter().for_each(|unit| self.page_out(shard, unit));
        }
        slot.inspect(|slot| self.remove(shard, zone, *slot)).is_some()
    }

    /// Writes what is dirty of the folio of `unit`, unless a batch has something of its region.
    fn page_out(self: &Arc<Self>, shard: &mut Folios, unit: UnitNumber) {
        let Some(batch) = self.folio_batch(shard, unit) else { return };
        let core = self.clone();
        let write = move || async move {
            // A failure is noted before the batch ends, and who waits for room sees it.
            if core.write_back(batch).await.is_empty() {
                core.page_outs.lock().succeeded();
            }
        };
        self.env.spawn(Place::Background, task(write));
    }

    fn folio_batch(self: &Arc<Self>, shard: &mut Folios, unit: UnitNumber) -> Option<Batch> {
        let region = self.places.region_of(unit);
        let folio = shard.get(unit).filter(|_| shard.dirty.state(region) == RegionState::Dirty)?;
        let runs: Vec<ByteRange> =
            folio.state.dirty_runs().map(|run| self.places.range(folio.span(), &run)).collect();
        let blocks = self.blocks_of(&runs);
        if blocks == 0 {
            return None;
        }
        if mutant::on("page_cache: reclaim takes a folio for all of its region") {
            shard.dirty.take(region);
        } else {
            shard.dirty.take_part(region, blocks);
        }
        self.counts.add(Count::ReclaimWrites, blocks);
        Some(self.begin_batch(shard, region, runs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_those_of_the_source_s_machine() {
        // Normal, DMA32, DMA.
        let marks = |units, before| {
            let size = Size { units, before };
            let Watermarks { low, high, pass } = size.watermarks();
            [size.mark(MIN), size.mark(LOW), low, high, pass]
        };
        assert_eq!(marks(129_024, 0), [262, 327, 328, 393, 31]);
        assert_eq!(marks(830_976, 129_024), [1692 + 504, 2115 + 504, 2116 + 504, 2538 + 504, 202]);
        assert_eq!(marks(3840, 960_000), [7 + 3750, 8 + 3750, 9 + 3750, 10 + 3750, 1]);
    }

    /// Reclaim that has begun has an end, and what it frees can be taken.
    #[test]
    fn marks_are_in_order() {
        for (units, before) in (1..200).chain([5000, 1 << 40]).flat_map(|units| [(units, 0), (units, 70_000)])
        {
            let size = Size { units, before };
            let ([min, spare], Watermarks { low, high, pass }) =
                ([MIN, LOW].map(|quarters| size.mark(quarters)), size.watermarks());
            assert!(min <= spare && spare <= high && high <= units, "{units} {before}");
            assert!(spare < low && (low <= high || spare == units) && pass > 0, "{units} {before}");
        }
    }
}
