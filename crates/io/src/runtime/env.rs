//! Time, timers, tasks and chance of the real world.

use std::cell::Cell;
use std::future::poll_fn;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use spillway_core::{Env, LocalFuture, Place, Task, work};

use crate::runtime::number;
use crate::runtime::pool::{ThreadPool, can_spawn, others_first, spawn_detached};

/// Rest of a task on a compute thread after a slice of about 100 us while no worker is idle: a tenth of the time is left to it.
const COMPUTE_REST: Duration = Duration::from_micros(900);

/// The environment that the workers give to layers.
pub struct SystemEnv {
    pool: Arc<ThreadPool>,
}

impl SystemEnv {
    pub(crate) fn new(pool: Arc<ThreadPool>) -> Self {
        Self { pool }
    }
}

impl Env for SystemEnv {
    fn now(&self) -> Duration {
        self.pool.clock.now()
    }

    fn coarse_now(&self) -> Duration {
        self.pool.clock.coarse_now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        if duration.is_zero() {
            // Long work comes in slices of about a turn, and this ends one: its session takes up no other request meanwhile.
            work::spend(work::TURN);
            return Box::pin(yield_now());
        }
        Box::pin(compio::time::sleep(duration))
    }

    fn give_way(&self, hurried: bool) -> LocalFuture<()> {
        if hurried || self.pool.idle_workers() > 0 {
            return self.sleep(Duration::ZERO);
        }
        Box::pin(compio::time::sleep(COMPUTE_REST))
    }

    fn spawn(&self, place: Place, task: Task) {
        match place {
            Place::Background => self.pool.background().post(task),
            Place::Compute => self.pool.compute().post(task),
            Place::Assist => self.pool.assistant().post(task),
        }
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        if can_spawn() {
            spawn_detached(task);
        }
    }

    fn idle_workers(&self) -> usize {
        self.pool.idle_workers()
    }

    fn random(&self) -> u64 {
        random()
    }

    fn thread_number(&self) -> usize {
        number::of_thread()
    }
}

/// Lets the other tasks of this thread run once, and those that the ring finds ready.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        others_first(context);
        Poll::Pending
    })
    .await
}

thread_local! {
    static STATE: Cell<u64> = Cell::new(std::hash::RandomState::new().build_hasher().finish());
}

/// SplitMix64 (Sebastiano Vigna, public domain), seeded for each thread from the system's entropy.
fn random() -> u64 {
    STATE.with(|state| {
        let mut source = spillway_core::random::Random(state.get());
        let value = source.draw();
        state.set(source.0);
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_of_long_work_is_a_turn() {
        let workers =
            crate::Workers::start(crate::WorkersOptions { count: 1, ..Default::default() }).unwrap();
        let env = workers.env();
        let _turn = work::turn(work::TURN);
        drop(env.sleep(Duration::ZERO));
        assert!(work::spent());
        workers.stop();
    }

    #[test]
    fn numbers_differ_between_threads_and_draws() {
        let here = [random(), random()];
        let there = std::thread::spawn(random).join().unwrap();
        assert!(here[0] != here[1] && !here.contains(&there));
    }
}
