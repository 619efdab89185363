//! The memory that a shard has of a zone: slabs of 2 MiB, made when they are first needed and kept, of which each folio has a frame.
//!
//! The system may refuse a slab. Then there is what the slabs that were made have free, and it is asked again each time that this will not do.
//!
//! It has no lock of its own: the shard's guards what stands in frames too, so that a read that hits takes no other.

use std::ops::Range;

use spillway_policy::buddy::Buddy;

use super::places::Places;

/// Bytes of a slab.
pub(crate) const SLAB: u64 = 2 << 20;

/// Memory as long as it was written so far: the system gives a page when it is first written.
type Slab = Vec<u8>;

/// Bytes that a slab takes beside its content: where it is, how long it is, and what the allocator keeps of it.
pub(crate) const BESIDE: u64 = size_of::<Slab>() as u64 + 16;

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
    slabs: Box<[Slab]>,
    /// Slabs that were made, from the first on.
    made: usize,
    /// The system has refused the last one that was needed.
    refused: bool,
    /// Units of slabs that were made.
    free: Buddy,
    unit_shift: u32,
}

impl Slabs {
    /// So many units, in frames no larger than the largest folio.
    pub(crate) fn new(zone: u8, units: u64, places: &Places) -> Self {
        let unit_shift = places.unit_shift;
        assert!(places.unit_bytes() <= SLAB, "units of {} bytes", places.unit_bytes());
        let slabs = (0..(units << unit_shift).div_ceil(SLAB)).map(|_| Slab::default()).collect();
        let count = u32::try_from(units).expect("a shard has less than 2^32 units");
        let free = Buddy::new(count, places.order_max.into());
        Self { zone, slabs, made: 0, refused: false, free, unit_shift }
    }

    /// The first unit of a slab, or behind the last one.
    fn first(&self, slab: usize) -> u32 {
        let unit = slab as u64 * (SLAB >> self.unit_shift);
        unit.min(self.units()) as u32
    }

    /// Units.
    pub(crate) fn units(&self) -> u64 {
        self.free.units().into()
    }

    /// Units that are free, or not made yet.
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.free.free()) + self.units() - u64::from(self.first(self.made))
    }

    /// A frame of `order`, or the largest below it that is free. Its content is arbitrary. None where all are taken, or where the system
    /// refuses memory for more.
    pub(crate) fn take(&mut self, order: u8) -> Option<Frame> {
        if self.made < self.slabs.len() && !self.free.fits(order.into()) {
            self.make();
        }
        let (unit, order) = self.free.take(order.into())?;
        Some(Frame { unit, order: order as u8, zone: self.zone })
    }

    /// Makes the next slab, unless the system refuses it.
    fn make(&mut self) {
        let units = self.first(self.made)..self.first(self.made + 1);
        let made = reserve(&mut self.slabs[self.made], units.len() << self.unit_shift);
        if !made && !self.refused {
            tracing::warn!(
                "page cache: the system refuses memory: folios leave for others although there is room for more"
            );
        }
        self.refused = !made;
        if made {
            self.made += 1;
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
    pub(crate) fn bytes(&self, frame: &Frame, bytes: Range<usize>) -> &[u8] {
        let (slab, range) = self.within(frame, bytes);
        &self.slabs[slab][range]
    }

    /// The same, to be changed.
    pub(crate) fn bytes_mut(&mut self, frame: &Frame, bytes: Range<usize>) -> &mut [u8] {
        let (slab, range) = self.within(frame, bytes);
        let slab = &mut self.slabs[slab];
        if slab.len() < range.end {
            lengthen(slab, range.end);
        }
        &mut slab[range]
    }
}

/// Has room for so many bytes of a slab, which has none; whether the system gives it.
fn reserve(slab: &mut Slab, bytes: usize) -> bool {
    #[cfg(test)]
    if !system::gives_one() {
        return false;
    }
    slab.try_reserve_exact(bytes).is_ok()
}

/// What was not written before begins as zeroes.
#[cold]
fn lengthen(slab: &mut Slab, len: usize) {
    assert!(len <= slab.capacity(), "a slab stays where it is");
    slab.resize(len, 0);
}

/// A system that refuses memory.
#[cfg(test)]
pub(crate) mod system {
    use std::cell::Cell;

    thread_local! {
        /// Slabs that it still gives.
        static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// Until it is dropped, the system gives so many slabs to caches of this thread.
    pub(crate) struct Short;

    impl Short {
        pub(crate) fn of(slabs: u64) -> Self {
            LEFT.set(slabs);
            Self
        }
    }

    impl Drop for Short {
        fn drop(&mut self) {
            LEFT.set(u64::MAX);
        }
    }

    pub(crate) fn gives_one() -> bool {
        let left = LEFT.get();
        LEFT.set(left.saturating_sub(1));
        left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In units of 64 KiB.
    fn slabs(units: u64) -> Slabs {
        let places = Places { block_shift: 12, unit_shift: 16, order_max: 5, region_shift: 21, shards: 1 };
        Slabs::new(3, units, &places)
    }

    #[test]
    fn frames_are_apart_and_their_memory_is_made_when_it_is_needed() {
        let mut slabs = slabs(80);
        assert!(slabs.slabs.iter().all(|slab| slab.capacity() == 0), "nothing is made before");
        let frames = [5, 5, 4].map(|order| slabs.take(order).expect("it is free"));
        assert_eq!((slabs.free(), slabs.take(0)), (0, None));
        assert!(frames.iter().all(|frame| frame.zone == 3));
        let made: Vec<usize> = slabs.slabs.iter().map(Slab::capacity).collect();
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
    fn what_comes_back_is_whole_again() {
        let mut slabs = slabs(32);
        let frames = [4, 3, 3].map(|order| slabs.take(order).expect("it is free"));
        frames.into_iter().for_each(|frame| slabs.put(frame));
        assert_eq!((slabs.free(), slabs.units()), (32, 32));
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(5));
    }

    #[test]
    fn what_the_system_refuses_is_asked_for_again() {
        let mut slabs = slabs(80);
        let short = system::Short::of(0);
        assert_eq!((slabs.take(0), slabs.free(), slabs.refused), (None, 80, true));
        drop(short);
        let first = slabs.take(2).expect("there is memory again");
        assert!(!slabs.refused);
        let short = system::Short::of(0);
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(4), "the largest of what there is");
        assert_eq!(
            [3, 2, 0].map(|order| slabs.take(order).map(|frame| frame.order)),
            [Some(3), Some(2), None]
        );
        slabs.put(first);
        assert_eq!(slabs.take(5).map(|frame| frame.order), Some(2), "what comes back");
        drop(short);
        assert_eq!((slabs.take(5).map(|frame| frame.order), slabs.free()), (Some(5), 16));
    }

    #[test]
    fn a_part_of_nothing_has_nothing() {
        assert_eq!(slabs(0).take(0), None);
    }
}
