//! Waiting for a condition.

use std::time::{Duration, Instant};

/// How long a condition may take before the test fails: long, because a busy machine is no defect.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at a condition.
const PAUSE: Duration = Duration::from_millis(2);

/// Looks at `condition` until it gives a value; panics with `what` if it never does.
pub fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain: {what}");
        std::thread::sleep(PAUSE);
    }
}
