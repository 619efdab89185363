//! What is counted. The first ten are dm-writecache's, in its order; ours count blocks throughout, where the kernel counts hits by piece.

use spillway_core::stats::Counters;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    Reads,
    ReadHits,
    Writes,
    HitsUncommitted,
    HitsCommitted,
    Bypassed,
    Allocated,
    Blocked,
    Flushes,
    Discards,
    /// Superblocks written.
    Commits,
    /// Requests that wrote to the cache, and the I/Os they took.
    CacheWrites,
    Pieces,
    /// Writes of cached blocks to the origin, and these blocks.
    WritebackIos,
    WrittenBack,
}

const KINDS: usize = Count::WrittenBack as usize + 1;

/// All of them.
#[derive(Default)]
pub(crate) struct Counts(Counters<KINDS>);

impl Counts {
    pub(crate) fn add(&self, count: Count, amount: u32) {
        self.0.add(count as usize, u64::from(amount));
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.0.sum(count as usize)
    }

    /// The first ten, in the order of the kernel's status line.
    pub(crate) fn kernels(&self) -> impl Iterator<Item = u64> {
        (0..=Count::Discards as usize).map(|count| self.0.sum(count))
    }

    pub(crate) fn clear(&self) {
        self.0.clear();
    }
}
