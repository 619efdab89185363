//! Queues in memory that another program shares, without that memory: what vhost-user needs besides a stream of messages.
//!
//! A driver in the `io` crate owns the socket, the mappings and the event descriptors. It hands each message to the [`Conversation`] with
//! itself as [`ConversationHost`], and runs each queue that the conversation starts as a task on a worker, which calls [`turn`]:
//!
//! ```text
//!   `poll` -> `interrupts`: signal -> `arm`, false: `poll` again -> sleep until an answer, a kick or a change
//! ```

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::env::LocalFuture;
use crate::error::Error;
use crate::protocol::session::Peer;
use crate::shutdown::Phase;
use crate::work;

/// Units of work for a round of a queue: a system call, mostly.
const ROUND_UNITS: u32 = 5;

/// Memory that another program shares, and may change at any moment: what was read once may be different a moment later.
///
/// Ranges lie within [`SharedMemory::len`], and 16-bit numbers at even places: all methods panic on others.
pub trait SharedMemory: Send + Sync {
    /// Bytes; not 0.
    fn len(&self) -> u64;

    /// Whether it has none, which no such memory is.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies from `at` on.
    fn read(&self, at: u64, to: &mut [u8]);

    /// Copies to `at` and on.
    fn write(&self, at: u64, from: &[u8]);

    /// The little-endian number at `at`, read before everything that is read after it.
    fn load(&self, at: u64) -> u16;

    /// Writes the little-endian number at `at`, after everything that was written before it.
    fn store(&self, at: u64, value: u16);

    /// False once a part of it has turned out to be gone: its owner has cut the file off. Zeroes were read in its place.
    fn is_whole(&self) -> bool;
}

/// A queue of requests in shared memory.
pub trait Queue {
    /// Takes requests, lets those under way progress and puts answers into the ring, until the turn is spent or the front end is to hear of
    /// them. Answers wake the task.
    fn poll(&mut self, context: &mut Context<'_>);

    /// Whether the front end is to be interrupted for what was answered since the last call.
    fn interrupts(&mut self) -> bool;

    /// Asks for a kick with what is added from now on. False where something was added meanwhile, which is to be polled for.
    fn arm(&mut self) -> bool;

    /// Takes no further request.
    fn stop(&mut self);

    /// Requests taken and not answered.
    fn pending(&self) -> usize;

    /// Why the queue takes nothing any more, once, when the front end has broken its rules.
    fn broken(&mut self) -> Option<&'static str>;
}

/// The event descriptors of a queue.
pub trait Events {
    /// Interrupts the front end: requests were answered.
    fn interrupt(&mut self);

    /// Says that the queue is broken, and why.
    fn report(&mut self, why: &'static str);

    /// Whether the front end has kicked since the last call; if not, its next kick wakes the task.
    fn is_kicked(&mut self, context: &mut Context<'_>) -> bool;

    /// Wakes the task once others have had their turn.
    fn others_first(&mut self, context: &mut Context<'_>);
}

/// Runs a queue for a turn of [`work`], which the caller has begun. Ready once the queue has ended, as `phase` wants it to.
pub fn turn(
    queue: &mut dyn Queue,
    events: &mut dyn Events,
    phase: Phase,
    context: &mut Context<'_>,
) -> Poll<()> {
    if phase != Phase::Serving {
        queue.stop();
    }
    loop {
        work::spend(ROUND_UNITS);
        queue.poll(context);
        // After each round: an answer may have come while the queue was armed.
        if queue.interrupts() {
            events.interrupt();
        }
        if let Some(why) = queue.broken() {
            events.report(why);
        }
        if phase == Phase::Aborting || (phase == Phase::Draining && queue.pending() == 0) {
            return Poll::Ready(());
        }
        if work::spent() {
            events.others_first(context);
            return Poll::Pending;
        }
        // Where nothing is taken any more, this is true, and only answers wake the task.
        if queue.arm() && !events.is_kicked(context) {
            return Poll::Pending;
        }
    }
}

/// Makes a queue, on the worker that serves it.
pub type NewQueue = Box<dyn FnOnce() -> Box<dyn Queue> + Send>;

/// Event descriptors of a queue.
pub enum EventOf {
    /// The front end writes to it when it has added requests.
    Kick,
    /// Written to when requests were answered.
    Call,
    /// Written to when the queue is broken.
    Error,
}

/// What a conversation has done for it.
pub trait ConversationHost {
    /// Maps `len` bytes of a file from `offset` on, which are there now.
    fn map(&mut self, file: OwnedFd, offset: u64, len: u64) -> Result<Arc<dyn SharedMemory>, Error>;

    /// Makes a file of `len` zeroes that only lives in memory.
    fn create(&mut self, len: u64) -> Result<OwnedFd, Error>;

    /// Gives queue `index` one of its event descriptors, or none; from then on, where the queue is running.
    fn set_event(&mut self, index: usize, event: EventOf, descriptor: Option<OwnedFd>) -> Result<(), Error>;

    /// Starts queue `index`, which is not running.
    fn start(&mut self, index: usize, new_queue: NewQueue);

    /// Has queue `index` look around, if it is running: what it reads of its conversation has changed.
    fn wake(&mut self, index: usize);

    /// Stops queue `index`, if it is running. The future waits until it has answered what it has taken.
    fn stop(&mut self, index: usize) -> LocalFuture<()>;

    /// Where messages go that answer none: not a connection to this program, whose end would never be seen.
    fn set_channel(&mut self, channel: OwnedFd) -> Result<(), Error>;
}

/// What is sent back for a message, with descriptors.
#[derive(Debug, Default)]
pub struct MessageResponse {
    /// The bytes; empty for nothing.
    pub bytes: Vec<u8>,
    /// At most one.
    pub descriptor: Option<OwnedFd>,
}

/// Bytes of the head of each message.
pub const HEAD_LEN: usize = 12;

/// One end of a conversation in messages that carry descriptors, about queues in shared memory.
pub trait Conversation {
    /// Says who is at the other end, before all else. False where the place is taken, or nothing to be had there.
    fn introduce(&mut self, peer: Peer) -> bool;

    /// Bytes that follow the head of a message.
    fn body_len(&self, head: &[u8; HEAD_LEN]) -> Result<usize, Error>;

    /// Takes a whole message. An error ends the conversation.
    fn receive(
        &mut self,
        head: &[u8; HEAD_LEN],
        body: &[u8],
        descriptors: Vec<OwnedFd>,
        host: &mut dyn ConversationHost,
    ) -> LocalFuture<Result<MessageResponse, Error>>;

    /// The conversation is over, and every queue has stopped: what was acknowledged becomes as durable as the device can make it, and the front end will know
    /// that from the memory that it keeps.
    fn wind_down(&mut self) -> LocalFuture<()>;
}
