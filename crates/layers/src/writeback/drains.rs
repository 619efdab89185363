//! Calls for a drain and their answers, and its laps.

use std::collections::BTreeMap;

use spillway_core::Kind;

/// Calls for a drain, by number, and their answers.
#[derive(Default)]
pub(super) struct Drains {
    pub(super) next: u64,
    pub(super) calls: BTreeMap<u64, Option<Result<(), Kind>>>,
}

impl Drains {
    pub(super) fn pending(&self) -> bool {
        self.calls.values().any(Option::is_none)
    }

    pub(super) fn answer(&mut self, before: u64, result: Result<(), Kind>) {
        let calls = self.calls.range_mut(..before).map(|(_, answer)| answer);
        calls.filter(|answer| answer.is_none()).for_each(|answer| *answer = Some(result));
    }
}

/// A lap of a drain, which ends once all that was left at its begin was tried.
pub(super) struct DrainLap {
    number: u64,
    /// Calls numbered below it came before the lap: its failure is their answer.
    pub(super) before: u64,
    left: u64,
    /// Its batches that have not ended.
    in_flight: usize,
    pub(super) failed: Option<Kind>,
}

/// Bytes of a batch, the lap that it counted for, and what it came to.
pub(super) type EndedBatch = (u64, u64, Result<(), Kind>);

/// The number of no lap.
pub(super) const NO_LAP: u64 = 0;

impl DrainLap {
    /// One that has so many bytes to try, those in flight included.
    pub(super) fn new(number: u64, before: u64, left: u64) -> Self {
        assert!(number > NO_LAP, "laps are numbered from one on");
        Self { number, before, left, in_flight: 0, failed: None }
    }

    /// Whether something was not tried yet.
    pub(super) fn is_open(&self) -> bool {
        self.left > 0
    }

    /// Whether all was tried, and nothing has failed.
    pub(super) fn has_succeeded(&self) -> bool {
        self.left == 0 && self.in_flight == 0 && self.failed.is_none()
    }

    /// Whether all was tried, and something has failed: nothing is tried twice.
    pub(super) fn is_ending(&self) -> bool {
        self.left == 0 && self.failed.is_some()
    }

    /// A batch begins. The number of the lap that it counts for.
    pub(super) fn begin(&mut self, bytes: u64) -> u64 {
        if self.left == 0 {
            return NO_LAP;
        }
        self.left = self.left.saturating_sub(bytes);
        self.in_flight += 1;
        self.number
    }

    /// A batch that counted for lap `number` has ended. What was in flight when this one began, and has succeeded, needs no other try.
    pub(super) fn end(&mut self, number: u64, bytes: u64, result: Result<(), Kind>) {
        if number == self.number {
            assert!(self.in_flight > 0, "a batch of lap {number} ends that has not begun");
            self.in_flight -= 1;
            self.failed = self.failed.or(result.err());
        } else if result.is_ok() {
            self.left = self.left.saturating_sub(bytes);
        }
    }
}
