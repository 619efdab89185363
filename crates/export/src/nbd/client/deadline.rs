//! How long a request may be without answer before its connection counts as lost.

use std::time::Duration;

use spillway_core::sync::{AtomicU64, Ordering};

/// The first, where no timeout is shorter. Doubles each time: a server may be as slow as that.
const DEADLINE: Duration = Duration::from_secs(120);

/// How many times slower than its first deadline a server may be.
pub(super) const SLOWER_MAX: u32 = 8;

/// See the head of this file.
pub(super) struct Deadline {
    ms: AtomicU64,
    timeout: Option<Duration>,
}

impl Deadline {
    /// Of calls that wait for so long.
    pub(super) fn new(timeout: Option<Duration>) -> Self {
        let deadline = Self { ms: AtomicU64::new(0), timeout };
        deadline.set(deadline.first(true));
        deadline
    }

    pub(super) fn get(&self) -> Duration {
        Duration::from_millis(self.ms.load(Ordering::Relaxed))
    }

    /// A server was slower. Where calls wait for a limited time, so does this: it begins anew.
    pub(super) fn extend(&self, waits: bool) {
        let (twice, most) = (self.get().saturating_mul(2), self.most(waits));
        self.set(match twice <= most {
            true => twice,
            false if waits && self.timeout.is_some() => self.first(true),
            false => most,
        });
    }

    /// Calls that wait are sent from now on.
    pub(super) fn limit(&self) {
        self.set(self.get().min(self.most(true)));
    }

    fn first(&self, waits: bool) -> Duration {
        self.timeout.filter(|_| waits).map_or(DEADLINE, |timeout| timeout.min(DEADLINE))
    }

    /// A stop waits for what is sent again while calls fail: that has an end too.
    fn most(&self, waits: bool) -> Duration {
        self.timeout.map_or(Duration::MAX, |_| self.first(waits) * SLOWER_MAX)
    }

    fn set(&self, deadline: Duration) {
        self.ms.store(deadline.as_millis() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While calls fail, what is sent again may take longer; not once there are calls that wait.
    #[test]
    fn a_server_that_was_slow_for_long_has_eight_times_the_limit_once_it_is_back() {
        let second = Duration::from_secs(1);
        let limited = Deadline::new(Some(second));
        (0..20).for_each(|_| limited.extend(false));
        assert_eq!(limited.get(), 8 * 120 * second);
        limited.limit();
        assert_eq!(limited.get(), 8 * second);
        limited.extend(true);
        assert_eq!(limited.get(), second, "it begins anew");
        let patient = Deadline::new(None);
        (0..20).for_each(|_| patient.extend(true));
        assert_eq!(patient.get(), (120 << 20) * second, "a server may take as long as it does");
    }
}
