//! Counters that cost a client's request one uncontended add: a lane for each thread, summed when read.
//!
//! Threads have numbers, the lowest that are free when they first ask, so that those that come and go use few. Lanes are
//! made in blocks, 16 and then twice as many each time, as threads with such numbers come to count.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, Ordering, Unseen};

/// Lanes of the first block.
const LANES: usize = 16;

/// Enough for 2032 threads; those beyond share lanes.
const BLOCKS: usize = 7;
const LANES_MAX: usize = LANES * ((1 << BLOCKS) - 1);

/// Numbers of threads: the lowest that was never given, and those that came back.
struct Numbers {
    next: usize,
    free: BTreeSet<usize>,
}

static NUMBERS: Unseen<Numbers> = Unseen::new(Numbers { next: 0, free: BTreeSet::new() });

/// A thread's number, given back when the thread ends.
struct Number(usize);

impl Number {
    fn take() -> Self {
        let mut numbers = NUMBERS.lock();
        let free = numbers.free.pop_first();
        Self(free.unwrap_or_else(|| {
            numbers.next += 1;
            numbers.next - 1
        }))
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        let first = NUMBERS.lock().free.insert(self.0);
        assert!(first, "the number {} of a thread was given back twice", self.0);
    }
}

/// Not asked for yet.
const NO_LANE: usize = usize::MAX;

thread_local! {
    static NUMBER: Number = Number::take();
    static LANE: Cell<usize> = const { Cell::new(NO_LANE) };
}

/// A small number that no other running thread has: where to begin looking in anything that is cut into one piece for each
/// thread. A thread that is ending may get another's.
pub fn lane() -> usize {
    match LANE.get() {
        NO_LANE => first_lane(),
        lane => lane,
    }
}

#[cold]
fn first_lane() -> usize {
    let lane = NUMBER.try_with(|number| number.0).unwrap_or(0);
    LANE.set(lane);
    lane
}

/// The calling thread stands for that one of a simulated machine, so that what depends on threads follows from the seed.
pub fn stand_for(lane: usize) {
    LANE.set(lane);
}

type Lane<const N: usize> = CachePadded<[AtomicU64; N]>;

/// A set of `N` counters. Each may be added to and taken from by any thread; sums wrap as `u64`, so that a value added on
/// one thread may be taken away on another.
pub struct Counters<const N: usize> {
    first: Box<[Lane<N>]>,
    more: [OnceLock<Box<[Lane<N>]>>; BLOCKS - 1],
}

fn lanes<const N: usize>(count: usize) -> Box<[Lane<N>]> {
    (0..count).map(|_| CachePadded::new([const { AtomicU64::new(0) }; N])).collect()
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        Self { first: lanes(LANES), more: [const { OnceLock::new() }; BLOCKS - 1] }
    }
}

impl<const N: usize> Counters<N> {
    fn own(&self) -> &[AtomicU64; N] {
        let number = lane();
        match self.first.get(number) {
            Some(lane) => lane,
            None => self.of_later(number % LANES_MAX),
        }
    }

    /// The lane of a number beyond the first block, or of one that wrapped around.
    #[cold]
    fn of_later(&self, number: usize) -> &[AtomicU64; N] {
        let block = (number / LANES + 1).ilog2() as usize;
        let first = LANES * ((1 << block) - 1);
        match block.checked_sub(1) {
            None => &self.first[number],
            Some(index) => &self.more[index].get_or_init(|| lanes(LANES << block))[number - first],
        }
    }

    fn all(&self) -> impl Iterator<Item = &[AtomicU64; N]> {
        let more = self.more.iter().filter_map(|block| block.get()).flatten();
        self.first.iter().chain(more).map(|lane| &**lane)
    }

    /// Adds `amount` to counter `index`.
    pub fn add(&self, index: usize, amount: u64) {
        self.own()[index].fetch_add(amount, Ordering::Relaxed);
    }

    /// Adds to each counter, or takes from it by adding a number that wraps; what adds nothing costs nothing.
    pub fn add_each(&self, amounts: [u64; N]) {
        let own = self.own();
        for (counter, amount) in own.iter().zip(amounts) {
            if amount != 0 {
                counter.fetch_add(amount, Ordering::Relaxed);
            }
        }
    }

    /// Takes `amount` from counter `index`.
    pub fn sub(&self, index: usize, amount: u64) {
        self.own()[index].fetch_sub(amount, Ordering::Relaxed);
    }

    /// The sum over all threads. Exact once the threads rest; meanwhile possibly a little old.
    pub fn sum(&self, index: usize) -> u64 {
        let sum = self.all().fold(0u64, |sum, lane| sum.wrapping_add(lane[index].load(Ordering::Relaxed)));
        // A reader that catches an add and misses a sub, or the reverse, must not see a number near 2^64.
        if sum > u64::MAX / 2 { 0 } else { sum }
    }

    /// Whether what was added to counter `index` was taken away again: so many adds that the caller sees were followed by subs.
    pub fn is_zero(&self, index: usize) -> bool {
        self.all().fold(0u64, |sum, lane| sum.wrapping_add(lane[index].load(Ordering::Relaxed))) == 0
    }

    /// Sets every counter to zero.
    pub fn clear(&self) {
        self.all().flatten().for_each(|counter| counter.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_exact_across_threads() {
        let counters = Counters::<2>::default();
        std::thread::scope(|scope| {
            for _ in 0..20 {
                scope.spawn(|| (0..1000).for_each(|_| counters.add(1, 3)));
            }
            scope.spawn(|| (0..1000).for_each(|_| counters.sub(1, 2)));
        });
        assert_eq!((counters.sum(0), counters.sum(1)), (0, 20 * 3000 - 2000));
        counters.clear();
        assert_eq!(counters.sum(1), 0);
    }

    #[test]
    fn threads_that_run_together_have_lanes_of_their_own() {
        const THREADS: usize = 40;
        let counters = Counters::<1>::default();
        let all_here = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    all_here.wait();
                    counters.add(0, 1);
                    all_here.wait();
                });
            }
        });
        assert_eq!(counters.sum(0), THREADS as u64);
        assert!(counters.all().all(|lane| lane[0].load(Ordering::Relaxed) <= 1), "two threads shared a lane");
    }

    #[test]
    fn every_number_has_a_lane() {
        let counters = Counters::<1>::default();
        for number in 0..LANES_MAX {
            counters.of_later(number)[0].fetch_add(1, Ordering::Relaxed);
        }
        assert!(counters.all().all(|lane| lane[0].load(Ordering::Relaxed) == 1));
        assert_eq!(counters.all().count(), LANES_MAX);
    }

    #[test]
    fn a_thread_that_ended_leaves_its_number_to_the_next() {
        let most = (0..200).map(|_| std::thread::spawn(lane).join().expect("it only looks")).max();
        assert!(most < Some(150), "{most:?} is the highest number of 200 threads one after the other");
    }
}
