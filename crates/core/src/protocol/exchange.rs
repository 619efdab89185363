//! A conversation in whole messages, without the descriptor that they travel over.
//!
//! What [`session`](crate::protocol::session) is for a byte stream, this is for protocols whose messages come and go whole, such as
//! FUSE. A driver in the `io` crate owns the descriptor and runs one loop on one thread:
//!
//! ```text
//!   `poll` -> send every `next_reply` -> while it `takes`: read a message -> `receive` -> send ...
//! ```
//!
//! A device that does not answer keeps payloads in the buffers that they were read into. The [`Inbox`] of each loop has one that no
//! device gets, so that requests for others are read.
//!
//! Each loop has its turn of [`work`](crate::work), as one of a session has.

use std::sync::Arc;
use std::task::Context;

use crate::error::Error;
use crate::memory::budget::Budget;
use crate::memory::buffer::{ALIGNMENT, IoBuf, Workspace};

/// Most bytes of a [`Message`] in front of its body.
pub const HEAD_LEN_MAX: usize = 160;

/// A message to be sent whole: a short head and a body that is sent from where it lies.
#[derive(Debug)]
pub struct Message {
    head: [u8; HEAD_LEN_MAX],
    head_len: usize,
    /// What follows the head; often empty.
    pub body: IoBuf,
}

impl Message {
    /// A message of `head`, which has at most [`HEAD_LEN_MAX`] bytes, and `body`.
    pub fn new(head: &[u8], body: IoBuf) -> Self {
        assert!(head.len() <= HEAD_LEN_MAX, "a head of {} bytes", head.len());
        let mut message = Self { head: [0; HEAD_LEN_MAX], head_len: head.len(), body };
        message.head[..head.len()].copy_from_slice(head);
        message
    }

    /// The bytes in front of the body.
    pub fn head(&self) -> &[u8] {
        &self.head[..self.head_len]
    }

    /// Bytes of the whole message.
    pub fn bytes(&self) -> usize {
        self.head_len + self.body.len()
    }
}

/// One end of a conversation in messages.
pub trait Exchange {
    /// Whether another message is taken now. If not, an answer that is still to come ends that, and wakes the task.
    fn takes(&mut self) -> bool;

    /// Takes the message in the window of `message`. Gives the buffer back unless it becomes the payload of a request. The driver's
    /// `last` one it does not keep for a device, which may never answer: at most for itself, until [`Exchange::returned`], and takes
    /// nothing meanwhile.
    fn receive(&mut self, message: IoBuf, last: bool) -> Option<IoBuf>;

    /// A buffer that the exchange has kept for itself, once it needs it no longer: to be asked for after each [`Exchange::poll`].
    fn returned(&mut self) -> Option<IoBuf>;

    /// Lets pending requests progress, at least one of those with news. Where the turn is spent then, others may have news
    /// too: poll again.
    fn poll(&mut self, context: &mut Context<'_>);

    /// The next message to send.
    fn next_reply(&mut self) -> Option<Message>;

    /// Nobody will be answered any more: withdraws everything that has not begun.
    fn hang_up(&mut self);

    /// Requests received and not yet answered.
    fn pending(&self) -> usize;
}

/// Buffers for each inbox: the one that is read into, and one whose payload a device has.
const BUFFERS_EACH: usize = 2;

/// What messages are like.
#[derive(Clone, Copy, Debug)]
pub struct MessageFormat {
    /// Bytes of the longest.
    pub len_max: usize,
    /// Bytes in front of what is to lie at the start of a page.
    pub payload_offset: usize,
    /// Bytes of the shortest whose buffer an exchange may keep for a device.
    pub kept_len_min: usize,
}

impl MessageFormat {
    fn buffer_len(&self) -> usize {
        assert!(self.payload_offset <= ALIGNMENT, "what is in front of a page, {self:?}, fits into one");
        (ALIGNMENT - self.payload_offset + self.len_max).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of the buffers for an inbox.
    pub fn bytes_each(&self) -> usize {
        BUFFERS_EACH * self.buffer_len()
    }
}

/// Buffers that messages are read into.
#[derive(Clone)]
pub struct MessageBuffers {
    workspace: Workspace,
    format: MessageFormat,
}

impl MessageBuffers {
    /// For so many inboxes, charged to `budget`.
    pub fn new(format: MessageFormat, inboxes: usize, budget: &Arc<Budget>) -> Result<Self, Error> {
        let bytes = inboxes * format.bytes_each();
        Ok(Self { workspace: Workspace::new("messages of the mount", budget, bytes)?, format })
    }

    /// One of the inboxes; to be made before any of them receives.
    pub fn inbox(&self) -> Inbox {
        let first = self.try_take().expect("there is room for one each");
        Inbox { buffers: self.clone(), buf: Some(first) }
    }

    /// One more, unless devices have them all.
    fn try_take(&self) -> Option<IoBuf> {
        self.workspace.try_take(self.format.buffer_len()).map(|buf| self.open(buf))
    }

    /// Sets the window to where a message goes.
    fn open(&self, mut buf: IoBuf) -> IoBuf {
        buf.widen(self.format.buffer_len());
        buf.narrow(ALIGNMENT - self.format.payload_offset, self.format.len_max);
        buf
    }
}

/// Where messages for an exchange are read into.
pub struct Inbox {
    buffers: MessageBuffers,
    /// For the next message. Absent while the exchange has it, and takes nothing.
    buf: Option<IoBuf>,
}

impl Inbox {
    /// Has `read` put a message into a buffer, for an exchange that takes one, and hands it over. An error leaves all as it was.
    pub fn receive<E>(
        &mut self,
        exchange: &mut dyn Exchange,
        read: impl FnOnce(&mut [u8]) -> Result<usize, E>,
    ) -> Result<(), E> {
        let mut message = self.buf.take().expect("an exchange without a buffer in it takes messages");
        match read(&mut message[..]) {
            Ok(len) => message.narrow(0, len),
            Err(why) => {
                self.buf = Some(message);
                return Err(why);
            }
        }
        let keeps = message.len() >= self.buffers.format.kept_len_min;
        let spare = keeps.then(|| self.buffers.try_take()).flatten();
        let back = exchange.receive(message, spare.is_none());
        self.buf = back.map(|buf| self.buffers.open(buf)).or(spare);
        Ok(())
    }

    /// Takes back what the exchange kept for itself and needs no longer.
    pub fn take_back(&mut self, exchange: &mut dyn Exchange) {
        if let Some(buf) = exchange.returned() {
            self.buf.get_or_insert_with(|| self.buffers.open(buf));
        }
    }
}
