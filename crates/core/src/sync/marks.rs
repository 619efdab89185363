//! A set of numbers that many put in and one walks.

use super::primitives::{AtomicU64, Ordering};
use crate::mutant;

/// Bits of a word.
const BITS: usize = 64;

/// Numbers below a bound, a bit each, under a tree of summaries: a bit of a summary says that a word below may have one.
///
/// Any thread marks and unmarks, without a lock: a few loads and at most one atomic operation a level. One walker at a time looks
/// for the next number; it takes summaries out where it finds nothing below them. What is marked before a look begins is found
/// by it.
///
/// Why no mark is lost: who marks sets the word, then the summaries; the walker takes a summary out, then looks at the word once
/// more. Whichever is later sees the other.
#[derive(Default)]
pub struct Marks {
    /// Words of the numbers themselves, then of summaries, up to a level of one word.
    levels: Vec<Box<[AtomicU64]>>,
}

/// Words of each level for numbers below `bound`.
fn level_words(bound: u64) -> impl Iterator<Item = usize> {
    let words = |count: usize| count.div_ceil(BITS);
    let first = Some(words(bound as usize)).filter(|&count| count > 0);
    std::iter::successors(first, move |&count| (count > 1).then(|| words(count)))
}

impl Marks {
    /// An empty set for numbers below `bound`.
    pub fn new(bound: u64) -> Self {
        let level = |words| (0..words).map(|_| AtomicU64::new(0)).collect();
        Self { levels: level_words(bound).map(level).collect() }
    }

    /// Bytes that a set for numbers below `bound` takes.
    pub fn bytes(bound: u64) -> u64 {
        level_words(bound).map(|words| (words * size_of::<AtomicU64>()) as u64).sum()
    }

    /// The same numbers, with room for all below `bound`. Panics where one is not below it.
    pub fn resized(&mut self, bound: u64) -> Self {
        assert_eq!(self.next(bound), None, "no number is behind the new bound");
        let set = Self::new(bound);
        let mut at = 0;
        while let Some(number) = self.next(at) {
            set.mark(number);
            at = number + 1;
        }
        set
    }

    /// Puts `number` in. Panics where it is not below the bound.
    pub fn mark(&self, number: u64) {
        let mut at = number as usize;
        for words in &self.levels {
            Self::set(&words[at / BITS], 1 << (at % BITS));
            at /= BITS;
        }
    }

    fn set(word: &AtomicU64, bit: u64) {
        // Every level is looked at, also where a bit is there: another thread may be between two of them.
        if word.load(Ordering::SeqCst) & bit == 0 {
            word.fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Takes `number` out. Panics where it is not below the bound.
    pub fn unmark(&self, number: u64) {
        let at = number as usize;
        self.levels[0][at / BITS].fetch_and(!(1 << (at % BITS)), Ordering::SeqCst);
    }

    /// Whether `number` is in. Panics where it is not below the bound.
    pub fn has(&self, number: u64) -> bool {
        let at = number as usize;
        self.levels[0][at / BITS].load(Ordering::SeqCst) >> (at % BITS) & 1 == 1
    }

    /// The first number from `from` on. One thread at a time.
    pub fn next(&self, from: u64) -> Option<u64> {
        let (mut at, mut level) = (usize::try_from(from).ok()?, 0);
        loop {
            let word = self.levels.get(level)?.get(at / BITS)?.load(Ordering::SeqCst) >> (at % BITS);
            if word == 0 {
                // Behind this word, a level higher.
                (at, level) = (at / BITS + 1, level + 1);
                continue;
            }
            at += word.trailing_zeros() as usize;
            if level == 0 {
                assert!(at as u64 >= from, "a walk from {from} on goes back to {at}");
                return Some(at as u64);
            }
            level -= 1;
            self.prune(level, at);
            at *= BITS;
        }
    }

    /// Takes out what says that word `at` of `level` may have bits, if it has none.
    fn prune(&self, level: usize, at: usize) {
        let word = &self.levels[level][at];
        if word.load(Ordering::SeqCst) != 0 {
            return;
        }
        let (summary, bit) = (&self.levels[level + 1][at / BITS], 1 << (at % BITS));
        summary.fetch_and(!bit, Ordering::SeqCst);
        if word.load(Ordering::SeqCst) != 0 && !mutant::on("marks: take a summary out without looking again")
        {
            summary.fetch_or(bit, Ordering::SeqCst);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use crate::sync::primitives::AtomicUsize;
    use shuttle::thread;
    use std::sync::Arc;

    /// Three mark numbers, two of them in one word, whose summaries are there and stale, while one walks.
    fn walk() {
        let marks = Arc::new((Marks::new(200), AtomicUsize::new(0)));
        for number in [66, 129] {
            marks.0.mark(number);
            marks.0.unmark(number);
        }
        let threads = [65, 130, 131].map(|number| {
            let marks = marks.clone();
            thread::spawn(move || {
                marks.0.mark(number);
                marks.1.fetch_add(1, Ordering::SeqCst);
            })
        });
        let look = || {
            let (at_least, mut found, mut at) = (marks.1.load(Ordering::SeqCst), 0, 0);
            while let Some(number) = marks.0.next(at) {
                (at, found) = (number + 1, found + 1);
            }
            assert!(found >= at_least, "{found} of {at_least} were found");
            found
        };
        (0..2).for_each(|_| _ = look());
        threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
        assert_eq!(look(), 3);
    }

    #[test]
    fn what_is_marked_is_found() {
        every_order(20_000, walk);
    }

    #[test]
    fn the_checker_finds_a_walk_that_forgets_a_mark() {
        finds("marks: take a summary out without looking again", what_is_marked_is_found);
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
            let (mut marks, mut model, mut random) = (Marks::new(bound), BTreeSet::new(), Random(bound + 1));
            let bytes: u64 = marks.levels.iter().map(|words| 8 * words.len() as u64).sum();
            assert_eq!(Marks::bytes(bound), bytes);
            for _ in 0..if bound == 0 { 0 } else { 3000 } {
                let (number, from) = (random.draw() % bound, random.draw() % (bound + 2));
                if random.draw().is_multiple_of(2) {
                    marks.mark(number);
                    model.insert(number);
                } else {
                    let gone = model.range(number..).next().copied().unwrap_or(number);
                    marks.unmark(gone);
                    model.remove(&gone);
                }
                assert_eq!(marks.has(number), model.contains(&number));
                assert_eq!(marks.next(from), model.range(from..).next().copied(), "from {from} of {bound}");
            }
            for other in [0, 64, 5000, 300_000].map(|more| bound + more) {
                let other = marks.resized(other);
                let found = std::iter::successors(other.next(0), |at| other.next(at + 1));
                assert!(found.eq(model.iter().copied()), "from {bound}");
            }
            model.iter().for_each(|&number| marks.unmark(number));
            assert_eq!((marks.next(0), marks.next(u64::MAX)), (None, None));
            // A look takes out what it finds empty; that may empty the summary above.
            marks.levels.iter().for_each(|_| assert_eq!(marks.next(0), None));
            let left = marks.levels.iter().flatten().filter(|word| word.load(Ordering::Relaxed) != 0).count();
            // A look does not come to the summaries of the word in which it begins.
            assert!(left < marks.levels.len().max(1), "{left} summaries of nothing were not taken out");
        }
    }
}
