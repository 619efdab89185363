//! How calls were answered so far: what a failure further up can be explained by.

use std::time::Duration;

use spillway_core::Kind;

use super::fault::Call;

/// How a disk has answered its calls so far.
#[derive(Clone, Copy, Default)]
pub struct Answers {
    /// When calls of each kind were last answered with an error.
    failed: [Option<Duration>; 4],
    longest: Duration,
}

impl Answers {
    /// A call that began at `begun` is answered at `now`.
    pub(super) fn note(&mut self, call: Call, result: Result<usize, Kind>, begun: Duration, now: Duration) {
        self.longest = self.longest.max(now - begun);
        if result.is_err() {
            self.failed[call as usize] = Some(now);
        }
    }

    /// Whether a call of this kind, or of any, was answered with an error at that moment or later.
    pub fn has_error_since(&self, call: Option<Call>, since: Duration) -> bool {
        match call {
            Some(call) => self.failed[call as usize] >= Some(since),
            None => self.failed.into_iter().any(|at| at >= Some(since)),
        }
    }

    /// The longest that a call took.
    pub fn longest(&self) -> Duration {
        self.longest
    }
}
