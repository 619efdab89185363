//! The memory that a shard has of a zone: slabs, made when they are first needed and kept, of which each folio has a frame.
//!
//! The system may refuse a slab. Then there is what the slabs that were made have free, and it is asked again each time that this will not do.
//!
//! It has no lock of its own: the shard's guards what stands in frames too, so that a read that hits takes no other.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::{Regions, Slab};
use spillway_policy::buddy::Buddy;

use super::places::Places;

/// Least bytes of a slab: a huge page.
pub(crate) const SLAB_MIN: u64 = 2 << 20;

/// Most slabs of a shard and zone. A process may have 65530 mappings; each slab can be one, also when those beside it are gone.
const SLABS_MAX: u64 = 16;

/// Bytes that a slab takes beside its content: where it is, twice, how long it is, and what the allocator keeps of it.
pub(crate) const BESIDE: u64 = size_of::<Box<dyn Slab>>() as u64 + 16 + 16;

/// Memory of a folio: 2^order units of a slab.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    unit: u32,
    pub(crate) order: u8,
    /// The zone that it is of.
    pub(crate) zone: u8,
}

impl Frame {
    /// Units.
    pub(crate) fn units(&self) -> u64 {
        1 << self.order
    }
}

pub(crate) struct Slabs {
    zone: u8,
    regions: Arc<dyn Regions>,
    /// Those that were made.
    slabs: Vec<Box<dyn Slab>>,
    slabs_max: usize,
    slab_shift: u32,
    /// The system has refused the last one that was needed.
    refused: bool,
    /// Units of slabs that were made.
    free: Buddy,
    unit_shift: u32,
}

impl Slabs {
    /// So many units, in frames no larger than the largest folio.
    pub(crate) fn new(zone: u8, units: u64, places: &Places, regions: Arc<dyn Regions>) -> Self {
        let unit_shift = places.unit_shift;
        assert!(places.unit_bytes() <= SLAB_MIN, "units of {} bytes", places.unit_bytes());
        let bytes = units << unit_shift;
        let slab_bytes = bytes.div_ceil(SLABS_MAX).next_power_of_two().max(SLAB_MIN);
        let slabs_max = bytes.div_ceil(slab_bytes) as usize;
        let slab_shift = slab_bytes.trailing_zeros();
        let count = u32::try_from(units).expect("a shard has less than 2^32 units");
        let free = Buddy::new(count, places.order_max.into());
        Self {
            zone,
            regions,
            slabs: Vec::with_capacity(slabs_max),
            slabs_max,
            slab_shift,
            refused: false,
            free,
            unit_shift,
        }
    }

    /// The first unit of a slab, or behind the last one.
    fn first(&self, slab: usize) -> u32 {
        let unit = (slab as u64) << (self.slab_shift - self.unit_shift);
        unit.min(self.units()) as u32
    }

    /// Units.
    pub(crate) fn units(&self) -> u64 {
        self.free.units().into()
    }

    /// Units that are free, or not made yet.
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.free.free()) + self.units() - u64::from(self.first(self.slabs.len()))
    }

    /// A frame of `order`, or the largest below it that is free. Its content is arbitrary. None where all are taken, or where the system
    /// refuses memory for more.
    pub(crate) fn take(&mut self, order: u8) -> Option<Frame> {
        if self.slabs.len() < self.slabs_max && !self.free.fits(order.into()) {
            self.make();
        }
        let (unit, order) = self.free.take(order.into())?;
        Some(Frame { unit, order: order as u8, zone: self.zone })
    }

    /// Makes the next slab, unless the system refuses it.
    fn make(&mut self) {
        let units = self.first(self.slabs.len())..self.first(self.slabs.len() + 1);
        let slab = self.regions.map_slab(units.len() << self.unit_shift);
        if slab.is_err() && !self.refused {
            tracing::warn!(
                "page cache: the system refuses memory: folios leave for others although there is room for more"
            );
        }
        self.refused = slab.is_err();
        if let Ok(slab) = slab {
            self.slabs.push(slab);
            self.free.give_all(units);
        }
    }

    pub(crate) fn put(&mut self, frame: Frame) {
        assert_eq!(frame.zone, self.zone, "{frame:?}");
        self.free.give(frame.unit, frame.order.into());
    }

    /// The slab of a frame, and where in it the frame begins.
    #[inline]
    fn place(&self, frame: &Frame) -> (usize, usize) {
        let byte = u64::from(frame.unit) << self.unit_shift;
        ((byte >> self.slab_shift) as usize, (byte & ((1 << self.slab_shift) - 1)) as usize)
    }

    /// The slab of some bytes of a frame, and where they are in it.
    #[inline]
    fn within(&self, frame: &Frame, bytes: Range<usize>) -> (usize, Range<usize>) {
        let len = 1 << (self.unit_shift + u32::from(frame.order));
        // Without values: what a message shows is stored with each hit.
        assert!(bytes.end <= len, "bytes of a frame lie in it");
        let (slab, begin) = self.place(frame);
        (slab, begin + bytes.start..begin + bytes.end)
    }

    /// What stands in a part of a frame.
    #[inline]
    pub(crate) fn bytes(&self, frame: &Frame, bytes: Range<usize>) -> &[u8] {
        let (slab, range) = self.within(frame, bytes);
        &self.slabs[slab].bytes()[range]
    }

    /// The same, to be changed.
    pub(crate) fn bytes_mut(&mut self, frame: &Frame, bytes: Range<usize>) -> &mut [u8] {
        let (slab, range) = self.within(frame, bytes);
        &mut self.slabs[slab].bytes_mut()[range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_cache::tests::Scarce;

    /// In units of 64 KiB.
    fn slabs(units: u64, regions: &Arc<Scarce>) -> Slabs {
        let places = Places { block_shift: 12, unit_shift: 16, order_max: 5, region_shift: 21, shards: 1 };
        Slabs::new(3, units, &places, regions.clone())
    }

    #[test]
    fn frames_are_apart_and_their_memory_is_made_when_it_is_needed() {
        let mut slabs = slabs(80, &Scarce::plenty());
        assert!(slabs.slabs.is_empty(), "nothing is made before");
        let frames = [5, 5, 4].map(|order| slabs.take(order).expect("it is free"));
        assert_eq!((slabs.free(), slabs.take(0)), (0, None));
        assert!(frames.iter().all(|frame| frame.zone == 3));
        let made: Vec<usize> = slabs.slabs.iter().map(|slab| slab.bytes().len()).collect();
        assert_eq!(made, [2 << 20, 2 << 20, 1 << 20]);
        let whole = |frame: &Frame| 0..65536 << frame.order;
        for (value, frame) in (1..).zip(&frames) {
            slabs.bytes_mut(frame, whole(frame)).fill(value);
        }
        for (value, frame) in (1..).zip(&frames) {
            assert!(slabs.bytes(frame, whole(frame)).iter().all(|byte| *byte == value));
        }
    }

    #[test]
    fn a_large_shard_has_few_slabs_and_a_frame_lies_in_one() {
        let scarce = Scarce::plenty();
        for (units, wanted) in [(1, 1), (32, 1), (33, 2), (512, 16), (513, 9), (20_000, 10)] {
            let mut slabs = slabs(units, &scarce);
            let frames: Vec<_> = std::iter::from_fn(|| slabs.take(5)).collect();
            assert_eq!((slabs.slabs.len(), slabs.slabs_max, slabs.free()), (wanted, wanted, 0), "{units}");
            assert_eq!(frames.iter().map(Frame::units).sum::<u64>(), units);
            let whole = |frame: &Frame| slabs.bytes(frame, 0..65536 << frame.order).len() as u64 >> 16;
            assert_eq!(frames.iter().map(whole).sum::<u64>(), units);
        }
    }

    #[test]
    fn what_comes_back_is_whole_again() {
        let mut slabs = slabs(32, &Scarce::plenty());
        let frames = [4, 3, 3].map(|order| slabs.take(order).expect("it is free"));
        frames.into_iter().for_each(|frame| slabs.put(frame));
        assert_eq!((slabs.free(), slabs.units()), (32, 32));
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(5));
    }

    #[test]
    fn what_the_system_refuses_is_asked_for_again() {
        let scarce = Scarce::of(0);
        let mut slabs = slabs(80, &scarce);
        assert_eq!((slabs.take(0), slabs.free(), slabs.refused), (None, 80, true));
        scarce.give(u64::MAX);
        let first = slabs.take(2).expect("there is memory again");
        assert!(!slabs.refused);
        scarce.give(0);
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(4), "the largest of what there is");
        assert_eq!(
            [3, 2, 0].map(|order| slabs.take(order).map(|frame| frame.order)),
            [Some(3), Some(2), None]
        );
        slabs.put(first);
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(2), "what comes back");
        scarce.give(u64::MAX);
        assert_eq!((slabs.take(5).map(|frame| frame.order), slabs.free()), (Some(5), 16));
    }

    #[test]
    fn a_part_of_nothing_has_nothing() {
        assert_eq!(slabs(0, &Scarce::plenty()).take(0), None);
    }
}
