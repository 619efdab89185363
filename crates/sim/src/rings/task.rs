//! A queue that runs: does for it what `io::vhost` does on a worker.

use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::Shutdown;
use spillway_core::shared_memory::{self, Events, Queue};

use super::event::EventDescriptor;
use crate::pace::Tempo;

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
    tempo: Tempo,
}

impl QueueTask {
    pub(super) fn new(
        queue: Box<dyn Queue>,
        (kick, call): (Rc<EventDescriptor>, Rc<EventDescriptor>),
        shutdown: Arc<Shutdown>,
        tempo: Tempo,
    ) -> Self {
        let told = Told { kick, call };
        Self { queue, told, shutdown, tempo }
    }

    /// Lets the queue go on for a turn.
    pub(super) fn turn(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.shutdown.watch(0, context.waker());
        let Some(_turn) = self.tempo.turn(context) else { return Poll::Pending };
        shared_memory::turn(&mut *self.queue, &mut self.told, self.shutdown.phase(), context)
    }
}
