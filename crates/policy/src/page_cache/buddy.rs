//! Memory in units, handed out in chunks of a power of two of them, each at a multiple of its size. A chunk that comes back is merged with its
//! buddy, the other half of what it was cut from, if that is free too.
//!
//! What is free is known by a bitmap for each size: the first chunk of a size is found in a few loads. Memory at the begin is used first,
//! and the smallest chunk that will do is cut, so that large ones last.
//!
//! Knowlton, "A fast storage allocator", CACM 1965.

use std::ops::Range;

use crate::bits::Bits;

/// The largest order of a chunk that begins at `unit` and has no more than `units`, which is not 0; at most `order_max`.
pub fn fitting(unit: u64, units: u64, order_max: u32) -> u32 {
    unit.trailing_zeros().min(units.ilog2()).min(order_max)
}

/// So many units of memory. A chunk of order `n` has 2^n of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buddy {
    /// By order: the chunks that are free, each by its first unit divided by its size.
    chunks: Vec<Bits>,
    units: u32,
    free: u32,
}

impl Buddy {
    /// `units` units, none of them free, in chunks of up to `order_max`.
    pub fn new(units: u32, order_max: u32) -> Self {
        let chunks = (0..=order_max).map(|order| Bits::new(units >> order)).collect();
        Self { chunks, units, free: 0 }
    }

    /// Bytes that it takes for `units` units in chunks of up to `order_max`.
    pub fn bytes(units: u32, order_max: u32) -> u64 {
        (0..=order_max).map(|order| Bits::bytes(units >> order) + size_of::<Bits>() as u64).sum()
    }

    /// Units.
    pub fn units(&self) -> u32 {
        self.units
    }

    /// Units that are free.
    pub fn free(&self) -> u32 {
        self.free
    }

    fn order_max(&self) -> u32 {
        self.chunks.len() as u32 - 1
    }

    fn has(&self, unit: u32, order: u32) -> bool {
        self.chunks[order as usize].next(unit >> order) == Some(unit >> order)
    }

    /// Whether a chunk of `order`, or a larger one, is free.
    pub fn fits(&self, order: u32) -> bool {
        (order..=self.order_max()).any(|order| self.chunks[order as usize].next(0).is_some())
    }

    /// Takes a chunk of `order`; of the next smaller that there is, where none of that is free. Its first unit, and its order.
    pub fn take(&mut self, order: u32) -> Option<(u32, u32)> {
        let first = |order: u32| self.chunks[order as usize].next(0).map(|chunk| (chunk << order, order));
        let (unit, found) =
            (order..=self.order_max()).find_map(first).or_else(|| (0..order).rev().find_map(first))?;
        self.chunks[found as usize].clear(unit >> found);
        let taken = found.min(order);
        // Of each half that is cut the upper one stays free.
        (taken..found).for_each(|order| self.chunks[order as usize].set((unit >> order) + 1));
        assert!(self.free >= 1 << taken, "2^{taken} of {} units", self.free);
        self.free -= 1 << taken;
        Some((unit, taken))
    }

    /// Gives units that were taken, or never free, in the largest chunks that they have.
    pub fn give_all(&mut self, units: Range<u32>) {
        let mut unit = units.start;
        while unit < units.end {
            let order = fitting(unit.into(), (units.end - unit).into(), self.order_max());
            self.give(unit, order);
            unit += 1 << order;
        }
    }

    /// Gives a chunk back, or a part of one that is a chunk itself.
    pub fn give(&mut self, unit: u32, order: u32) {
        assert!(unit.is_multiple_of(1 << order) && unit + (1 << order) <= self.units, "{unit}, 2^{order}");
        let taken = |order: &u32| !self.has(unit, *order);
        assert!((order..=self.order_max()).all(|order| taken(&order)), "unit {unit} was taken");
        self.free += 1 << order;
        assert!(self.free <= self.units, "no more than there is");
        let (mut unit, mut order) = (unit, order);
        while order < self.order_max() && self.has(unit ^ 1 << order, order) {
            self.chunks[order as usize].clear((unit ^ 1 << order) >> order);
            unit &= !(1 << order);
            order += 1;
        }
        self.chunks[order as usize].set(unit >> order);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Units that are free.
    fn whole(units: u32, order_max: u32) -> Buddy {
        let mut buddy = Buddy::new(units, order_max);
        assert_eq!((buddy.free(), buddy.fits(0), buddy.clone().take(0)), (0, false, None));
        buddy.give_all(0..units);
        buddy
    }

    #[test]
    fn what_is_given_piece_by_piece_is_whole() {
        let mut buddy = Buddy::new(11, 3);
        [5..11, 0..3, 3..5].into_iter().for_each(|units| buddy.give_all(units));
        assert_eq!(buddy, whole(11, 3));
    }

    #[test]
    fn the_smallest_chunk_that_will_do_is_cut() {
        let mut buddy = whole(11, 3);
        assert_eq!((buddy.take(0), buddy.take(1)), (Some((10, 0)), Some((8, 1))));
        assert_eq!((buddy.take(1), buddy.take(0)), (Some((0, 1)), Some((2, 0))));
        assert_eq!((buddy.take(3), buddy.free()), (Some((4, 2)), 1), "there is none of eight any more");
        buddy.give(0, 1);
        buddy.give(2, 0);
        assert_eq!(buddy.take(2), Some((0, 2)), "what comes back is merged");
        assert_eq!((buddy.take(3), buddy.take(0)), (None, None));
    }

    #[test]
    fn a_chunk_comes_back_in_parts() {
        let mut buddy = whole(8, 3);
        assert_eq!(buddy.take(3), Some((0, 3)));
        [(4, 2), (2, 1), (1, 0), (0, 0)].into_iter().for_each(|(unit, order)| buddy.give(unit, order));
        assert_eq!(buddy, whole(8, 3));
    }

    #[test]
    fn chunks_fit_where_they_begin() {
        assert_eq!([fitting(0, 9, 9), fitting(4, 9, 9), fitting(5, 9, 9), fitting(8, 2, 9)], [3, 2, 0, 1]);
        assert_eq!(fitting(0, 1 << 20, 4), 4);
    }

    /// The largest order of which a chunk of `plain` is free.
    fn largest(plain: &[bool], order_max: u32) -> Option<u32> {
        let free = |order: u32| plain.chunks_exact(1 << order).any(|chunk| chunk.iter().all(|free| *free));
        (0..=order_max).rev().find(|order| free(*order))
    }

    proptest! {
        #[test]
        fn chunks_are_whole_apart_and_merged(
            units in 1u32..100,
            order_max in 0u32..6,
            steps in prop::collection::vec((any::<bool>(), 0u32..6, any::<prop::sample::Index>()), 1..80),
        ) {
            let (mut buddy, mut plain) = (whole(units, order_max), vec![true; units as usize]);
            let mut taken: Vec<(u32, u32)> = Vec::new();
            for (takes, order, which) in steps {
                let order = order.min(order_max);
                if takes || taken.is_empty() {
                    let best = largest(&plain, order_max).map(|largest| largest.min(order));
                    let chunk = buddy.take(order);
                    prop_assert_eq!(chunk.map(|chunk| chunk.1), best);
                    let Some((unit, order)) = chunk else { continue };
                    prop_assert!(unit.is_multiple_of(1 << order));
                    for free in &mut plain[unit as usize..][..1 << order] {
                        prop_assert!(std::mem::replace(free, false), "a chunk is nobody else's");
                    }
                    taken.push((unit, order));
                } else {
                    let (unit, order) = taken.swap_remove(which.index(taken.len()));
                    buddy.give(unit, order);
                    plain[unit as usize..][..1 << order].fill(true);
                }
                let fits = |order: u32| largest(&plain, order_max).is_some_and(|largest| order <= largest);
                prop_assert!((0..=order_max).all(|order| buddy.fits(order) == fits(order)));
                prop_assert_eq!(buddy.free() as usize, plain.iter().filter(|free| **free).count());
            }
            taken.into_iter().for_each(|(unit, order)| buddy.give(unit, order));
            prop_assert_eq!(buddy, whole(units, order_max));
        }
    }
}
