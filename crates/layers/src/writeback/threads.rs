//! Models for the checker of threads: pages become dirty on one thread while others kick and drain.

use spillway_core::LocalFuture;
use spillway_core::models::{Passing, Tasks, every_order, finds, together};
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;
use spillway_core::sync::{AtomicU64, Unseen, Watermark};

use super::*;

/// Counts pages that became dirty, were taken, and are written.
struct Toy {
    engine: Writeback<Toy>,
    dirty: AtomicU64,
    taken: AtomicU64,
    written: AtomicU64,
    /// Another thread waits until so many are written; what wakes it.
    wanted: Watermark,
    goal: Unseen<Goal>,
    /// What it says where nothing is to be taken.
    idle: fn() -> Take<()>,
}

impl Source for Toy {
    type Batch = ();

    fn goal(&self) -> Goal {
        *self.goal.lock()
    }

    fn take(self: &Arc<Self>, _: Goal, _: u64) -> Take<()> {
        // One thread takes at a time.
        let (dirty, taken) = (self.dirty.load(Ordering::SeqCst), self.taken.load(Ordering::SeqCst));
        if dirty == taken {
            return (self.idle)();
        }
        self.taken.store(taken + 1, Ordering::SeqCst);
        Take::Batch((), 1)
    }

    fn write(self: &Arc<Self>, (): ()) -> LocalFuture<Result<(), Kind>> {
        let toy = self.clone();
        Box::pin(async move {
            yield_now().await;
            toy.wanted.advance(toy.written.fetch_add(1, Ordering::SeqCst) + 1);
            Ok(())
        })
    }

    fn left(&self) -> u64 {
        self.dirty.load(Ordering::SeqCst) - self.written.load(Ordering::SeqCst)
    }

    fn is_waited_for(&self) -> bool {
        false
    }

    fn failed(&self, kind: Kind) {
        panic!("{kind:?}");
    }
}

impl Toy {
    fn new(goal: Goal, idle: fn() -> Take<()>) -> Arc<Self> {
        let env: Arc<dyn Env> = Arc::new(Tasks);
        let meter = Meter::new(env.clone());
        Arc::new_cyclic(|toy| Self {
            engine: Writeback::new(toy.clone(), env, meter),
            dirty: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            written: AtomicU64::new(0),
            wanted: Watermark::default(),
            goal: Unseen::new(goal),
            idle,
        })
    }

    fn soil(&self) -> u64 {
        self.dirty.fetch_add(1, Ordering::SeqCst) + 1
    }
}

/// Each client makes a page dirty, kicks, and waits until its page is written.
fn kicks(idle: fn() -> Take<()>) {
    every_order(8000, move || {
        let client: fn(&Toy) = |toy| {
            for _ in 0..2 {
                let number = toy.soil();
                toy.engine.kick();
                block_on(toy.wanted.reached(number));
            }
        };
        together(&Toy::new(Goal::ToLow, idle), &[client, client]);
    });
}

#[test]
fn every_kick_is_followed_by_a_look() {
    kicks(|| Take::Nothing);
}

/// Time stands still: nothing but a kick ends it.
#[test]
fn every_kick_ends_a_rest() {
    kicks(|| Take::After(Duration::from_secs(1)));
}

/// A drain is answered after a moment at which nothing was left, later than its call.
#[test]
fn every_drain_covers_what_came_before_it() {
    every_order(20_000, || {
        let client: fn(&Toy) = |toy| {
            for _ in 0..2 {
                let number = toy.soil();
                assert_eq!(block_on(toy.engine.drain()), Ok(()));
                assert!(toy.written.load(Ordering::SeqCst) >= number, "page {number} is not written");
            }
        };
        together(&Toy::new(Goal::Rest, || Take::Nothing), &[client, client]);
    });
}

/// Counts what has come, and what a timer has seen of it.
struct Clock {
    timer: Timer<Clock>,
    come: AtomicU64,
    seen: Watermark,
}

impl Clock {
    fn new() -> Arc<Self> {
        let (env, after) = (Arc::new(Passing::default()), |_: &Self| Duration::from_secs(2));
        Arc::new_cyclic(|clock: &Weak<Self>| Self {
            timer: Timer::new(clock.clone(), env, after, Self::look),
            come: AtomicU64::new(0),
            seen: Watermark::default(),
        })
    }

    /// Goes on for as long as it finds something.
    fn look(self: &Arc<Self>) -> bool {
        let come = self.come.load(Ordering::SeqCst);
        let found = come > self.seen.current();
        self.seen.advance(come);
        found
    }
}

/// Two have something come twice each, beside looks that find nothing more.
#[test]
fn a_look_of_the_timer_follows_every_start() {
    every_order(8000, || {
        let clock = Clock::new();
        let users = [(); 2].map(|()| {
            let clock = clock.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let number = clock.come.fetch_add(1, Ordering::SeqCst) + 1;
                    clock.timer.start();
                    block_on(clock.seen.reached(number));
                }
            })
        });
        users.into_iter().for_each(|user| user.join().expect("a user ends"));
    });
}

#[test]
fn the_checker_finds_a_timer_that_looks_before_it_ends() {
    finds("timer: look before it ends", a_look_of_the_timer_follows_every_start);
}

#[test]
fn the_checker_finds_an_engine_that_does_not_look_again() {
    finds("work: forget what was queued during a run", every_kick_is_followed_by_a_look);
}

#[test]
fn the_checker_finds_a_drain_that_is_answered_too_early() {
    finds("writeback: answer a drain that was called too late", every_drain_covers_what_came_before_it);
}

#[test]
fn the_checker_finds_an_engine_that_sleeps_over_a_kick() {
    finds("wait list: register without looking again", every_kick_ends_a_rest);
}
