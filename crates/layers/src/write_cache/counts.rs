//! What is counted. The first ten are dm-writecache's; ours count blocks throughout, where the kernel counts hits by piece.

use spillway_core::stats::Counters;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
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
pub(super) struct Counts(Counters<KINDS>);

impl Counts {
    pub(super) fn add(&self, count: Count, amount: u32) {
        self.0.add(count as usize, u64::from(amount));
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.0.sum(count as usize)
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }
}
