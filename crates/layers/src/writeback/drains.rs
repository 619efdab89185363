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
pub(super) struct Lap {
    /// Calls numbered below it came before the lap: its failure is their answer.
    pub(super) before: u64,
    pub(super) left: u64,
    pub(super) failed: Option<Kind>,
}

impl Lap {
    /// Whether all was tried, and nothing has failed.
    pub(super) fn has_succeeded(&self) -> bool {
        self.left == 0 && self.failed.is_none()
    }
}
