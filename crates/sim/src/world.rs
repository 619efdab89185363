//! A clock that moves when told and an executor that runs tasks in a fixed order, on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::contract::Random;
use spillway_core::sync::Mutex;
use spillway_core::{Env, LocalFuture, Place, Task};

/// Time, chance and tasks of a simulated machine. Futures live on the thread that calls [`World::turn`].
pub struct World {
    nanos: Arc<AtomicU64>,
    random: Mutex<Random>,
    fresh: Mutex<VecDeque<Task>>,
}

thread_local! {
    static RUNNING: RefCell<Vec<LocalFuture<()>>> = const { RefCell::new(Vec::new()) };
}

impl World {
    /// A world whose chance follows from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        RUNNING.with(|running| running.borrow_mut().clear());
        let random = Mutex::new(Random(seed));
        Arc::new(Self { nanos: Arc::default(), random, fresh: Mutex::default() })
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Starts what was spawned and polls every task once; returns how many are left.
    pub fn turn(&self) -> usize {
        let fresh: Vec<Task> = self.fresh.lock().drain(..).collect();
        let mut tasks = RUNNING.with(|running| std::mem::take(&mut *running.borrow_mut()));
        tasks.extend(fresh.into_iter().map(|task| task()));
        let mut context = Context::from_waker(Waker::noop());
        tasks.retain_mut(|task| task.as_mut().poll(&mut context).is_pending());
        RUNNING.with(|running| running.borrow_mut().append(&mut tasks));
        RUNNING.with(|running| running.borrow().len())
    }

    /// Takes turns, each `step` apart, until `condition` holds. Panics after `turns_max` turns.
    pub fn turn_until(&self, step: Duration, turns_max: usize, mut condition: impl FnMut() -> bool) {
        for _ in 0..turns_max {
            if condition() {
                return;
            }
            self.turn();
            self.advance(step);
        }
        assert!(condition(), "the condition did not come true in {turns_max} turns");
    }
}

impl Env for World {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn coarse_now(&self) -> Duration {
        self.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        let deadline = self.now() + duration;
        let nanos = self.nanos.clone();
        let mut polled = false;
        Box::pin(poll_fn(move |_| {
            let due = Duration::from_nanos(nanos.load(Ordering::Relaxed)) >= deadline;
            if std::mem::replace(&mut polled, true) && due { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    fn spawn(&self, _place: Place, task: Task) {
        self.fresh.lock().push_back(task);
    }

    fn idle_workers(&self) -> usize {
        0
    }

    fn random(&self) -> u64 {
        self.random.lock().draw()
    }
}
