//! Which units have folios: a hash table of a fixed size, as a shard has memory for a fixed number of units.
//!
//! Linear probing. An entry has a print of the unit, from which its first place follows, above what the table holds for it: so neither a
//! miss nor a removal looks at anything but entries.

use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;

/// What stands for a number; others may have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Print(u32);

impl Print {
    /// Its place among `count`.
    #[inline]
    pub(crate) fn of(self, count: usize) -> usize {
        ((u64::from(self.0) * count as u64) >> u32::BITS) as usize
    }
}

/// The place of an entry in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitEntry(usize);

pub(crate) struct Units {
    /// A print above what is held; 0 where there is nothing.
    entries: Box<[u64]>,
    len: usize,
    /// Drawn, so that no client can choose offsets whose prints meet.
    key: u64,
}

/// Entries of a table for so many units, of which two in three are in use at most; one stays free, at which a search ends.
const fn entries(units: u64) -> u64 {
    units + units.div_ceil(2) + 1
}

impl Units {
    /// Bytes that it takes for each of so many units, and beside them.
    pub(crate) const BYTES_EACH: u64 = 12;
    pub(crate) const BYTES_SPARE: u64 = 2 * 8 + 16;

    /// For so many units.
    pub(crate) fn new(units: u64) -> Self {
        let key = DefaultHashBuilder::default().hash_one(units);
        Self { entries: vec![0; entries(units) as usize].into(), len: 0, key }
    }

    /// Entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Fibonacci hashing, twice: each bit depends on all of the number and of the key.
    #[inline]
    pub(crate) fn print(&self, number: u64) -> Print {
        let hash = (number ^ self.key).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Print((mixed >> 32) as u32 | 1)
    }

    #[inline]
    fn home(&self, print: Print) -> usize {
        print.of(self.entries.len())
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    /// The entry with `print` for which `is` holds.
    #[inline(always)]
    pub(crate) fn find(&self, print: Print, mut is: impl FnMut(u32) -> bool) -> Option<UnitEntry> {
        let mut at = self.home(print);
        loop {
            let entry = self.entries[at];
            if (entry >> 32) as u32 == print.0 && is(entry as u32) {
                return Some(UnitEntry(at));
            }
            if entry == 0 {
                return None;
            }
            at = self.after(at);
        }
    }

    /// A new entry.
    pub(crate) fn insert(&mut self, Print(print): Print, held: u32) {
        self.len += 1;
        assert!(self.len < self.entries.len(), "no more than there is memory for");
        let mut at = self.home(Print(print));
        while self.entries[at] != 0 {
            at = self.after(at);
        }
        self.entries[at] = u64::from(print) << 32 | u64::from(held);
    }

    /// What lies behind an entry that leaves comes nearer to its own first place.
    pub(crate) fn remove(&mut self, UnitEntry(mut hole): UnitEntry) {
        assert_ne!(self.entries[hole], 0, "what leaves is there");
        self.len -= 1;
        let count = self.entries.len();
        let mut at = self.after(hole);
        while self.entries[at] != 0 {
            let home = self.home(Print((self.entries[at] >> 32) as u32));
            let distance = |from: usize| if from <= at { at - from } else { at + count - from };
            if distance(home) >= distance(hole) {
                self.entries[hole] = self.entries[at];
                hole = at;
            }
            at = self.after(at);
        }
        self.entries[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_at_equal_distances_lie_near_their_first_places() {
        for step in [1, 3, 16, 4096, 1 << 32] {
            let mut units = Units::new(3000);
            (0..3000).for_each(|nth| units.insert(units.print(nth * step), nth as u32));
            let far = |nth: u64| {
                let print = units.print(nth * step);
                let UnitEntry(at) = units.find(print, |held| held == nth as u32).expect("it was inserted");
                (at + units.entries.len() - units.home(print)) % units.entries.len()
            };
            let sum: usize = (0..3000).map(far).sum();
            assert!(sum < 3 * 3000, "{sum} steps for 3000 units at {step}");
        }
    }

    #[test]
    fn it_takes_what_is_charged() {
        for units in [1, 2, 3, 4, 1000] {
            let bytes = size_of_val(&*Units::new(units).entries) as u64;
            assert!(bytes <= units * Units::BYTES_EACH + Units::BYTES_SPARE, "{bytes} for {units}");
        }
    }

    proptest! {
        /// Whatever prints are alike, and wherever the table ends.
        #[test]
        fn it_holds_what_was_put_in(
            bound in 1u64..20,
            steps in prop::collection::vec((any::<bool>(), 0u32..6, 0u32..40), 1..200),
        ) {
            let (mut units, mut plain) = (Units::new(bound), Vec::new());
            for (far, nth, held) in steps {
                let print = Print(if far { u32::MAX - nth } else { nth << 30 | 1 });
                let found = units.find(print, |other| other == held);
                let place = plain.iter().position(|other| *other == (print, held));
                prop_assert_eq!(found.is_some(), place.is_some());
                match (found, place) {
                    (Some(entry), Some(place)) => {
                        units.remove(entry);
                        plain.swap_remove(place);
                    }
                    _ if plain.len() < bound as usize => {
                        units.insert(print, held);
                        plain.push((print, held));
                    }
                    _ => {}
                }
                prop_assert_eq!(units.len(), plain.len());
                for &(print, held) in &plain {
                    prop_assert!(units.find(print, |other| other == held).is_some());
                }
            }
        }
    }
}
