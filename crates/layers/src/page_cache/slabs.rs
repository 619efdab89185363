//! The memory that a shard has of a zone: slabs of 2 MiB, made when they are first needed and kept, of which each folio has a frame.
//!
//! It has no lock of its own: the shard's guards what stands in frames too, so that a read that hits takes no other.

use std::ops::Range;

use spillway_policy::buddy::Buddy;

use super::places::Places;

/// Bytes of a slab.
pub(super) const SLAB: u64 = 2 << 20;

/// Empty until it is needed.
type Slab = Box<[u8]>;

/// Bytes that a slab takes beside its content: where it is, and what the allocator keeps of it.
pub(super) const BESIDE: u64 = size_of::<Slab>() as u64 + 16;

/// Memory of a folio: 2^order units of a slab.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Frame {
    unit: u32,
    pub(super) order: u8,
    /// The zone that it is of.
    pub(super) zone: u8,
}

impl Frame {
    /// Units.
    pub(super) fn units(&self) -> u64 {
        1 << self.order
    }
}

pub(super) struct Slabs {
    zone: u8,
    slabs: Box<[Slab]>,
    free: Buddy,
    unit_shift: u32,
}

impl Slabs {
    /// So many units, in frames no larger than the largest folio.
    pub(super) fn new(zone: u8, units: u64, places: &Places) -> Self {
        let unit_shift = places.unit_shift;
        assert!(places.unit_bytes() <= SLAB, "units of {} bytes", places.unit_bytes());
        let slabs = (0..(units << unit_shift).div_ceil(SLAB)).map(|_| Slab::default()).collect();
        let count = u32::try_from(units).expect("a shard has less than 2^32 units");
        Self { zone, slabs, free: Buddy::new(count, places.order_max.into()), unit_shift }
    }

    /// Units.
    pub(super) fn units(&self) -> u64 {
        self.free.units().into()
    }

    /// Units that are free.
    pub(super) fn free(&self) -> u64 {
        self.free.free().into()
    }

    /// A frame of `order`, or the largest below it that is free. Its content is arbitrary.
    pub(super) fn take(&mut self, order: u8) -> Option<Frame> {
        let (unit, order) = self.free.take(order.into())?;
        let frame = Frame { unit, order: order as u8, zone: self.zone };
        let (slab, bytes) = (self.place(&frame).0, self.units() << self.unit_shift);
        if self.slabs[slab].is_empty() {
            self.slabs[slab] = vec![0; SLAB.min(bytes - slab as u64 * SLAB) as usize].into();
        }
        Some(frame)
    }

    pub(super) fn put(&mut self, frame: Frame) {
        assert_eq!(frame.zone, self.zone, "{frame:?}");
        self.free.give(frame.unit, frame.order.into());
    }

    /// The slab of a frame, and where in it the frame begins.
    #[inline]
    fn place(&self, frame: &Frame) -> (usize, usize) {
        let byte = u64::from(frame.unit) << self.unit_shift;
        ((byte / SLAB) as usize, (byte % SLAB) as usize)
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
    pub(super) fn bytes(&self, frame: &Frame, bytes: Range<usize>) -> &[u8] {
        let (slab, range) = self.within(frame, bytes);
        &self.slabs[slab][range]
    }

    /// The same, to be changed.
    pub(super) fn bytes_mut(&mut self, frame: &Frame, bytes: Range<usize>) -> &mut [u8] {
        let (slab, range) = self.within(frame, bytes);
        &mut self.slabs[slab][range]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In units of 64 KiB.
    fn slabs(units: u64) -> Slabs {
        let places = Places {
            block_shift: 12,
            unit_shift: 16,
            order_max: 5,
            region_shift: 21,
            granule_shift: 12,
            shards: 1,
        };
        Slabs::new(3, units, &places)
    }

    #[test]
    fn frames_are_apart_and_their_memory_is_made_when_it_is_needed() {
        let mut slabs = slabs(80);
        assert!(slabs.slabs.iter().all(|slab| slab.is_empty()), "nothing is made before");
        let frames = [5, 5, 4].map(|order| slabs.take(order).expect("it is free"));
        assert_eq!((slabs.free(), slabs.take(0)), (0, None));
        assert!(frames.iter().all(|frame| frame.zone == 3));
        let lens: Vec<usize> = slabs.slabs.iter().map(|slab| slab.len()).collect();
        assert_eq!(lens.iter().sum::<usize>(), 80 << 16);
        let whole = |frame: &Frame| 0..65536 << frame.order;
        for (value, frame) in (1..).zip(&frames) {
            slabs.bytes_mut(frame, whole(frame)).fill(value);
        }
        for (value, frame) in (1..).zip(&frames) {
            assert!(slabs.bytes(frame, whole(frame)).iter().all(|byte| *byte == value));
        }
    }

    #[test]
    fn what_comes_back_is_whole_again() {
        let mut slabs = slabs(32);
        let frames = [4, 3, 3].map(|order| slabs.take(order).expect("it is free"));
        frames.into_iter().for_each(|frame| slabs.put(frame));
        assert_eq!((slabs.free(), slabs.units()), (32, 32));
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(5));
    }

    #[test]
    fn a_part_of_nothing_has_nothing() {
        assert_eq!(slabs(0).take(0), None);
    }
}
