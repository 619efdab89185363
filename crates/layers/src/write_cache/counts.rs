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
    Around,
    Allocated,
    Blocked,
    Flushes,
    Discards,
    /// Superblocks written.
    Commits,
    /// Requests that wrote to the cache, and the I/Os they took.
    CacheWrites,
    Pieces,
    /// Writes of copies to the origin, and their blocks.
    Copies,
    Copied,
}

const KINDS: usize = Count::Copied as usize + 1;

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

    /// `one` for each `other`, to two places; 0 before there is any.
    pub(super) fn ratio(&self, one: Count, other: Count) -> String {
        let (one, other) = (self.get(one) as f64, self.get(other).max(1) as f64);
        format!("{:.2}", one / other)
    }

    pub(super) fn clear(&self) {
        self.0.clear();
    }
}
