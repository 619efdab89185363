//! Numbers below a bound, a bit each, under a tree of summaries: the next and the previous one are found in a few loads, however far
//! they are.

use std::ops::Range;

/// Bits of a word.
const BITS: usize = 64;

/// A set of numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bits {
    /// Words of the numbers themselves, then of summaries, up to a level of one word.
    levels: Vec<Box<[u64]>>,
}

fn level_words(bound: u32) -> impl Iterator<Item = usize> {
    let words = |count: usize| count.div_ceil(BITS).max(1);
    std::iter::successors(Some(words(bound as usize)), move |&count| (count > 1).then(|| words(count)))
}

/// Bits of a word from `from` on.
fn above(from: usize) -> u64 {
    u64::MAX << from
}

/// Bits of a word up to `to`.
fn below(to: usize) -> u64 {
    u64::MAX >> (BITS - 1 - to)
}

impl Bits {
    /// No numbers below `bound`.
    pub(crate) fn new(bound: u32) -> Self {
        Self { levels: level_words(bound).map(|words| vec![0; words].into()).collect() }
    }

    /// Bytes of a set of numbers below `bound`.
    pub(crate) fn bytes(bound: u32) -> u64 {
        level_words(bound).map(|words| 8 * words as u64).sum()
    }

    /// Puts a number in; panics where it is there.
    pub(crate) fn set(&mut self, number: u32) {
        self.set_range(number..number + 1);
    }

    /// Takes a number out; panics where it is not there.
    pub(crate) fn clear(&mut self, number: u32) {
        self.clear_range(number..number + 1);
    }

    /// Puts a range in, of which nothing is there.
    pub(crate) fn set_range(&mut self, range: Range<u32>) {
        self.each_word(&range, |levels, at, mask| {
            assert_eq!(levels[0][at] & mask, 0, "{range:?} is not there");
            levels[0][at] |= mask;
            let mut child = at;
            for level in &mut levels[1..] {
                level[child / BITS] |= 1 << (child % BITS);
                child /= BITS;
            }
        });
    }

    /// Takes a range out, all of which is there.
    pub(crate) fn clear_range(&mut self, range: Range<u32>) {
        self.each_word(&range, |levels, at, mask| {
            assert_eq!(levels[0][at] & mask, mask, "{range:?} is there");
            levels[0][at] &= !mask;
            let (mut child, mut empty) = (at, levels[0][at] == 0);
            for level in &mut levels[1..] {
                if !empty {
                    break;
                }
                level[child / BITS] &= !(1 << (child % BITS));
                empty = level[child / BITS] == 0;
                child /= BITS;
            }
        });
    }

    fn each_word(&mut self, range: &Range<u32>, mut work: impl FnMut(&mut [Box<[u64]>], usize, u64)) {
        assert!(range.start < range.end, "{range:?}");
        let (first, last) = (range.start as usize, range.end as usize - 1);
        for at in first / BITS..=last / BITS {
            let from = if at == first / BITS { above(first % BITS) } else { u64::MAX };
            let to = if at == last / BITS { below(last % BITS) } else { u64::MAX };
            work(&mut self.levels, at, from & to);
        }
    }

    /// The first number from `from` on.
    pub(crate) fn next(&self, from: u32) -> Option<u32> {
        let (mut at, mut level) = (from as usize, 0);
        loop {
            let word = self.levels.get(level)?.get(at / BITS)? & above(at % BITS);
            if word == 0 {
                (at, level) = (at / BITS + 1, level + 1);
                continue;
            }
            at = at / BITS * BITS + word.trailing_zeros() as usize;
            if level == 0 {
                return Some(at as u32);
            }
            (at, level) = (at * BITS, level - 1);
        }
    }

    /// The last number up to `to`, which is below the bound.
    pub(crate) fn prev(&self, to: u32) -> Option<u32> {
        let (mut at, mut level) = (to as usize, 0);
        loop {
            let word = self.levels.get(level)?[at / BITS] & below(at % BITS);
            if word == 0 {
                (at, level) = ((at / BITS).checked_sub(1)?, level + 1);
                continue;
            }
            at = at / BITS * BITS + BITS - 1 - word.leading_zeros() as usize;
            if level == 0 {
                return Some(at as u32);
            }
            (at, level) = (at * BITS + BITS - 1, level - 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set_in_order(
            bound in prop::sample::select(vec![1u32, 63, 64, 65, 4096, 4097, 300_000]),
            steps in prop::collection::vec((any::<u32>(), 1u32..200, any::<u32>()), 1..60),
        ) {
            let (mut bits, mut plain) = (Bits::new(bound), BTreeSet::new());
            for (number, len, look) in steps {
                let (start, look) = (number % bound, look % bound);
                let there = plain.contains(&start);
                let alike = (start..bound.min(start + len)).take_while(|at| plain.contains(at) == there);
                let range = start..start + alike.count() as u32;
                if there {
                    bits.clear_range(range.clone());
                    range.for_each(|at| _ = plain.remove(&at));
                } else {
                    bits.set_range(range.clone());
                    plain.extend(range);
                }
                prop_assert_eq!(bits.next(look), plain.range(look..).next().copied());
                prop_assert_eq!(bits.prev(look), plain.range(..=look).next_back().copied());
            }
            let bytes: usize = bits.levels.iter().map(|words| 8 * words.len()).sum();
            prop_assert_eq!(Bits::bytes(bound), bytes as u64);
        }
    }
}
