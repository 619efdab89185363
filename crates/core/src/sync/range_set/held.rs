//! The ranges that are held.

use std::collections::BTreeMap;

use crate::block::ByteRange;
use crate::mutant;

/// What is held, by size: how many hold each range.
///
/// Ranges of a class differ in length by less than the double. One that overlaps another range begins in that or less than the
/// longest length of its class before it, so that few others are looked at, however many are held.
pub(super) struct HeldRanges {
    pub(super) count: usize,
    /// So many ranges fill the set.
    pub(super) full: usize,
    classes: BTreeMap<u32, BTreeMap<(u64, u64), usize>>,
    /// How many ranges were compared with another.
    #[cfg(test)]
    pub(super) compared: std::cell::Cell<usize>,
    /// How often a range was compared with all that are held.
    #[cfg(test)]
    pub(super) looks: std::cell::Cell<usize>,
}

impl HeldRanges {
    /// Nothing, in a set that `full` ranges fill.
    pub(super) fn new(full: usize) -> Self {
        Self {
            count: 0,
            full,
            classes: BTreeMap::new(),
            #[cfg(test)]
            compared: std::cell::Cell::new(0),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        }
    }

    /// Ranges of class n are shorter than 2^n bytes, and not of class n - 1.
    fn class(len: u64) -> u32 {
        u64::BITS - len.leading_zeros()
    }

    pub(super) fn add(&mut self, range: ByteRange) {
        self.count += 1;
        let class = self.classes.entry(Self::class(range.len)).or_default();
        *class.entry((range.offset, range.len)).or_default() += 1;
    }

    pub(super) fn remove(&mut self, range: ByteRange) {
        let number = Self::class(range.len);
        let class = self.classes.get_mut(&number).expect("held once, dropped once");
        let holders = class.get_mut(&(range.offset, range.len)).expect("held once, dropped once");
        let gone = if mutant::on("range set: drop what another holds as well") { *holders } else { 1 };
        assert!(self.count >= gone, "{gone} holders leave {}", self.count);
        *holders -= gone;
        self.count -= gone;
        if *holders == 0 {
            class.remove(&(range.offset, range.len));
        }
        if class.is_empty() {
            self.classes.remove(&number);
        }
        assert_eq!(self.count == 0, self.classes.is_empty(), "{} holders of other ranges", self.count);
    }

    pub(super) fn overlaps(&self, range: ByteRange) -> bool {
        self.classes.iter().any(|(&number, class)| {
            let reach = 1u64.checked_shl(number).unwrap_or(u64::MAX) - 1;
            let near = class.range((range.offset.saturating_sub(reach), 0)..(range.offset + range.len, 0));
            near.map(|(&(offset, len), _)| ByteRange::new(offset, len)).any(|held| {
                #[cfg(test)]
                self.compared.set(self.compared.get() + 1);
                held.overlaps(range)
            })
        })
    }

    pub(super) fn is_full(&self) -> bool {
        self.count >= self.full
    }

    /// Whether one more fills the set.
    pub(super) fn is_almost_full(&self) -> bool {
        self.count.saturating_add(1) >= self.full
    }

    /// Whether nobody holds a part of `range` and the set is not full.
    pub(super) fn is_clear(&self, range: ByteRange) -> bool {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        !self.is_full() && !self.overlaps(range)
    }
}
