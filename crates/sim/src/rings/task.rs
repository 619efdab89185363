//! A queue that runs: does for it what `io::vhost` does on a worker.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use spillway_core::random::Random;
use spillway_core::shared_memory::{self, Events, Queue};
use spillway_core::{Env, LocalFuture, Shutdown, work};

use super::event::EventDescriptor;
use crate::mount::Pace;
use crate::world::World;

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
    shutdown: Arc<Shutdown>,
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
        shutdown: Arc<Shutdown>,
        world: Arc<World>,
        pace: Pace,
        random: Rc<RefCell<Random>>,
    ) -> Self {
        let told = Told { kick, call };
        Self { queue, told, shutdown, world, pace, random, late: None }
    }

    /// Lets the queue go on for a turn.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.shutdown.watch(0, context.waker());
        if self.late.is_none() && self.below(8) == 0 {
            let longest = self.pace.delay.as_nanos() as u64;
            self.late = Some(self.world.sleep(Duration::from_nanos(self.below(longest + 1))));
        }
        if self.late.as_mut().is_some_and(|late| late.as_mut().poll(context).is_pending()) {
            return Poll::Pending;
        }
        self.late = None;
        let _turn = work::turn(self.pace.turn);
        shared_memory::turn(&mut *self.queue, &mut self.told, self.shutdown.phase(), context)
    }

    fn below(&self, bound: u64) -> u64 {
        self.random.borrow_mut().below(bound)
    }
}
