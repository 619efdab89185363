//! What the clients of an export did, counted by each session for itself and published now and then.

use bytemuck::{Pod, Zeroable};
use serde::{Deserialize, Serialize};
use spillway_core::Op;
use spillway_core::stats::Counters;

/// Answered requests of an export since it was made, in requests and bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Pod, Zeroable)]
pub struct Statistics {
    /// Reads.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Zeroings.
    pub write_zeroes: u64,
    /// Everything else, such as questions about extents.
    pub others: u64,
    /// Requests of any kind answered with an error; not counted above.
    pub errors: u64,
}

impl Statistics {
    /// Counts a request that was answered: `op` is what a device was asked for, absent for anything else, and `bytes` what it
    /// read or wrote, absent where it failed.
    #[inline]
    pub(crate) fn count(&mut self, op: Option<Op>, bytes: Option<u64>) {
        let Some(bytes) = bytes else { return self.errors += 1 };
        match op {
            Some(Op::Read) => {
                self.reads += 1;
                self.read_bytes += bytes;
            }
            Some(Op::Write) => {
                self.writes += 1;
                self.write_bytes += bytes;
            }
            Some(Op::Flush) => self.flushes += 1,
            Some(Op::Discard) => self.discards += 1,
            Some(Op::WriteZeroes) => self.write_zeroes += 1,
            None => self.others += 1,
        }
    }
}

const COUNTERS: usize = size_of::<Statistics>() / size_of::<u64>();

/// The counts of an export.
#[derive(Default)]
pub(crate) struct Counts(Counters<COUNTERS>);

impl Counts {
    /// Counts one request, as [`Statistics::count`] does.
    pub(crate) fn count(&self, op: Option<Op>, bytes: Option<u64>) {
        let mut one = Statistics::default();
        one.count(op, bytes);
        self.publish(&mut one);
    }

    /// Adds what a session has counted since it did so before.
    pub(crate) fn publish(&self, counted: &mut Statistics) {
        self.0.add_each(bytemuck::cast(std::mem::take(counted)));
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let sums: [u64; COUNTERS] = std::array::from_fn(|counter| self.0.sum(counter));
        bytemuck::cast(sums)
    }
}
