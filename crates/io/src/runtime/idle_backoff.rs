//! What a thread does before it sleeps: it lets others run once and, where asked to, looks for news for a while.
//!
//! Where clients and workers share processors, a worker that sleeps as soon as it has answered is woken for nearly every
//! request, and both sides pay for that. Yielding instead lets a client that is ready fill its queue; the worker then finds
//! many requests at once, and nobody had to wake it. With two clients, two workers and two processors that made 160 thousand
//! reads a second 250 thousand. Where nobody else is ready, yielding is in vain and is tried less and less often.
//!
//! Not so while a thread of the background runs: it would take the processor for all of the scheduler's slice, for milliseconds, and a
//! request that arrives meanwhile interrupts nobody, because the worker does not sleep. A worker that sleeps is woken, and that does.
//!
//! A client that has one request in flight waits for a wake of the worker each time. Looking for news instead answers it sooner, at the
//! price of a processor for as long as clients come again within that time; so it is off unless asked for.

use std::time::{Duration, Instant};

/// A yield that took less let nobody run: it is a system call alone.
const OTHERS_RAN: Duration = Duration::from_micros(2);

/// Most sleeps in a row without a yield, after yields in vain.
const SKIPPED_MAX: u32 = 255;

/// When to yield before sleeping.
#[derive(Default)]
pub(crate) struct IdleBackoff {
    yielded: bool,
    skip: u32,
    skip_next: u32,
    /// How long to look for news after work.
    look: Duration,
    /// When that began.
    looks_since: Option<Instant>,
}

impl IdleBackoff {
    /// Looks for news for the time `look` after each piece of work.
    pub(crate) fn looking(look: Duration) -> Self {
        Self { look, ..Self::default() }
    }

    /// Tasks have run since the thread last slept.
    pub(crate) fn worked(&mut self) {
        self.yielded = false;
        self.looks_since = None;
    }

    /// Yields once for each piece of work, where that `pays`. True if a look for news is worth while before sleeping: others ran, or it
    /// is not yet time to sleep.
    pub(crate) fn let_others_run(&mut self, pays: impl FnOnce() -> bool) -> bool {
        let yields = || {
            let start = Instant::now();
            std::thread::yield_now();
            start.elapsed() >= OTHERS_RAN
        };
        let others_ran = pays() && self.back_off(yields);
        others_ran || self.looks(Instant::now, std::thread::yield_now)
    }

    /// Yields as long as it looks: the client may be waiting for this very processor.
    fn looks(&mut self, now: impl FnOnce() -> Instant, let_run: impl FnOnce()) -> bool {
        if self.look.is_zero() {
            return false;
        }
        let now = now();
        let looks = now - *self.looks_since.get_or_insert(now) < self.look;
        if looks {
            let_run();
        }
        looks
    }

    fn back_off(&mut self, others_run: impl FnOnce() -> bool) -> bool {
        if std::mem::replace(&mut self.yielded, true) {
            return false;
        }
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        let ran = others_run();
        self.skip_next = if ran { 0 } else { (self.skip_next * 2 + 1).min(SKIPPED_MAX) };
        self.skip = self.skip_next;
        ran
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Yields among `times`, each after some work.
    fn yields(backoff: &mut IdleBackoff, times: usize, useful: bool) -> usize {
        let mut count = 0;
        for _ in 0..times {
            backoff.worked();
            backoff.back_off(|| {
                count += 1;
                useful
            });
        }
        count
    }

    #[test]
    fn useful_yields_go_on_and_vain_ones_get_rare() {
        let mut backoff = IdleBackoff::default();
        assert_eq!(yields(&mut backoff, 100, true), 100);
        assert_eq!(yields(&mut backoff, 10, false), 3, "the first, the third and the seventh");
        assert!(yields(&mut backoff, 25600, false) <= 110);
        assert!(yields(&mut backoff, 256 + 100, true) >= 100, "one useful yield ends the row");
    }

    #[test]
    fn news_are_looked_for_so_long_after_each_piece_of_work() {
        let start = Instant::now();
        let yields = std::cell::Cell::new(0);
        let looks = |backoff: &mut IdleBackoff, micros| {
            backoff.looks(|| start + Duration::from_micros(micros), || yields.set(yields.get() + 1))
        };
        let mut backoff = IdleBackoff::looking(Duration::from_micros(50));
        assert!(looks(&mut backoff, 0) && looks(&mut backoff, 49));
        assert!(!looks(&mut backoff, 50) && !looks(&mut backoff, 51), "then the thread sleeps");
        assert_eq!(yields.get(), 2, "each look lets others run");
        backoff.worked();
        assert!(looks(&mut backoff, 70) && looks(&mut backoff, 119) && !looks(&mut backoff, 120));
        assert!(!IdleBackoff::default().looks(|| panic!("reads a clock that nobody asked for"), || ()));
    }

    #[test]
    fn where_a_yield_does_not_pay_none_is_made() {
        let mut backoff = IdleBackoff::default();
        assert!(!backoff.let_others_run(|| false));
        assert!(backoff.back_off(|| true), "the one of this piece of work is left");
        backoff.let_others_run(|| true);
        assert!(!backoff.back_off(|| panic!("yields twice for one piece of work")));
    }

    #[test]
    fn without_work_in_between_the_thread_sleeps() {
        let mut backoff = IdleBackoff::default();
        assert!(backoff.back_off(|| true));
        assert!(!backoff.back_off(|| panic!("asked again without work")));
        backoff.worked();
        assert!(backoff.back_off(|| true));
    }
}
