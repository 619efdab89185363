//! How much one poll may do.
//!
//! A worker serves many clients, so a request works in *slices* of about 200 us and yields between them. Work is counted,
//! not timed: a hit reads no clock, and tests can count the same way. What a connection could not guess from a request's length
//! (walks, slow codecs) also counts for its turn, [`spillway_core::work`].

use std::time::Duration;

use spillway_core::Env;

/// Units of 100 ns in a slice.
pub(crate) const SLICE: u32 = spillway_core::work::TURN;

/// What is left of a slice.
pub(crate) struct Slice(u32);

impl Slice {
    pub(crate) const fn new() -> Self {
        Self(SLICE)
    }

    /// Counts work for the slice and for the turn of the connection.
    pub(crate) fn spend(&mut self, units: u32) {
        spillway_core::work::spend(units);
        self.count(units);
    }

    /// Counts work for the slice alone: what the connection reckons a page, or has counted already.
    #[inline]
    pub(crate) fn count(&mut self, units: u32) {
        self.0 = self.0.saturating_sub(units);
    }

    /// How many times `units` are left, and once at least.
    pub(crate) fn room_for(&self, units: u32) -> u64 {
        assert!(units > 0, "each step is work");
        u64::from(self.0.div_ceil(units).max(1))
    }

    #[inline]
    pub(crate) fn is_over(&self) -> bool {
        self.0 == 0
    }

    /// Lets others have their turn and begins the next slice.
    pub(crate) async fn renew(&mut self, env: &dyn Env) {
        env.sleep(Duration::ZERO).await;
        *self = Self::new();
    }

    /// The same where it is over.
    pub(crate) async fn renew_if_over(&mut self, env: &dyn Env) {
        if self.is_over() {
            self.renew(env).await;
        }
    }
}

#[cfg(not(test))]
#[inline(always)]
pub(crate) fn note(_units: u32) {}

#[cfg(test)]
pub(crate) use meter::note;

/// Counts what is really done, at the places that do it, for tests: it knows nothing of slices.
#[cfg(test)]
pub(crate) mod meter {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use spillway_core::Answer;

    thread_local! {
        static UNITS: Cell<u64> = const { Cell::new(0) };
    }

    /// Notes work done on this thread.
    pub(crate) fn note(units: u32) {
        UNITS.with(|sum| sum.set(sum.get() + u64::from(units)));
    }

    /// Units noted on this thread since the last call.
    pub(crate) fn take() -> u64 {
        UNITS.with(|sum| sum.replace(0))
    }

    /// What an answer takes.
    pub(crate) struct Metered<T> {
        pub(crate) answer: T,
        /// Most units of work in one poll of it, or in one step.
        pub(crate) worst: u64,
        pub(crate) all: u64,
        /// Polls of it that were not the last.
        pub(crate) yields: u64,
    }

    /// Runs an answer, with a step of the tasks of its world after each poll.
    pub(crate) fn metered<T: Unpin + 'static>(
        submit: impl FnOnce() -> Answer<T>,
        mut step: impl FnMut(),
    ) -> Metered<T> {
        let mut worst = (0, 0);
        let mut look = || {
            let units = take();
            worst = (units.max(worst.0), units + worst.1);
        };
        take();
        let mut submission = pin!(submit());
        let mut context = Context::from_waker(Waker::noop());
        for yields in 0..1_000_000 {
            let polled = submission.as_mut().poll(&mut context);
            look();
            if let Poll::Ready(answer) = polled {
                return Metered { answer, worst: worst.0, all: worst.1, yields };
            }
            step();
            look();
        }
        panic!("no answer");
    }
}
