//! What passes from a layer to the part below it: each request is timed, and the bytes are counted.

use std::sync::Arc;

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{BlockDevice, Env, Latencies, Op, OperationLatency, Request, Submission, forward};

/// The part below a layer, as the layer sees it.
pub struct Passed {
    below: Arc<dyn BlockDevice>,
    latencies: Arc<Latencies>,
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
}

impl Passed {
    pub(crate) fn new(below: Arc<dyn BlockDevice>, env: Arc<dyn Env>) -> Self {
        Self {
            below,
            latencies: Latencies::new(env),
            read_bytes: AtomicU64::new(0),
            write_bytes: AtomicU64::new(0),
        }
    }

    /// Bytes of reads, also of those that failed.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of writes, also of those that failed. Zeroes that are written without data do not count.
    pub fn write_bytes(&self) -> u64 {
        self.write_bytes.load(Ordering::Relaxed)
    }

    /// How long requests took, of each operation that was asked for.
    pub fn latencies(&self) -> Vec<OperationLatency> {
        self.latencies.shown()
    }
}

impl BlockDevice for Passed {
    forward!(below: geometry, extents, verify);

    fn submit(&self, request: Request) -> Submission {
        let op = request.op;
        match op {
            Op::Read => _ = self.read_bytes.fetch_add(request.range.len, Ordering::Relaxed),
            Op::Write => _ = self.write_bytes.fetch_add(request.range.len, Ordering::Relaxed),
            Op::Flush | Op::Discard | Op::WriteZeroes => {}
        }
        self.latencies.timed(op, || self.below.submit(request))
    }
}

#[cfg(test)]
mod tests {
    use spillway_core::{ByteRange, IoBuf};
    use spillway_sim::world::World;

    use super::*;
    use crate::small::delay::{self, Delay};
    use crate::small::null::{self, Null};

    #[test]
    fn every_request_is_timed_and_bytes_count_by_direction() {
        let world = World::new(1);
        let null = Null::new(&null::Config { size: 1 << 20 }).unwrap();
        let slow = delay::Config { read_us: 100, ..delay::Config::default() };
        let passed = Passed::new(Delay::new(&slow, null, world.clone()).unwrap(), world.clone());
        let ask = |request| world.run(passed.submit(request)).result;
        for _ in 0..3 {
            ask(Request::read(0, IoBuf::new(8192))).unwrap();
        }
        ask(Request::write(4096, IoBuf::zeroed(4096))).unwrap();
        ask(Request::bare(Op::WriteZeroes, ByteRange::new(0, 65536))).unwrap();
        assert_eq!((passed.read_bytes(), passed.write_bytes()), (3 * 8192, 4096));
        let seen: Vec<_> = passed
            .latencies()
            .iter()
            .map(|one| (one.operation, one.seconds, one.counts.iter().sum()))
            .collect();
        assert_eq!(seen, [("read", 300e-6, 3u64), ("write", 0.0, 1), ("write_zeroes", 0.0, 1)]);
    }
}
