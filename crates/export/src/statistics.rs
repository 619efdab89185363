//! What the clients of an export did, counted by each session for itself and published now and then.

use serde::{Deserialize, Serialize};
use spillway_core::stats::Counters;

/// Answered requests of an export since it was made, in requests and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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

/// What is counted, as indices.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Counter {
    Reads,
    ReadBytes,
    Writes,
    WriteBytes,
    Flushes,
    Trims,
    WriteZeroes,
    Others,
    Errors,
}

const COUNTERS: usize = Counter::Errors as usize + 1;

/// The counts of an export.
#[derive(Default)]
pub(crate) struct Counts(Counters<COUNTERS>);

impl Counts {
    pub(crate) fn add(&self, counter: Counter, count: u64) {
        self.0.add(counter as usize, count);
    }

    pub(crate) fn statistics(&self) -> Statistics {
        let sum = |counter: Counter| self.0.sum(counter as usize);
        Statistics {
            reads: sum(Counter::Reads),
            read_bytes: sum(Counter::ReadBytes),
            writes: sum(Counter::Writes),
            write_bytes: sum(Counter::WriteBytes),
            flushes: sum(Counter::Flushes),
            discards: sum(Counter::Trims),
            write_zeroes: sum(Counter::WriteZeroes),
            others: sum(Counter::Others),
            errors: sum(Counter::Errors),
        }
    }
}

/// What a session has counted and not published yet.
#[derive(Default)]
pub(crate) struct Tally([u64; COUNTERS]);

impl Tally {
    #[inline]
    pub(crate) fn add(&mut self, counter: Counter, count: u64) {
        self.0[counter as usize] += count;
    }

    /// Adds what was counted to the export's counts.
    pub(crate) fn publish(&mut self, counts: &Counts) {
        for (index, count) in self.0.iter_mut().enumerate().filter(|(_, count)| **count > 0) {
            counts.0.add(index, std::mem::take(count));
        }
    }
}
