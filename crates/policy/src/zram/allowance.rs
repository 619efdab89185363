//! How many bytes a day may be written to a device that wears out: a bucket of tokens that fills all day long, so that a day's bytes
//! cannot be spent at once.
//!
//! The bucket holds the share of an hour and is full at first. The rest of the day's bytes flows in at an even rate, so that no 24 hours
//! see more than the day's bytes, but for what was in flight when the bucket ran dry: that is a debt, paid first.

use std::time::Duration;

/// Parts of a day that the bucket holds one of.
const PARTS: u64 = 24;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Bytes that may be written. Callers pass the time.
#[derive(Clone, Debug, Default)]
pub struct Allowance {
    /// Bytes a day; 0 for no limit.
    daily: u64,
    /// What is left, less than nothing in debt.
    left: i128,
    /// Up to when the bucket was filled.
    at: Duration,
}

impl Allowance {
    /// Allows `daily` bytes a day from now on, 0 for any number; a bucket that was not limited is full.
    pub fn limit(&mut self, now: Duration, daily: u64) {
        if daily == self.daily {
            return;
        }
        self.fill(now);
        let holds = i128::from(holds(daily));
        self.left = if self.daily == 0 { holds } else { self.left.min(holds) };
        (self.daily, self.at) = (daily, now);
    }

    /// So many bytes were written.
    pub fn spend(&mut self, now: Duration, bytes: u64) {
        if self.daily > 0 {
            self.fill(now);
            self.left -= i128::from(bytes);
        }
    }

    /// Bytes that may be written now.
    pub fn left(&mut self, now: Duration) -> u64 {
        if self.daily == 0 {
            return u64::MAX;
        }
        self.fill(now);
        u64::try_from(self.left.max(0)).expect("a bucket holds less than a day's bytes")
    }

    /// Time from now until `bytes` may be written, or as many as the bucket holds.
    pub fn wait(&mut self, now: Duration, bytes: u64) -> Duration {
        if self.daily == 0 {
            return Duration::ZERO;
        }
        self.fill(now);
        let missing = i128::from(bytes.min(holds(self.daily))) - self.left;
        let missing = u128::try_from(missing.max(0)).expect("not negative");
        let nanos = (missing * DAY.as_nanos()).div_ceil(u128::from(self.flows()));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Bytes that flow in each day, at least one.
    fn flows(&self) -> u64 {
        (self.daily - holds(self.daily)).max(1)
    }

    fn fill(&mut self, now: Duration) {
        if self.daily == 0 || now <= self.at {
            return;
        }
        let bytes = (now - self.at).as_nanos() * u128::from(self.flows()) / DAY.as_nanos();
        if bytes == 0 {
            // Too soon to count: the time is kept for the next look.
            return;
        }
        // Only the time that these bytes took: fractions are not lost, however often it is asked.
        let took = (bytes * DAY.as_nanos()).div_ceil(u128::from(self.flows()));
        self.at += Duration::from_nanos(u64::try_from(took).unwrap_or(u64::MAX));
        let left = self.left.saturating_add(i128::try_from(bytes).unwrap_or(i128::MAX));
        self.left = left.min(i128::from(holds(self.daily)));
    }
}

/// Bytes that the bucket holds.
fn holds(daily: u64) -> u64 {
    daily.div_ceil(PARTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECS: fn(u64) -> Duration = Duration::from_secs;
    const GIB: u64 = 1 << 30;

    fn limited(daily: u64) -> Allowance {
        let mut allowance = Allowance::default();
        allowance.limit(SECS(1000), daily);
        allowance
    }

    #[test]
    fn without_a_limit_nothing_is_counted() {
        let mut allowance = Allowance::default();
        allowance.spend(SECS(1), u64::MAX);
        assert_eq!((allowance.left(SECS(1)), allowance.wait(SECS(1), 5)), (u64::MAX, SECS(0)));
        allowance.limit(SECS(2), 24 * GIB);
        assert_eq!(allowance.left(SECS(2)), GIB, "what was written before is not owed");
        allowance.spend(SECS(2), GIB);
        allowance.limit(SECS(2), 0);
        assert_eq!(allowance.left(SECS(2)), u64::MAX);
    }

    #[test]
    fn an_hours_share_is_there_at_once_and_the_rest_comes_evenly() {
        let mut allowance = limited(24 * GIB);
        assert_eq!(allowance.left(SECS(1000)), GIB);
        allowance.spend(SECS(1000), GIB + 100);
        assert_eq!(allowance.left(SECS(1000)), 0);
        let wait = allowance.wait(SECS(1000), 1 << 20);
        assert_eq!(allowance.left(SECS(1000) + wait), 1 << 20, "after {wait:?}");
        let (noon, midnight) =
            (allowance.clone().left(SECS(1000 + 1800)), allowance.left(SECS(1000 + 90_000)));
        assert!(noon.abs_diff(GIB / 48 * 23) < GIB / 100, "{noon} after half an hour");
        assert_eq!(midnight, GIB, "no more than the bucket holds");
    }

    #[test]
    fn a_limit_that_changes_gives_nothing_for_nothing() {
        let mut allowance = limited(24 * GIB);
        allowance.spend(SECS(1000), GIB);
        allowance.limit(SECS(1000), 240 * GIB);
        assert_eq!(allowance.left(SECS(1000)), 0);
        allowance.limit(SECS(90_000), 24);
        assert_eq!(allowance.left(SECS(90_000)), 1);
        assert!(allowance.left(SECS(1_000_000)) <= 1);
    }

    proptest! {
        /// A writer that writes as soon as it may gets a day's bytes in any 24 hours, neither more nor much less,
        /// however often it looks.
        #[test]
        fn a_day_sees_a_days_bytes(daily in 24u64..1 << 40, pauses in prop::collection::vec(0u64..7200, 20..200)) {
            let (mut allowance, mut now, mut written) = (limited(daily), SECS(1000), Vec::new());
            for millis in pauses.iter().cycle().map(|pause| pause * 1000 + 1) {
                let bytes = allowance.left(now);
                allowance.spend(now, bytes);
                written.push((now, bytes));
                now += Duration::from_millis(millis);
                if now > SECS(1000) + 2 * DAY || written.len() > 5000 {
                    break;
                }
            }
            for &(from, _) in &written {
                let sum: u64 = written.iter().filter(|(at, _)| (from..from + DAY).contains(at)).map(|(_, bytes)| bytes).sum();
                prop_assert!(sum <= daily, "{sum} of {daily} bytes from {from:?} on");
            }
        }
    }
}
