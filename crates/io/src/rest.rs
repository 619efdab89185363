//! What a thread does before it sleeps: it lets others run, and looks for news a little longer.
//!
//! Where clients and workers share processors, a worker that sleeps as soon as it has answered is woken for nearly every
//! request, and both sides pay for that. Yielding instead lets a client that is ready fill its queue; the worker then finds
//! many requests at once, and nobody had to wake it. With two clients, two workers and two processors that made 160 thousand
//! reads a second 250 thousand.
//!
//! Where nobody else is ready the processor would be idle. The worker then looks for news for a time in which a client that is not
//! asleep sends something: with one client that has 4 requests in flight, a third more are answered. Where nothing comes it looks less
//! and less often.

use std::time::{Duration, Instant};

/// A yield that took less let nobody run: it is a system call alone.
const OTHERS_RAN: Duration = Duration::from_micros(2);

/// How long a thread looks for news while nobody else wants its processor.
const LOOK: Duration = Duration::from_micros(20);

/// Longest row of rests without a look after looks in vain.
const SKIPPED_MAX: u32 = 255;

/// When to look for news before sleeping.
#[derive(Default)]
pub(crate) struct Rest {
    state: State,
    skip: u32,
    skip_next: u32,
}

#[derive(Default)]
enum State {
    #[default]
    Worked,
    /// Looks for news since then.
    Looks(Instant),
    Sleeps,
}

impl Rest {
    /// Tasks have run since the last rest.
    pub(crate) fn worked(&mut self) {
        if let State::Looks(_) = self.state {
            self.skip_next = 0;
        }
        self.state = State::Worked;
    }

    /// Lets others run. True if a look for news is worth while before sleeping.
    pub(crate) fn let_others_run(&mut self) -> bool {
        self.rest(Instant::now, std::thread::yield_now)
    }

    fn rest(&mut self, now: impl Fn() -> Instant, let_run: impl FnOnce()) -> bool {
        let began = now();
        let since = match self.state {
            State::Sleeps => return false,
            State::Worked if self.skip > 0 => {
                self.skip -= 1;
                self.state = State::Sleeps;
                return false;
            }
            State::Looks(since) if began - since >= LOOK => {
                self.skip_next = (self.skip_next * 2 + 1).min(SKIPPED_MAX);
                self.skip = self.skip_next;
                self.state = State::Sleeps;
                return false;
            }
            State::Worked => began,
            State::Looks(since) => since,
        };
        let_run();
        let others_ran = now() - began >= OTHERS_RAN;
        if others_ran {
            self.skip_next = 0;
        }
        self.state = if others_ran { State::Sleeps } else { State::Looks(since) };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A thread whose yields take so long.
    struct Thread {
        rest: Rest,
        time: Cell<Instant>,
        yield_takes: Duration,
        yields: Cell<usize>,
    }

    impl Thread {
        fn new(yield_takes: Duration) -> Self {
            let time = Cell::new(Instant::now());
            Self { rest: Rest::default(), time, yield_takes, yields: Cell::new(0) }
        }

        fn rest(&mut self) -> bool {
            self.rest.rest(
                || self.time.get(),
                || {
                    self.yields.set(self.yields.get() + 1);
                    self.time.set(self.time.get() + self.yield_takes);
                },
            )
        }

        /// Works so often; returns how often it then looked for news before it slept.
        fn works(&mut self, times: usize) -> usize {
            let looked = (0..times).filter(|_| {
                self.rest.worked();
                let before = self.yields.get();
                while self.rest() {}
                self.yields.get() > before
            });
            looked.count()
        }
    }

    #[test]
    fn where_others_run_a_thread_looks_once_each_time() {
        let mut thread = Thread::new(OTHERS_RAN);
        assert_eq!(thread.works(100), 100);
        assert_eq!(thread.yields.get(), 100);
    }

    #[test]
    fn where_nobody_else_runs_it_looks_for_a_time() {
        let mut thread = Thread::new(Duration::from_micros(1));
        assert_eq!(thread.works(1), 1);
        assert_eq!(thread.yields.get(), LOOK.as_micros() as usize);
        assert!(!thread.rest(), "without work in between it sleeps");
    }

    #[test]
    fn looks_in_vain_get_rare_until_one_is_not() {
        let mut thread = Thread::new(Duration::from_micros(1));
        assert_eq!(thread.works(10), 3, "the first, the third and the seventh");
        assert!(thread.works(25_600) <= 110);
        thread.rest.skip = 0;
        thread.rest.worked();
        assert!(thread.rest());
        assert_eq!(thread.works(10), 3, "the row begins anew");
    }
}
