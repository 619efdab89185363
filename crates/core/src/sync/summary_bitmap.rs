//! A set of numbers that is walked in order without looking at what is not there.

use super::{AtomicU64, Mutex, Ordering};
use crate::mutant;

/// Bits of a word.
const BITS: usize = 64;

/// Numbers below a bound, a bit each, under a tree of summaries: a bit of a summary says that a word below has one.
///
/// The next number is found in two loads a level, however far it is: six levels hold 2^36 numbers. Looking takes no lock, and
/// finds whatever is there from before the look to its end. Setting and clearing take one only where something changes.
/// Different numbers may change at the same time; of the same number the caller orders the changes, by the lock of what it
/// stands for.
#[derive(Default)]
pub struct SummaryBitmap {
    /// Words of the numbers themselves, then of summaries, up to a level of one word.
    levels: Vec<Box<[AtomicU64]>>,
    /// Held by who changes words, so that a summary never misses a bit of a word that others change meanwhile.
    changing: Mutex<()>,
}

/// Words of each level for numbers below `bound`.
fn level_words(bound: u64) -> impl Iterator<Item = usize> {
    let words = |count: usize| count.div_ceil(BITS);
    let first = Some(words(bound as usize)).filter(|&count| count > 0);
    std::iter::successors(first, move |&count| (count > 1).then(|| words(count)))
}

impl SummaryBitmap {
    /// An empty set for numbers below `bound`.
    pub fn new(bound: u64) -> Self {
        let level = |words| (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { levels: level_words(bound).map(level).collect(), changing: Mutex::new(()) }
    }

    /// Bytes that a set for numbers below `bound` takes.
    pub fn bytes(bound: u64) -> u64 {
        level_words(bound).map(|words| (words * size_of::<AtomicU64>()) as u64).sum()
    }

    /// The same numbers, with room for all below `bound`. Panics where one is not below it.
    pub fn resized(&mut self, bound: u64) -> Self {
        assert_eq!(self.next_set(bound), None, "no number is behind the new bound");
        let set = Self::new(bound);
        let numbers = self.levels.first().into_iter().zip(set.levels.first());
        for (from, to) in numbers.flat_map(|(from, to)| from.iter().zip(to)) {
            to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        for (below, above) in set.levels.iter().zip(set.levels.iter().skip(1)) {
            for (at, _) in below.iter().enumerate().filter(|(_, word)| word.load(Ordering::Relaxed) != 0) {
                above[at / BITS].fetch_or(1 << (at % BITS), Ordering::Relaxed);
            }
        }
        set
    }

    /// Puts `number` in. One load where it is there already. Panics where it is not below the bound.
    pub fn set(&self, number: u64) {
        let mut at = number as usize;
        if self.has(at) {
            return;
        }
        let _changing = self.lock();
        for words in &self.levels {
            let before = words[at / BITS].load(Ordering::Relaxed);
            words[at / BITS].store(before | 1 << (at % BITS), Ordering::Release);
            if before != 0 {
                return;
            }
            at /= BITS;
        }
    }

    /// Takes `number` out. One load where it is not there. Panics where it is not below the bound.
    pub fn clear(&self, number: u64) {
        let mut at = number as usize;
        if !self.has(at) {
            return;
        }
        let _changing = self.lock();
        for words in &self.levels {
            let left = words[at / BITS].load(Ordering::Relaxed) & !(1 << (at % BITS));
            words[at / BITS].store(left, Ordering::Release);
            if left != 0 {
                return;
            }
            at /= BITS;
        }
    }

    /// The first number from `from` on.
    pub fn next_set(&self, from: u64) -> Option<u64> {
        let (mut at, mut level) = (usize::try_from(from).ok()?, 0);
        loop {
            let word = self.levels.get(level)?.get(at / BITS)?.load(Ordering::Acquire) >> (at % BITS);
            if word == 0 {
                // Behind this word, a level higher.
                (at, level) = (at / BITS + 1, level + 1);
                continue;
            }
            at += word.trailing_zeros() as usize;
            if level == 0 {
                return Some(at as u64);
            }
            (at, level) = (at * BITS, level - 1);
        }
    }

    fn has(&self, at: usize) -> bool {
        self.levels[0][at / BITS].load(Ordering::Acquire) >> (at % BITS) & 1 == 1
    }

    fn lock(&self) -> Option<impl Drop + '_> {
        (!mutant::on("summary bitmap: change words without the lock")).then(|| self.changing.lock())
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::thread;
    use std::sync::Arc;

    /// Neighbours in one word come and go beside one that stays, and a walk finds that one at any time.
    fn neighbours() {
        let set = Arc::new(SummaryBitmap::new(200));
        set.set(70);
        let change = |number: u64| {
            let set = set.clone();
            thread::spawn(move || {
                set.set(number);
                assert_eq!(set.next_set(number), Some(number), "what was put in is found");
                set.clear(number);
            })
        };
        let changes = [change(65), change(71)];
        let look = {
            let set = set.clone();
            thread::spawn(move || assert!(set.next_set(66) == Some(70)))
        };
        changes.into_iter().chain([look]).for_each(|thread| thread.join().expect("it ends"));
        assert_eq!((set.next_set(0), set.next_set(71)), (Some(70), None));
        let last = [70, 130].map(|number| {
            let set = set.clone();
            thread::spawn(move || if number == 70 { set.clear(number) } else { set.set(number) })
        });
        last.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!((set.next_set(0), set.next_set(131)), (Some(130), None));
    }

    #[test]
    fn what_stays_is_found_while_its_neighbours_change() {
        every_order(20_000, neighbours);
    }

    #[test]
    fn the_checker_finds_a_summary_that_misses_a_change() {
        finds(
            "summary bitmap: change words without the lock",
            "sync::summary_bitmap::threads::what_stays_is_found_while_its_neighbours_change",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn it_is_a_set_in_order_at_every_size() {
        for bound in [0, 1, 63, 64, 65, 4095, 4096, 4097, 262_144, 300_000] {
            let (mut set, mut model, mut random) =
                (SummaryBitmap::new(bound), BTreeSet::new(), Random(bound + 1));
            assert_eq!(
                SummaryBitmap::bytes(bound),
                set.levels.iter().map(|words| 8 * words.len() as u64).sum()
            );
            for _ in 0..if bound == 0 { 0 } else { 3000 } {
                let (number, from) = (random.draw() % bound, random.draw() % (bound + 2));
                if random.draw().is_multiple_of(2) {
                    set.set(number);
                    model.insert(number);
                } else {
                    let gone = model.range(number..).next().copied().unwrap_or(number);
                    set.clear(gone);
                    model.remove(&gone);
                }
                assert_eq!(set.next_set(from), model.range(from..).next().copied(), "from {from} of {bound}");
            }
            for other in [0, 64, 5000, 300_000].map(|more| bound + more) {
                let other = set.resized(other);
                let all = |set: &SummaryBitmap| -> Vec<u64> {
                    std::iter::successors(set.next_set(0), |at| set.next_set(at + 1)).collect()
                };
                assert_eq!(all(&other), all(&set));
                model.iter().for_each(|&number| other.clear(number));
                assert!(other.levels.iter().flatten().all(|word| word.load(Ordering::Relaxed) == 0));
            }
            model.iter().for_each(|&number| set.clear(number));
            assert!(set.levels.iter().flatten().all(|word| word.load(Ordering::Relaxed) == 0));
            assert_eq!(set.next_set(u64::MAX), None);
        }
    }
}
