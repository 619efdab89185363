//! How a model of threads is run: in many orders, which are the same in every run, and with a deliberate defect to see that it bites;
//! and the world that its tasks live in.

use std::future::pending;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::{spawn_local, yield_now};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

use crate::buffer::Buffers;
use crate::device::LocalFuture;
use crate::env::{Env, Place, Task};
use crate::mutant;

const SEED: u64 = 1;

/// Bytes of the stack of a thread or task of a model.
const STACK_BYTES: usize = 256 << 10;

/// Depth of defects that the order by priorities is to find: one less than the times at which a thread loses its own.
const DEPTH: usize = 4;

/// Names the mutant that a model run by [`finds`] has.
const MUTANT: &str = "SPILLWAY_MUTANT";

/// Runs `model` in so many orders. In half of them chance chooses the next thread at each step, which finds what needs threads to
/// alternate; in the other half it chooses priorities, which finds what needs one to stand still for long.
pub fn every_order(orders: usize, model: impl Fn() + Send + Sync + 'static) {
    if let Ok(name) = std::env::var(MUTANT) {
        mutant::choose(name.leak());
    }
    let mut config = Config::default();
    config.stack_size = STACK_BYTES;
    let model = Arc::new(move || {
        Buffers::default().enter();
        model();
    });
    let chosen = model.clone();
    Runner::new(RandomScheduler::new_from_seed(SEED, orders / 2), config.clone()).run(move || chosen());
    Runner::new(PctScheduler::new_from_seed(SEED, DEPTH, orders / 2), config).run(move || model());
}

/// The test of that path in this program passes, and fails once `mutant` is on. In a process of its own: a deadlock cannot be
/// unwound.
pub fn finds(mutant: &str, test: &str) {
    let program = std::env::current_exe().expect("a test has a program");
    let run = |mutant: &str| Command::new(&program).args([test, "--exact"]).env(MUTANT, mutant).output();
    let ran = |mutant| run(mutant).expect("the program runs again");
    let sound = ran("");
    assert!(sound.status.success(), "{test} fails by itself");
    assert!(String::from_utf8_lossy(&sound.stdout).contains("1 passed"), "there is no test {test}");
    assert!(!ran(mutant).status.success(), "{mutant:?} was not noticed");
}

/// A world in which every task is a thread of its own, and time stands still, so that no timer comes to the rescue.
pub struct Tasks;

impl Env for Tasks {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn coarse_now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        if duration.is_zero() { Box::pin(yield_now()) } else { Box::pin(pending()) }
    }

    fn spawn(&self, _: Place, task: Task) {
        self.spawn_here(task());
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        spawn_local(task);
    }

    fn idle_workers(&self) -> usize {
        0
    }

    fn random(&self) -> u64 {
        0
    }
}
