//! Counters that cost a client's request one uncontended add: a lane for each thread, summed when read.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU64, AtomicUsize, Ordering};

const LANES: usize = 16;

static NEXT_LANE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static LANE: usize = NEXT_LANE.fetch_add(1, Ordering::Relaxed) % LANES;
}

/// A small number that differs between the threads of a process as long as there are at most 16: where to begin looking
/// in anything that is cut into one piece for each thread.
pub fn lane() -> usize {
    LANE.with(|lane| *lane)
}

/// A set of `N` counters. Each may be added to and taken from by any thread; sums wrap as `u64`, so that a value added on
/// one thread may be taken away on another.
pub struct Counters<const N: usize> {
    lanes: Box<[CachePadded<[AtomicU64; N]>]>,
}

impl<const N: usize> Default for Counters<N> {
    fn default() -> Self {
        let lane = || CachePadded::new([const { AtomicU64::new(0) }; N]);
        Self { lanes: (0..LANES).map(|_| lane()).collect() }
    }
}

impl<const N: usize> Counters<N> {
    /// Adds `amount` to counter `index`.
    pub fn add(&self, index: usize, amount: u64) {
        self.lanes[lane()][index].fetch_add(amount, Ordering::Relaxed);
    }

    /// Takes `amount` from counter `index`.
    pub fn sub(&self, index: usize, amount: u64) {
        self.lanes[lane()][index].fetch_sub(amount, Ordering::Relaxed);
    }

    /// The sum over all threads. Exact once the threads rest; meanwhile possibly a little old.
    pub fn sum(&self, index: usize) -> u64 {
        let sum =
            self.lanes.iter().fold(0u64, |sum, lane| sum.wrapping_add(lane[index].load(Ordering::Relaxed)));
        // A reader that catches an add and misses a sub, or the reverse, must not see a number near 2^64.
        if sum > u64::MAX / 2 { 0 } else { sum }
    }

    /// Sets every counter to zero.
    pub fn clear(&self) {
        self.lanes
            .iter()
            .flat_map(|lane| lane.iter())
            .for_each(|counter| counter.store(0, Ordering::Relaxed));
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
}
