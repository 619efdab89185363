//! The loop of one queue: a task on a worker.
//!
//! What wakes it: the front end's kick, an answer, a change that the conversation makes, the end.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::shared_memory::{self, Events, Queue};
use spillway_core::sync::Mutex;
use spillway_core::{Job, LocalFuture, Report, Shutdown, work};

use super::event;
use super::warn_once::WarnOnce;
use crate::runtime::op::{Awaited, Readiness, shortage_passes};
use crate::runtime::pool::{LoadGuard, others_first};

/// An event descriptor that may be exchanged while it is used.
pub(super) type EventSlot = Arc<Mutex<Option<Arc<OwnedFd>>>>;

/// A queue that runs, as its conversation has it.
pub(super) struct Running {
    pub(super) shutdown: Arc<Shutdown>,
    pub(super) task: Job<()>,
}

/// A queue runs, and has its place on a worker, until this is dropped.
pub(super) struct Guard {
    pub(super) shutdown: Arc<Shutdown>,
    pub(super) _load: LoadGuard,
    /// Dropped last: who waits for the end finds the place free.
    pub(super) _report: Report<()>,
}

/// The event descriptors of a queue, and whose it is, for words to people.
pub(super) struct Descriptors {
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: EventSlot,
    pub(super) error: EventSlot,
    pub(super) name: String,
    pub(super) warnings: Arc<WarnOnce>,
}

/// The same on the thread that waits for kicks.
struct Signals {
    all: Descriptors,
    kicked: Option<Awaited>,
    /// After the system has refused to say whether there was a kick.
    pause: Option<LocalFuture<()>>,
}

fn tell(slot: &EventSlot) {
    let descriptor = slot.lock().clone();
    if let Some(descriptor) = descriptor {
        event::signal(&descriptor);
    }
}

impl Events for Signals {
    fn interrupt(&mut self) {
        tell(&self.all.call);
    }

    fn report(&mut self, why: &'static str) {
        let name = &self.all.name;
        let said = format!("{name}: {why}; the queue has stopped until the front end starts it anew");
        self.all.warnings.say(&said);
        tell(&self.all.error);
    }

    fn is_kicked(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return false;
            }
            self.pause = None;
        }
        loop {
            let kick = &self.all.kick;
            let kicked = self.kicked.get_or_insert_with(|| Awaited::new(kick, Readiness::Readable));
            if !kicked.holds(context) {
                return false;
            }
            self.kicked = None;
            match event::take(kick) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(errno) => {
                    let name = &self.all.name;
                    tracing::debug!("{name}: the system does not say whether there was a kick: {errno}");
                    self.pause = Some(shortage_passes());
                    // It wakes the task, and then the queue is looked at again.
                    return self.is_kicked(context);
                }
            }
        }
    }

    fn others_first(&mut self, context: &mut Context<'_>) {
        others_first(context);
    }
}

/// See the head of this file.
pub(super) struct QueueTask {
    queue: Box<dyn Queue>,
    signals: Signals,
    listening: bool,
    /// Last, so that it is given up when everything else is gone.
    guard: Guard,
}

impl QueueTask {
    /// To be made and polled on the thread that serves it.
    pub(super) fn new(queue: Box<dyn Queue>, all: Descriptors, guard: Guard) -> Self {
        let signals = Signals { all, kicked: None, pause: None };
        Self { queue, signals, listening: false, guard }
    }
}

impl Future for QueueTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        let _turn = work::turn(work::TURN);
        if !this.listening {
            this.guard.shutdown.watch(0, context.waker());
            this.listening = true;
        }
        let phase = this.guard.shutdown.phase();
        shared_memory::turn(&mut *this.queue, &mut this.signals, phase, context)
    }
}
