//! How long requests take, lately.

use std::time::Duration;

use spillway_core::Op;
use spillway_core::sync::{AtomicU64, Ordering};

/// Each request counts for one part in so many of the average.
const PARTS: u64 = 8;

/// A moving average. Of two requests that end at once one may not count.
#[derive(Default)]
pub(super) struct MeanLatency {
    nanos: AtomicU64,
}

impl MeanLatency {
    fn note(&self, taken: Duration) {
        let taken = u64::try_from(taken.as_nanos()).unwrap_or(u64::MAX).max(1);
        let before = self.nanos.load(Ordering::Relaxed);
        let now = if before == 0 { taken } else { before - before / PARTS + taken / PARTS };
        self.nanos.store(now, Ordering::Relaxed);
    }

    /// Whole microseconds; 0 before the first request.
    pub(super) fn micros(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed) / 1000
    }
}

/// Those of requests that people ask about.
#[derive(Default)]
pub(super) struct MeanLatencies {
    pub(super) read: MeanLatency,
    pub(super) write: MeanLatency,
    pub(super) flush: MeanLatency,
}

impl MeanLatencies {
    /// Counts a request that was carried out.
    pub(super) fn note(&self, op: Op, taken: Duration) {
        match op {
            Op::Read => self.read.note(taken),
            Op::Write => self.write.note(taken),
            Op::Flush => self.flush.note(taken),
            Op::WriteZeroes | Op::Discard => {}
        }
    }
}
