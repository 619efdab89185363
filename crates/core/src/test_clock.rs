//! Clocks for tests: one that stands still until it is set, and one that is set by who sleeps, too.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::env::{Env, LocalFuture, Place, Task};
use crate::sync::Mutex;

/// See the head of this file.
#[derive(Default)]
pub struct Clock(Mutex<Duration>);

impl Clock {
    /// Sets it later.
    pub fn pass(&self, time: Duration) {
        *self.0.lock() += time;
    }
}

impl Env for Clock {
    fn now(&self) -> Duration {
        *self.0.lock()
    }

    fn sleep(&self, _: Duration) -> LocalFuture<()> {
        unreachable!("nothing sleeps")
    }

    fn spawn(&self, _: Place, _: Task) {
        unreachable!("nothing is spawned")
    }

    fn spawn_here(&self, _: LocalFuture<()>) {
        unreachable!("nothing is spawned")
    }

    fn random(&self) -> u64 {
        0
    }
}

/// A world in which a sleep is over, and its time has passed, when it is looked at again.
#[derive(Default)]
pub struct Restless {
    /// Its clock.
    pub clock: Arc<Clock>,
    slept: Arc<Mutex<Vec<Duration>>>,
}

impl Restless {
    /// The sleeps that are over.
    pub fn slept(&self) -> Vec<Duration> {
        self.slept.lock().clone()
    }
}

impl Env for Restless {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        let (clock, slept, mut is_over) = (self.clock.clone(), self.slept.clone(), false);
        Box::pin(poll_fn(move |_| {
            if !std::mem::replace(&mut is_over, true) {
                return Poll::Pending;
            }
            clock.pass(duration);
            slept.lock().push(duration);
            Poll::Ready(())
        }))
    }

    fn spawn(&self, _: Place, _: Task) {
        unreachable!("nothing is spawned")
    }

    fn spawn_here(&self, _: LocalFuture<()>) {
        unreachable!("nothing is spawned")
    }

    fn random(&self) -> u64 {
        0
    }
}
