//! A queue that runs: does for it what `io::vhost` does on a worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::shared_memory::{self, Events, Queue};
use spillway_core::sync::WaitList;
use spillway_core::{Env, LocalFuture, Phase, work};

use super::event::EventDescriptor;
use crate::mount::Pace;
use crate::world::World;

/// A queue as its host knows it.
pub(super) struct Running {
    phase: Cell<Phase>,
    waker: RefCell<Option<Waker>>,
    gone: Cell<bool>,
    left: WaitList,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            phase: Cell::new(Phase::Serving),
            waker: RefCell::default(),
            gone: Cell::default(),
            left: WaitList::default(),
        }
    }
}

impl Running {
    /// Asks the queue to end.
    pub(super) fn ask(&self, phase: Phase) {
        self.phase.set(phase);
        self.wake();
    }

    /// Has the queue look around.
    pub(super) fn wake(&self) {
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// The queue is gone.
    pub(super) fn leave(&self) {
        self.gone.set(true);
        self.left.wake_all();
    }

    /// Waits until the queue is gone.
    pub(super) async fn left(&self) {
        self.left.until(|| self.gone.get().then_some(())).await;
    }
}

/// The events of the queue.
struct Told {
    kick: Rc<EventDescriptor>,
    call: Rc<EventDescriptor>,
}

impl Events for Told {
    fn interrupt(&mut self) {
        self.call.tell();
    }

    fn report(&mut self, why: &'static str) {
        panic!("a queue of a sound machine is broken: {why}");
    }

    fn is_kicked(&mut self, context: &mut Context<'_>) -> bool {
        self.kick.take(context.waker())
    }

    fn others_first(&mut self, context: &mut Context<'_>) {
        context.waker().wake_by_ref();
    }
}

/// The task of a queue.
pub(super) struct QueueTask {
    queue: Box<dyn Queue>,
    told: Told,
    running: Rc<Running>,
    world: Arc<World>,
    pace: Pace,
    random: Rc<RefCell<Random>>,
    /// Its thread has other things to do.
    late: Option<LocalFuture<()>>,
}

impl QueueTask {
    pub(super) fn new(
        queue: Box<dyn Queue>,
        (kick, call): (Rc<EventDescriptor>, Rc<EventDescriptor>),
        running: Rc<Running>,
        world: Arc<World>,
        pace: Pace,
        random: Rc<RefCell<Random>>,
    ) -> Self {
        let told = Told { kick, call };
        Self { queue, told, running, world, pace, random, late: None }
    }

    /// Lets the queue go on for a turn.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        *self.running.waker.borrow_mut() = Some(context.waker().clone());
        if self.late.is_none() && self.below(8) == 0 {
            let longest = self.pace.delay.as_nanos() as u64;
            self.late = Some(self.world.sleep(Duration::from_nanos(self.below(longest + 1))));
        }
        if self.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_pending()) {
            return Poll::Pending;
        }
        self.late = None;
        let _turn = work::turn(self.pace.turn);
        shared_memory::turn(&mut *self.queue, &mut self.told, self.running.phase.get(), context)
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }
}
