//! A clock for tests: it stands still until it is set.

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
