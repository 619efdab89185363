//! A clock for tests.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::env::{Env, LocalFuture, Place, Task};
use crate::sync::Mutex;

/// A clock that stands still until it is set, by a test or by a sleep: that is over, and its time has passed, when it is looked at again.
#[derive(Default)]
pub struct Clock(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    now: Duration,
    slept: Vec<Duration>,
}

impl Clock {
    /// Sets it later.
    pub fn pass(&self, time: Duration) {
        self.0.lock().now += time;
    }

    /// The sleeps that are over.
    pub fn slept(&self) -> Vec<Duration> {
        self.0.lock().slept.clone()
    }
}

impl Env for Clock {
    fn now(&self) -> Duration {
        self.0.lock().now
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        let (state, mut is_over) = (self.0.clone(), false);
        Box::pin(poll_fn(move |_| {
            if !std::mem::replace(&mut is_over, true) {
                return Poll::Pending;
            }
            let mut state = state.lock();
            state.now += duration;
            state.slept.push(duration);
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
