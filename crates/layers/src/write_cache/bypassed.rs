//! What bypasses the cache: ranges in flight, bytes that are not flushed, and what a flush has covered.

use spillway_core::sync::{AtomicU64, GroupFlush, Mutex, Ordering, RangeSet, Work};
use spillway_core::{ByteRange, mutant};
use spillway_policy::window::Window;

use super::block::OriginBlock;

/// What bypasses the cache.
pub(super) struct Bypass {
    /// Ranges of the origin, in blocks. Nothing of them is written back.
    pub(super) ranges: RangeSet,
    /// Bytes in flight and unflushed, and who waits.
    pub(super) window: Mutex<Window>,
    /// Requests that have ended.
    pub(super) ended: AtomicU64,
    /// How many of these a flush has covered.
    pub(super) durable: AtomicU64,
    pub(super) flushes: GroupFlush,
    /// A flush for writes that wait.
    pub(super) flushing: Work,
}

impl Bypass {
    /// One request has ended that no flush has covered: a server that was killed may have acknowledged some.
    pub(super) fn after_another_server() -> Self {
        let forgets = mutant::on("write_cache: forget what bypassed the former process's cache");
        Self {
            ranges: RangeSet::new(usize::MAX),
            window: Mutex::default(),
            ended: AtomicU64::new(u64::from(!forgets)),
            durable: AtomicU64::new(0),
            flushes: GroupFlush::default(),
            flushing: Work::default(),
        }
    }

    /// Whether something that bypasses the cache is at work on a block. One load where nothing is.
    pub(super) fn is_busy(&self, origin: OriginBlock) -> bool {
        !self.ranges.is_empty()
            && self.ranges.overlaps(ByteRange::new(origin.0.into(), 1))
            && !mutant::on("write_cache: write back what is being bypassed")
    }

    /// A request has ended.
    pub(super) fn count_end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}
