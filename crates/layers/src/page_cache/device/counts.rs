//! What is counted of requests and of the device below. What happens to folios their shards count.

use spillway_core::stats::Counters;

/// A counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    /// Bytes that clients read which were not in memory.
    MissedBytes,
    /// Bytes that clients wrote.
    WriteBytes,
    /// Bytes written back, and the writes that took.
    WrittenBytes,
    WritebackIos,
    /// Writes that waited, for dirty blocks to become fewer or for memory.
    Blocked,
    /// Writes that were slowed down before it came to that.
    Throttled,
    Flushes,
    /// Folios that requests evicted, because none was free.
    EvictedDirectly,
    /// Reads of the device below whose content found no memory to stay in.
    Uncached,
    /// Blocks that reclaim has written.
    #[cfg(feature = "of-2011")]
    ReclaimWrites,
    /// Bytes read ahead.
    AheadBytes,
}

const KINDS: usize = Count::AheadBytes as usize + 1;

/// A counter that each zone has: of the folios there that a request meets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InZone {
    /// Bytes that clients read which were in memory, and which were not and are kept from then on.
    HitBytes,
    MissedBytes,
    /// Folios read ahead that were read, and that left memory unread.
    AheadUsed,
    AheadWasted,
    /// Microseconds by which writes were slowed down, where the last of what they dirtied is.
    PausedMicros,
}

const KINDS_IN_ZONE: usize = InZone::PausedMicros as usize + 1;

/// All of them.
pub(crate) struct Counts {
    of_all: Counters<KINDS>,
    in_zones: Box<[Counters<KINDS_IN_ZONE>]>,
}

impl Counts {
    pub(crate) fn new(zones: usize) -> Self {
        Self { of_all: Counters::default(), in_zones: (0..zones).map(|_| Counters::default()).collect() }
    }

    pub(crate) fn add(&self, count: Count, amount: u64) {
        self.of_all.add(count as usize, amount);
    }

    pub(crate) fn get(&self, count: Count) -> u64 {
        self.of_all.sum(count as usize)
    }

    #[inline]
    pub(crate) fn add_in(&self, zone: u8, count: InZone, amount: u64) {
        self.in_zones[usize::from(zone)].add(count as usize, amount);
    }

    pub(crate) fn get_in(&self, zone: usize, count: InZone) -> u64 {
        self.in_zones[zone].sum(count as usize)
    }

    /// Of all zones.
    pub(crate) fn sum(&self, count: InZone) -> u64 {
        (0..self.in_zones.len()).map(|zone| self.get_in(zone, count)).sum()
    }
}
