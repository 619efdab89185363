//! The loop of one queue: a task on a worker.
//!
//! A turn polls the queue, signals what was answered, and sleeps once the queue is armed. What wakes it: the front end's kick, an answer, a
//! change that the conversation makes, the end.

use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::shared_memory::Queue;
use spillway_core::sync::{AtomicBool, Mutex, Ordering, WaitList};
use spillway_core::{LocalFuture, Phase, Shutdown, work};

use super::event;
use crate::runtime::op::{Awaited, Event, shortage_passes};

/// Units of work for a round: a system call, mostly.
const ROUND_UNITS: u32 = 5;

/// An event descriptor that may be exchanged while it is used.
pub(super) type EventSlot = Arc<Mutex<Option<Arc<OwnedFd>>>>;

/// A queue that runs, as its conversation has it.
pub(super) struct Running {
    pub(super) shutdown: Shutdown,
    gone: AtomicBool,
    left: WaitList,
}

impl Running {
    pub(super) fn new() -> Arc<Self> {
        let left = WaitList::default();
        Arc::new(Self { shutdown: Shutdown::default(), gone: AtomicBool::new(false), left })
    }

    /// Waits until the task has gone.
    pub(super) async fn left(&self) {
        self.left.until(|| self.gone.load(Ordering::Acquire).then_some(())).await;
    }
}

/// A queue runs until this is dropped.
pub(super) struct Guard(pub(super) Arc<Running>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.gone.store(true, Ordering::Release);
        self.0.left.wake_all();
    }
}

/// The event descriptors of a queue.
pub(super) struct Events {
    pub(super) kick: Arc<OwnedFd>,
    pub(super) call: EventSlot,
    pub(super) error: EventSlot,
}

fn tell(slot: &EventSlot) {
    let descriptor = slot.lock().clone();
    if let Some(descriptor) = descriptor {
        event::signal(&descriptor);
    }
}

/// See the head of this file.
pub(super) struct QueueTask {
    queue: Box<dyn Queue>,
    name: String,
    events: Events,
    kicked: Option<Awaited>,
    /// After the system has refused to say whether there was a kick.
    pause: Option<LocalFuture<()>>,
    listening: bool,
    /// Last, so that it is given up when everything else is gone.
    guard: Guard,
}

impl QueueTask {
    /// To be made and polled on the thread that serves it.
    pub(super) fn new(queue: Box<dyn Queue>, name: String, events: Events, guard: Guard) -> Self {
        Self { queue, name, events, kicked: None, pause: None, listening: false, guard }
    }

    /// True once the queue has ended.
    fn turn(&mut self, context: &mut Context<'_>) -> bool {
        let _turn = work::turn(work::TURN);
        if !self.listening {
            self.guard.0.shutdown.watch(0, context.waker());
            self.listening = true;
        }
        let phase = self.guard.0.shutdown.phase();
        if phase != Phase::Serving {
            self.queue.stop();
        }
        loop {
            work::spend(ROUND_UNITS);
            self.queue.poll(context);
            self.say_what_came();
            if phase == Phase::Aborting || (phase == Phase::Draining && self.queue.pending() == 0) {
                return true;
            }
            if work::spent() {
                context.waker().wake_by_ref();
                return false;
            }
            // Where nothing is taken any more, this is true, and only answers wake the task.
            if self.queue.arm() && !self.is_kicked(context) {
                return false;
            }
        }
    }

    fn say_what_came(&mut self) {
        if self.queue.interrupts() {
            tell(&self.events.call);
        }
        if let Some(why) = self.queue.broken() {
            tracing::error!("{}: {why}; the queue has stopped until the front end starts it anew", self.name);
            tell(&self.events.error);
        }
    }

    /// Whether there was a kick; if not, the next one wakes the task.
    fn is_kicked(&mut self, context: &mut Context<'_>) -> bool {
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return false;
            }
            self.pause = None;
        }
        loop {
            let waiting = self.kicked.as_mut().is_some_and(|kicked| !kicked.holds(context));
            if waiting {
                return false;
            }
            self.kicked = None;
            match event::take(&self.events.kick) {
                Ok(true) => return true,
                Ok(false) => self.kicked = Some(Awaited::new(&self.events.kick, Event::Readable)),
                Err(errno) => {
                    tracing::debug!(
                        "{}: the system does not say whether there was a kick: {errno}",
                        self.name
                    );
                    self.pause = Some(shortage_passes());
                    // It wakes the task, and then the queue is looked at again.
                    return self.is_kicked(context);
                }
            }
        }
    }
}

impl Future for QueueTask {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.get_mut().turn(context) { Poll::Ready(()) } else { Poll::Pending }
    }
}
