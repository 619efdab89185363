//! A conversation in whole messages, without the descriptor that they travel over.
//!
//! What [`session`](crate::protocol::session) is for a byte stream, this is for protocols whose messages come and go whole, such as
//! FUSE. A driver in the `io` crate owns the descriptor and runs one loop on one thread:
//!
//! ```text
//!   `poll` -> send every `next_reply` -> while it `takes`: read a message -> `receive` -> send ...
//! ```
//!
//! Each loop has its turn of [`work`](crate::work), as one of a session has.

use std::task::Context;

use crate::memory::buffer::IoBuf;

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

    /// A buffer that the exchange has kept for itself, once it needs it no longer.
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
