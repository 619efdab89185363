//! What bypasses the cache: ranges in flight, bytes that are not flushed, and what a flush has covered.

use spillway_core::sync::{AtomicBool, AtomicU64, GroupFlush, Mutex, Ordering, RangeSet, Work};
use spillway_core::{ByteRange, mutant};
use spillway_policy::window::Window;

use crate::write_cache::index::block::OriginBlock;

/// What bypasses the cache.
pub(crate) struct Bypass {
    /// Ranges of the origin, in blocks. Nothing of them is written back.
    pub(crate) ranges: RangeSet,
    /// Write-back has passed over a range since one was let go.
    passed_over: AtomicBool,
    /// Bytes in flight and unflushed, and who waits.
    pub(crate) window: Mutex<Window>,
    /// Requests that have ended.
    pub(crate) ended: AtomicU64,
    /// How many of these a flush has covered.
    pub(crate) durable: AtomicU64,
    pub(crate) flushes: GroupFlush,
    /// A flush for writes that wait.
    pub(crate) flushing: Work,
}

impl Bypass {
    /// One request has ended that no flush has covered: a server that was killed may have acknowledged some.
    pub(crate) fn after_another_server() -> Self {
        let forgets = mutant::on("write_cache: forget what bypassed the former process's cache");
        Self {
            ranges: RangeSet::new(usize::MAX),
            passed_over: AtomicBool::new(false),
            window: Mutex::default(),
            ended: AtomicU64::new(u64::from(!forgets)),
            durable: AtomicU64::new(0),
            flushes: GroupFlush::default(),
            flushing: Work::default(),
        }
    }

    /// Whether something that bypasses the cache is at work on a block, which write-back passes over then. One load where nothing is.
    pub(crate) fn is_busy(&self, origin: OriginBlock) -> bool {
        let held = || self.ranges.overlaps(ByteRange::new(origin.0.into(), 1));
        if self.ranges.is_empty() || mutant::on("write_cache: write back what is being bypassed") || !held() {
            return false;
        }
        // Noted before the look that counts: who lets go of the range after it sees the note.
        self.passed_over.store(true, Ordering::SeqCst);
        mutant::on("write_cache: pass over a range that was let go before the note") || held()
    }

    /// A range was let go: whether write-back has passed over one meanwhile.
    pub(crate) fn was_passed_over(&self) -> bool {
        self.passed_over.swap(false, Ordering::SeqCst)
    }

    /// A request has ended.
    pub(crate) fn count_end(&self) {
        self.ended.fetch_add(1, Ordering::AcqRel);
    }
}
