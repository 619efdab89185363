//! A clock that moves when told and an executor that runs tasks in a fixed order, on one thread.

use std::cell::RefCell;
use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::contract::Random;
use spillway_core::sync::Mutex;
use spillway_core::{Answer, Env, LocalFuture, Place, Task};

/// Rounds after which [`World::run`] calls a future stuck.
const ROUNDS_MAX: usize = 100_000;

/// Time, chance and tasks of a simulated machine. Futures live on the thread that calls [`World::turn`].
pub struct World {
    clock: Arc<Clock>,
    random: Mutex<Random>,
    fresh: Mutex<VecDeque<Task>>,
}

/// The time, and who waits for a later one.
#[derive(Default)]
struct Clock {
    nanos: AtomicU64,
    tickets: AtomicU64,
    sleepers: Mutex<BTreeSet<(u64, u64)>>,
}

impl Clock {
    fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Moves on to the earliest deadline; stays where it is while that is already due or nobody sleeps.
    fn skip(&self) {
        if let Some((deadline, _)) = self.sleepers.lock().first() {
            self.nanos.fetch_max(*deadline, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static RUNNING: RefCell<Vec<LocalFuture<()>>> = const { RefCell::new(Vec::new()) };
}

impl World {
    /// A world whose chance follows from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        RUNNING.with(|running| running.borrow_mut().clear());
        let random = Mutex::new(Random(seed));
        Arc::new(Self { clock: Arc::default(), random, fresh: Mutex::default() })
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.clock.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
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

    /// Runs `answer` and every task until the answer is there; the clock skips from one deadline to the next. Panics where
    /// nothing will ever come.
    pub fn run<T: Unpin + 'static>(&self, answer: Answer<T>) -> T {
        self.run_all(vec![answer]).pop().expect("one answer gives one value")
    }

    /// Like [`World::run`] for several answers at once; their values come in the order given.
    pub fn run_all<T: Unpin + 'static>(&self, answers: Vec<Answer<T>>) -> Vec<T> {
        let mut context = Context::from_waker(Waker::noop());
        let mut open: Vec<_> = answers.into_iter().map(|answer| (answer, None)).collect();
        for _ in 0..ROUNDS_MAX {
            for (answer, value) in open.iter_mut().filter(|(_, value)| value.is_none()) {
                if let Poll::Ready(ready) = Pin::new(answer).poll(&mut context) {
                    *value = Some(ready);
                }
            }
            if open.iter().all(|(_, value)| value.is_some()) {
                return open.into_iter().filter_map(|(_, value)| value).collect();
            }
            self.turn();
            self.clock.skip();
        }
        panic!("no answer after {ROUNDS_MAX} rounds");
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
        Duration::from_nanos(self.clock.nanos())
    }

    fn coarse_now(&self) -> Duration {
        self.now()
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        let ticket = self.clock.tickets.fetch_add(1, Ordering::Relaxed);
        let deadline = (self.now() + duration).as_nanos() as u64;
        self.clock.sleepers.lock().insert((deadline, ticket));
        Box::pin(Sleep { clock: self.clock.clone(), deadline, ticket, polled: false })
    }

    fn spawn(&self, _place: Place, task: Task) {
        self.fresh.lock().push_back(task);
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        RUNNING.with(|running| running.borrow_mut().push(task));
    }

    fn idle_workers(&self) -> usize {
        0
    }

    fn random(&self) -> u64 {
        self.random.lock().draw()
    }
}

struct Sleep {
    clock: Arc<Clock>,
    deadline: u64,
    ticket: u64,
    polled: bool,
}

impl Future for Sleep {
    type Output = ();

    /// Pending at least once, so that others have their turn even for a sleep of zero.
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        let due = self.clock.nanos() >= self.deadline;
        if std::mem::replace(&mut self.polled, true) && due { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.sleepers.lock().remove(&(self.deadline, self.ticket));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_skips_to_each_deadline_in_turn() {
        let world = World::new(1);
        let sleeper = |millis| {
            let env = world.clone();
            Answer::pending(async move {
                env.sleep(Duration::from_millis(millis)).await;
                env.sleep(Duration::ZERO).await;
                env.now().as_millis()
            })
        };
        let answers = [30, 10, 20].map(sleeper);
        assert_eq!(world.run_all(answers.into()), [30, 10, 20]);
        assert_eq!(world.clock.sleepers.lock().len(), 0);
    }

    #[test]
    fn chance_follows_from_the_seed() {
        let draws = |seed| {
            let world = World::new(seed);
            [world.random(), world.random()]
        };
        assert_eq!(draws(7), draws(7));
        assert_ne!(draws(7), draws(8));
    }
}
