//! A machine of one thread: a clock that moves when nobody has anything to do, and an executor that lets chance decide who
//! is next.
//!
//! Tasks are polled only when woken, so that a lost wake is a hang that [`World::run`] reports. The order among those that
//! are ready, all random numbers and the time follow from the seed alone; [`World::log`] sums up what happened, and two
//! runs of one seed must agree in it.

mod clock;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::stats;
use spillway_core::sync::{AtomicU64, AtomicUsize, Mutex, Ordering};
use spillway_core::{Answer, Env, LocalFuture, Place, Task};

use clock::Clock;

/// Looks at a world in which nothing happens before [`World::run`] calls it stuck: other threads may be at work.
const LOOKS_MAX: usize = 200_000;

/// Threads that tasks seem to run on, each on one.
const LANES: u64 = 4;

/// Who is next among the tasks that are ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Anybody.
    #[default]
    Chance,
    /// Mostly who was woken last: some wait for long.
    Last,
    /// Mostly one half of the tasks: the others are late wherever they can be.
    Favour,
}

/// Time, chance and tasks of a simulated machine. Futures live on the thread that made it, which has one at a time.
pub struct World {
    clock: Arc<Clock>,
    ready: Arc<Ready>,
    random: Mutex<Random>,
    order: Mutex<Random>,
    fresh: Mutex<Vec<Task>>,
    tasks: AtomicU64,
    idle_workers: AtomicUsize,
    choice: Mutex<Order>,
    log: AtomicU64,
    breaks: AtomicU64,
}

/// Who has been woken, in the order of wakes.
#[derive(Default)]
struct Ready(Mutex<Vec<u64>>);

struct TaskWaker {
    ready: Arc<Ready>,
    id: u64,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut ready = self.ready.0.lock();
        if !ready.contains(&self.id) {
            ready.push(self.id);
        }
    }
}

thread_local! {
    static TASKS: RefCell<BTreeMap<u64, LocalFuture<()>>> = const { RefCell::new(BTreeMap::new()) };
}

impl World {
    /// A world whose chance follows from `seed`. What an earlier one of this thread left behind is dropped.
    pub fn new(seed: u64) -> Arc<Self> {
        Self::clear();
        stats::stand_for(0);
        Arc::new(Self {
            clock: Arc::default(),
            ready: Arc::default(),
            random: Mutex::new(Random(seed)),
            order: Mutex::new(Random(seed ^ 0x6f72_6465_7200)),
            fresh: Mutex::default(),
            tasks: AtomicU64::new(0),
            idle_workers: AtomicUsize::new(0),
            choice: Mutex::default(),
            log: AtomicU64::new(seed),
            breaks: AtomicU64::new(0),
        })
    }

    /// Drops all tasks, as a power cut does.
    pub fn power_off(&self) {
        loop {
            Self::clear();
            // Dropped without the lock: one that has not begun may leave another one behind, too.
            let fresh = std::mem::take(&mut *self.fresh.lock());
            if fresh.is_empty() {
                return;
            }
        }
    }

    /// Drops what a broken world of this thread left behind, one task after the other, whichever of them panics.
    pub fn abandon() {
        while let Some((_, task)) = TASKS.with(|tasks| tasks.borrow_mut().pop_first()) {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(task)));
        }
    }

    fn clear() {
        // A task that is dropped may leave another one behind.
        loop {
            let tasks = TASKS.with(|tasks| std::mem::take(&mut *tasks.borrow_mut()));
            if tasks.is_empty() {
                return;
            }
        }
    }

    /// What [`Env::idle_workers`] answers from now on.
    pub fn set_idle_workers(&self, count: usize) {
        self.idle_workers.store(count, Ordering::Relaxed);
    }

    /// Who is next from now on.
    pub fn set_order(&self, order: Order) {
        *self.choice.lock() = order;
    }

    /// Which of `ready` is next.
    fn next(&self, ready: &[u64]) -> usize {
        let mut random = self.order.lock();
        let any = random.below(ready.len() as u64) as usize;
        let fair = random.below(16) == 0;
        match *self.choice.lock() {
            Order::Last if !fair => ready.len() - 1,
            Order::Favour if !fair => {
                let early = |id: &u64| Random(*id ^ 0x7461_736b).draw().is_multiple_of(2);
                ready.iter().position(early).unwrap_or(any)
            }
            _ => any,
        }
    }

    /// Adds an event to the log.
    pub fn note(&self, event: u64) {
        let mixed = Random(self.log() ^ event).draw();
        self.log.store(mixed, Ordering::Relaxed);
    }

    /// A sum of all that has happened, in its order.
    pub fn log(&self) -> u64 {
        self.log.load(Ordering::Relaxed)
    }

    /// So many connections to what is below a device were broken, or have fallen silent.
    pub fn count_breaks(&self, count: u64) {
        self.breaks.fetch_add(count, Ordering::Relaxed);
    }

    /// How many that were so far.
    pub fn breaks(&self) -> u64 {
        self.breaks.load(Ordering::Relaxed)
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.clock.advance_to(self.clock.nanos() + by.as_nanos() as u64);
    }

    /// One that is left behind by a task of a thread that ends is dropped: the thread runs none any more.
    fn adopt(&self, task: LocalFuture<()>) {
        let id = self.tasks.fetch_add(1, Ordering::Relaxed);
        if TASKS.try_with(|tasks| tasks.borrow_mut().insert(id, task)).is_ok() {
            self.ready.0.lock().push(id);
        }
    }

    fn start_fresh(&self) {
        let fresh: Vec<Task> = self.fresh.lock().drain(..).collect();
        fresh.into_iter().for_each(|task| self.adopt(task()));
    }

    /// Polls one task that is ready, chosen by chance. False if none is.
    pub fn step(&self) -> bool {
        self.start_fresh();
        let id = {
            let mut ready = self.ready.0.lock();
            if ready.is_empty() {
                return false;
            }
            let index = self.next(&ready);
            ready.remove(index)
        };
        // A task that has ended may have been woken once more.
        let Some(mut task) = TASKS.with(|tasks| tasks.borrow_mut().remove(&id)) else { return true };
        self.note(id << 32 ^ self.clock.nanos());
        stats::stand_for(Random(id).below(LANES) as usize);
        let waker = Waker::from(Arc::new(TaskWaker { ready: self.ready.clone(), id }));
        if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            TASKS.with(|tasks| tasks.borrow_mut().insert(id, task));
        }
        true
    }

    /// Polls a task, or moves the clock on to where one wakes. False if nothing will ever happen by itself.
    pub fn go_on(&self) -> bool {
        self.step() || self.clock.skip()
    }

    /// Polls every task that is ready now once; returns how many tasks are left.
    pub fn turn(&self) -> usize {
        self.start_fresh();
        let count = self.ready.0.lock().len();
        for _ in 0..count {
            self.step();
        }
        TASKS.with(|tasks| tasks.borrow().len())
    }

    /// Runs tasks, and moves the clock on whenever none is ready, until `done`. Panics where nothing will ever come.
    pub fn run_until(&self, done: impl Fn() -> bool) {
        let mut looks = 0;
        while !done() {
            if self.go_on() {
                looks = 0;
                continue;
            }
            looks += 1;
            assert!(looks < LOOKS_MAX, "no task is ready and nobody sleeps: a wake was lost");
            std::thread::yield_now();
        }
    }

    /// Runs `answer` and every task until the answer is there.
    pub fn run<T: 'static>(&self, answer: Answer<T>) -> T {
        self.run_all(vec![answer]).pop().expect("one answer gives one value")
    }

    /// Like [`World::run`] for several answers at once; their values come in the order given.
    pub fn run_all<T: 'static>(&self, answers: Vec<Answer<T>>) -> Vec<T> {
        let values: Rc<RefCell<Vec<Option<T>>>> = Rc::default();
        for (index, answer) in answers.into_iter().enumerate() {
            values.borrow_mut().push(None);
            match answer {
                Answer::Done(value) => values.borrow_mut()[index] = Some(value),
                Answer::Pending(future) => {
                    let values = values.clone();
                    self.adopt(Box::pin(async move {
                        let value = future.await;
                        values.borrow_mut()[index] = Some(value);
                    }));
                }
            }
        }
        self.run_until(|| values.borrow().iter().all(Option::is_some));
        values.take().into_iter().flatten().collect()
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

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        Box::pin(self.clock.sleep(duration))
    }

    fn spawn(&self, _place: Place, task: Task) {
        self.fresh.lock().push(task);
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        self.adopt(task);
    }

    fn idle_workers(&self) -> usize {
        self.idle_workers.load(Ordering::Relaxed)
    }

    fn random(&self) -> u64 {
        self.random.lock().draw()
    }

    fn thread_number(&self) -> usize {
        stats::lane()
    }
}
