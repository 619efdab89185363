//! What a thread does before it sleeps: it lets others run once, and looks for news where they are likely to come soon.
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
//! price of a processor for as long as it lasts. How long pays is learned from the waits before, as KVM's halt polling does it
//! (Documentation/virt/kvm/halt-polling.rst of the kernel): a wait that was longer than the look, and not longer than the most that a thread
//! may look, doubles it; one that was longer ends looking, until waits are short again. Each look lets others run, for the client may be
//! waiting for this very processor. Where that took long, processors are not to spare: then a thread does not look for more and more waits,
//! up to 1023 in a row.

use std::time::{Duration, Instant};

/// A yield that took less let nobody run: it is a system call alone.
const OTHERS_RAN: Duration = Duration::from_micros(2);

/// Most sleeps in a row without a yield, after yields in vain.
const SKIPPED_MAX: u32 = 255;

/// The first look after waits that were worth one.
const LOOK_MIN: Duration = Duration::from_micros(10);

/// A yield that took so long gave the processor to a thread that had use for it.
const GIVEN_AWAY: Duration = Duration::from_micros(300);

/// Most waits in a row without a look, after yields that gave the processor away.
const RESTS_MAX: u32 = 1023;

/// When to yield before sleeping.
#[derive(Default)]
pub(crate) struct IdleBackoff {
    yielded: bool,
    skip: u32,
    skip_next: u32,
    /// How long to look for news after work, learned; and the most.
    look: Duration,
    look_max: Duration,
    /// When the wait for news began.
    waits_since: Option<Instant>,
    /// Waits without a look: still to come, and after the next yield that gives the processor away.
    rests: u32,
    rests_next: u32,
}

impl IdleBackoff {
    /// Looks for news after a piece of work for at most `look_max`.
    pub(crate) fn looking(look_max: Duration) -> Self {
        Self { look_max, ..Self::default() }
    }

    /// Tasks have run since the thread last slept.
    pub(crate) fn worked(&mut self) {
        self.worked_by(Instant::now);
    }

    fn worked_by(&mut self, now: impl FnOnce() -> Instant) {
        self.yielded = false;
        let Some(since) = self.waits_since.take() else { return };
        let waited = now() - since;
        if self.rests > 0 {
            self.rests -= 1;
        } else if waited > self.look_max {
            self.look = Duration::ZERO;
        } else if waited > self.look {
            self.look = (self.look * 2).max(LOOK_MIN).min(self.look_max);
        } else {
            self.rests_next = self.rests_next.saturating_sub(1);
        }
    }

    /// Yields once for each piece of work, where that `pays`. True if a look for news is worth while before sleeping: others ran, or it
    /// is not yet time to sleep.
    pub(crate) fn let_others_run(&mut self, pays: impl FnOnce() -> bool) -> bool {
        let yields = || {
            let start = Instant::now();
            std::thread::yield_now();
            start.elapsed() >= OTHERS_RAN
        };
        pays() && (self.back_off(yields) || self.looks(Instant::now, std::thread::yield_now))
    }

    /// Lets others run while it looks.
    fn looks(&mut self, now: impl Fn() -> Instant, let_run: impl FnOnce()) -> bool {
        if self.look_max.is_zero() {
            return false;
        }
        let before = now();
        let looks = before - *self.waits_since.get_or_insert(before) < self.look;
        if looks {
            let_run();
            if now() - before >= GIVEN_AWAY {
                self.look = Duration::ZERO;
                self.rests_next = (self.rests_next * 2 + 1).min(RESTS_MAX);
                self.rests = self.rests_next;
            }
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
    use std::cell::Cell;

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

    /// A thread that may look for 50 us, its clock in microseconds, and how long a yield takes.
    struct Looking {
        backoff: IdleBackoff,
        start: Instant,
        now: Cell<u64>,
        yield_micros: u64,
        yields: u32,
    }

    impl Looking {
        fn new() -> Self {
            let backoff = IdleBackoff::looking(Duration::from_micros(50));
            Self { backoff, start: Instant::now(), now: Cell::new(0), yield_micros: 1, yields: 0 }
        }

        /// Waits from one piece of work to the next, which comes after so many microseconds, or after the yield that is under way; how
        /// many of them it looks.
        fn wait(&mut self, micros: u64) -> u64 {
            let (now, start) = (&self.now, self.start);
            let clock = || start + Duration::from_micros(now.get());
            let (begin, end) = (now.get(), now.get() + micros);
            let mut looked = 0;
            while now.get() < end && self.backoff.looks(clock, || now.set(now.get() + self.yield_micros)) {
                self.yields += 1;
                looked = now.get() - begin;
            }
            now.set(now.get().max(end));
            self.backoff.worked_by(clock);
            looked
        }
    }

    #[test]
    fn waits_that_were_short_are_looked_through_and_a_long_one_ends_that() {
        let mut looking = Looking::new();
        assert_eq!([(); 4].map(|()| looking.wait(30)), [0, 10, 20, 30], "each look is twice the one before");
        assert_eq!([30, 5, 39].map(|micros| looking.wait(micros)), [30, 5, 39], "what suffices stays");
        assert_eq!(looking.wait(51), 40);
        assert_eq!([51, 1000].map(|micros| looking.wait(micros)), [0, 0], "long waits are slept through");
        assert_eq!(
            [(); 5].map(|()| looking.wait(50)),
            [0, 10, 20, 40, 50],
            "and no look is longer than the most"
        );
        assert_eq!(looking.yields, 294, "each look lets others run");
    }

    #[test]
    fn where_others_have_use_for_the_processor_looks_become_rare() {
        let mut looking = Looking::new();
        looking.yield_micros = 3000;
        for _ in 0..10_000 {
            looking.wait(30);
        }
        assert!((10..30).contains(&looking.yields), "{} of 10000 waits gave it away", looking.yields);
        looking.yield_micros = 1;
        let looked: Vec<_> = (0..4000).map(|_| looking.wait(30)).collect();
        assert_eq!(looked[3000..], [30; 1000], "once they have none it looks again");
        looking.yield_micros = 3000;
        assert_eq!([(); 6].map(|()| looking.wait(30)), [3000, 0, 3000, 0, 0, 0], "and begins anew");
    }

    #[test]
    fn a_thread_that_may_not_look_reads_no_clock() {
        let mut backoff = IdleBackoff::default();
        assert!(!backoff.looks(|| panic!("reads a clock that nobody asked for"), || ()));
        backoff.worked_by(|| panic!("reads a clock that nobody asked for"));
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
