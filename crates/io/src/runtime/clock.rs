//! Time that is exact, and time that is cheap.

use std::time::{Duration, Instant};

use spillway_core::sync::{AtomicU64, Ordering};

/// How often the coarse clock is set: half of what is promised for its age, so that a late tick does not break the promise.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// A monotonic clock, and a copy of it that costs one load.
pub(crate) struct Clock {
    start: Instant,
    coarse_ns: AtomicU64,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), coarse_ns: AtomicU64::new(0) }
    }

    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn coarse_now(&self) -> Duration {
        Duration::from_nanos(self.coarse_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn tick(&self) {
        self.coarse_ns.store(self.now().as_nanos() as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_coarse_clock_follows_its_ticks_only() {
        let clock = Clock::new();
        assert_eq!(clock.coarse_now(), Duration::ZERO);
        clock.tick();
        let coarse = clock.coarse_now();
        assert!(coarse > Duration::ZERO && coarse <= clock.now());
    }
}
