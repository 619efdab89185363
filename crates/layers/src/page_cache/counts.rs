//! What is counted of requests and of the device below. What happens to folios their shards count.

use spillway_core::stats::Counters;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    /// Bytes that clients read which were in memory, and which were not.
    HitBytes,
    MissedBytes,
    /// Bytes that clients wrote.
    WriteBytes,
    /// Bytes written back, and the writes that took.
    WrittenBytes,
    WritebackIos,
    /// Writes that waited, for dirty blocks to become fewer or for memory.
    Blocked,
    /// Writes that were slowed down before it came to that, and their microseconds.
    Throttled,
    PausedMicros,
    Flushes,
    /// Folios that requests evicted, because none was free.
    EvictedDirectly,
    /// Reads of the device below whose content found no memory to stay in.
    Uncached,
    /// Bytes read ahead; folios of them that were read, and that left memory unread.
    AheadBytes,
    AheadUsed,
    AheadWasted,
}

const KINDS: usize = Count::AheadWasted as usize + 1;

/// All of them.
#[derive(Default)]
pub(super) struct Counts(Counters<KINDS>);

impl Counts {
    pub(super) fn add(&self, count: Count, amount: u64) {
        self.0.add(count as usize, amount);
    }

    pub(super) fn get(&self, count: Count) -> u64 {
        self.0.sum(count as usize)
    }
}
