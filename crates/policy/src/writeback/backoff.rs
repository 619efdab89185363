//! Exponential backoff after failures.

use std::time::Duration;

/// Delay after the first failure.
pub const FIRST: Duration = Duration::from_millis(10);

/// The longest delay.
pub const LONGEST: Duration = Duration::from_secs(10);

/// How long to wait before the next attempt: twice as long after each failure, not at all after a success. Callers pass the time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Backoff {
    failures: u32,
    until: Duration,
}

impl Backoff {
    /// An attempt has failed. Several that were in flight at the same time count as one.
    pub fn failed(&mut self, now: Duration) {
        if now < self.until {
            return;
        }
        let delay = FIRST.saturating_mul(1 << self.failures.min(20)).min(LONGEST);
        assert!((FIRST..=LONGEST).contains(&delay), "{delay:?} after {} failures", self.failures);
        self.failures += 1;
        self.until = now + delay;
    }

    /// An attempt has succeeded.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Time left before the next attempt.
    pub fn left(&self, now: Duration) -> Duration {
        self.until.saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_longest_and_end_with_a_success() {
        let (mut backoff, mut now, mut delays) = (Backoff::default(), Duration::ZERO, Vec::new());
        for _ in 0..40 {
            backoff.failed(now);
            backoff.failed(now);
            delays.push(backoff.left(now));
            now += backoff.left(now);
        }
        assert_eq!(delays[..4], [1, 2, 4, 8].map(|times| FIRST * times));
        assert!(delays.iter().all(|delay| *delay <= LONGEST) && delays[39] == LONGEST);
        backoff.failed(now);
        backoff.succeeded();
        assert_eq!(backoff.left(now), Duration::ZERO);
        backoff.failed(now);
        assert_eq!(backoff.left(now), FIRST, "it begins anew");
    }
}
