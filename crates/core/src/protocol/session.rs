//! A conversation on a byte stream, without the stream.
//!
//! An export writes its protocol as a [`Session`]: it is fed bytes and gives bytes, and never sees a socket. A driver in the
//! `io` crate owns the socket and runs one loop for each connection, on one thread:
//!
//! ```text
//!   receive what `intake` asks for -> `receive` / `returned` -> `poll` -> send `output` -> again
//! ```
//!
//! A driver that serves others too gives each a turn of [`work`](crate::work): a session that finds it spent leaves the rest of
//! its bytes and of its pending requests for later, and the driver polls it again after the others.
//!
//! The driver stops receiving while `intake` says [`Intake::Pause`], polls whenever a pending request wakes it and after each time it
//! has sent something, since a session may wait for the room that its output takes. It closes once [`Session::finished`] holds and the
//! output is sent, and calls [`Session::hang_up`] when the peer is gone.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ops::Range;
use std::task::Context;

use crate::memory::buffer::IoBuf;

/// What a session can take next.
pub enum Intake {
    /// Any bytes, by [`Session::receive`].
    Bytes,
    /// The rest of a large payload: receive straight into this window, whole or in part, and hand it back by
    /// [`Session::returned`].
    Payload(IoBuf),
    /// Nothing until [`Session::poll`] was called again: the peer owes us reading, or memory is short.
    Pause,
}

/// Who is at the other end, as far as the system tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Peer {
    /// It does not.
    #[default]
    Unknown,
    /// A process of this machine, or a thread of one: who connected, or opened a file. It may have ended since.
    Program(u32),
    /// An address of the network.
    Address(SocketAddr),
}

/// One end of a conversation.
pub trait Session {
    /// Says who is at the other end, before anything else. For words to people only.
    fn introduce(&mut self, _peer: Peer) {}

    /// What to receive next.
    fn intake(&mut self) -> Intake;

    /// Takes bytes that the peer sent and returns how many were used. Fewer than given means that the session is paused,
    /// wants the rest as payload, has output worth sending first, or found its turn spent: the driver keeps them and offers
    /// them again.
    fn receive(&mut self, bytes: &[u8]) -> usize;

    /// Takes back the buffer of [`Intake::Payload`], with `filled` bytes of its window received.
    fn returned(&mut self, _buf: IoBuf, _filled: usize) {
        unreachable!("no buffer was lent");
    }

    /// Lets pending requests progress and moves finished ones to the output, at least one of those with news. Where the turn
    /// is spent then, others may have news too: poll again.
    fn poll(&mut self, context: &mut Context<'_>);

    /// Bytes to send.
    fn output(&mut self) -> &mut Output;

    /// The conversation is over: nothing more will be received, and the connection closes when the output is sent.
    fn finished(&self) -> bool;

    /// The peer is gone, or the server stops without waiting: withdraws everything that has not begun.
    fn hang_up(&mut self);

    /// The server stops: finish what has been received, then become [`Session::finished`].
    fn wind_down(&mut self);

    /// Requests received and not yet answered.
    fn pending(&self) -> usize;

    /// The peer has said what it wants. Until then the connection is an unfinished handshake, limited in number and age.
    fn established(&self) -> bool {
        true
    }

    /// The peer has begun something and owes the rest of it.
    fn owed(&self) -> bool {
        false
    }

    /// The peer keeps its place however long it is silent: it does not come back by itself.
    fn stays(&self) -> bool {
        false
    }

    /// What is pending is still answered, and then the conversation is over: the peer, the server or a broken rule wants that.
    fn ends(&self) -> bool {
        self.finished()
    }
}

enum Chunk {
    Bytes(usize),
    Buffer(IoBuf),
}

/// Bytes of a page of small pieces.
const PAGE: usize = 4096;

/// A queue of bytes to send: small headers are gathered in pages, payload buffers are sent from where they lie.
///
/// Its memory is counted as all buffers are; [`Output::held`] says how much it is. An empty queue keeps one page.
#[derive(Default)]
pub struct Output {
    pages: VecDeque<IoBuf>,
    /// The small bytes not yet sent, counted from the start of the first page.
    small: Range<usize>,
    chunks: VecDeque<Chunk>,
    len: usize,
    held: usize,
}

impl Output {
    /// Appends a copy of `bytes`.
    pub fn push(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = self.small.end % PAGE;
            if self.small.end == self.pages.len() * PAGE {
                self.pages.push_back(IoBuf::new(PAGE));
                self.held += PAGE;
            }
            let page = self.pages.back_mut().expect("there is room in the last page");
            let count = rest.len().min(PAGE - at);
            page[at..at + count].copy_from_slice(&rest[..count]);
            self.small.end += count;
            rest = &rest[count..];
        }
        self.len += bytes.len();
        match self.chunks.back_mut() {
            Some(Chunk::Bytes(count)) => *count += bytes.len(),
            _ => self.chunks.push_back(Chunk::Bytes(bytes.len())),
        }
    }

    /// Appends the window of `buf` without copying.
    pub fn push_buffer(&mut self, buf: IoBuf) {
        if !buf.is_empty() {
            self.len += buf.len();
            self.held += buf.capacity();
            self.chunks.push_back(Chunk::Buffer(buf));
        }
    }

    /// Bytes not yet sent.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of memory that the queue keeps from others: whole buffers, however little of them is left to send.
    pub fn held(&self) -> usize {
        self.held
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends the front of the queue to `slices`, until it holds `slices_max`.
    pub fn gather<'a>(&'a self, slices: &mut Vec<IoSlice<'a>>, slices_max: usize) {
        let mut at = self.small.start;
        for chunk in &self.chunks {
            if slices.len() >= slices_max {
                return;
            }
            match chunk {
                Chunk::Buffer(buf) => slices.push(IoSlice::new(buf)),
                Chunk::Bytes(count) => {
                    let end = at + count;
                    while at < end && slices.len() < slices_max {
                        let part = at % PAGE..(end - at / PAGE * PAGE).min(PAGE);
                        slices.push(IoSlice::new(&self.pages[at / PAGE][part.clone()]));
                        at += part.len();
                    }
                }
            }
        }
        assert!(at <= self.small.end, "chunks reach to {at}, their pages to {}", self.small.end);
    }

    /// Takes all of it at once, for tests: memory that nobody counts.
    pub fn take(&mut self) -> Vec<u8> {
        let mut slices = Vec::new();
        self.gather(&mut slices, usize::MAX);
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        self.advance(bytes.len());
        bytes
    }

    /// Forgets the first `sent` bytes.
    pub fn advance(&mut self, mut sent: usize) {
        assert!(sent <= self.len, "{sent} bytes sent of {}", self.len);
        self.len -= sent;
        while sent > 0 {
            let chunk = self.chunks.front_mut().expect("the queue is as long as its chunks");
            let whole = match chunk {
                Chunk::Bytes(count) => {
                    let used = sent.min(*count);
                    self.small.start += used;
                    *count -= used;
                    sent -= used;
                    *count == 0
                }
                Chunk::Buffer(buf) => {
                    let used = sent.min(buf.len());
                    buf.narrow(used, buf.len() - used);
                    sent -= used;
                    buf.is_empty()
                }
            };
            if whole && let Some(Chunk::Buffer(buf)) = self.chunks.pop_front() {
                assert!(self.held >= buf.capacity(), "{} bytes leave {} held", buf.capacity(), self.held);
                self.held -= buf.capacity();
            }
        }
        assert_eq!(self.chunks.is_empty(), self.len == 0, "{} bytes are unsent", self.len);
        self.free_pages();
    }

    /// Gives back the pages whose bytes are sent, and starts the last one again.
    fn free_pages(&mut self) {
        while self.small.start >= PAGE && self.pages.len() > 1 {
            self.pages.pop_front();
            self.held -= PAGE;
            self.small = self.small.start - PAGE..self.small.end - PAGE;
        }
        assert!(self.small.start <= self.small.end, "more is sent than was written: {:?}", self.small);
        if self.small.is_empty() {
            self.small = 0..0;
        }
        if self.chunks.is_empty() && self.chunks.capacity() > CHUNKS_KEPT {
            self.chunks.shrink_to(CHUNKS_KEPT);
        }
    }

    /// Drops everything unsent.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Room for chunks that an empty queue keeps.
const CHUNKS_KEPT: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(output: &Output) -> Vec<u8> {
        let mut slices = Vec::new();
        output.gather(&mut slices, usize::MAX);
        slices.iter().flat_map(|slice| slice.to_vec()).collect()
    }

    #[test]
    fn any_split_of_sends_gives_the_same_bytes() {
        for step in 1..40 {
            let mut output = Output::default();
            let mut sent = Vec::new();
            for round in 0..10u8 {
                output.push(&[round; 16]);
                output.push_buffer(IoBuf::copy_of(&[100 + round; 9]));
                output.push(&[200; 3]);
                let front = flat(&output);
                assert_eq!(front.len(), output.len());
                let count = step.min(front.len());
                sent.extend(&front[..count]);
                output.advance(count);
            }
            sent.extend(flat(&output));
            let expected: Vec<u8> = (0..10u8)
                .flat_map(|round| [vec![round; 16], vec![100 + round; 9], vec![200; 3]].concat())
                .collect();
            assert_eq!(sent, expected, "step {step}");
        }
    }

    #[test]
    fn gathering_stops_at_the_limit() {
        let mut output = Output::default();
        for _ in 0..10 {
            output.push(&[1; 16]);
            output.push_buffer(IoBuf::zeroed(4));
        }
        output.push(&[2; 20 * PAGE]);
        for slices_max in [0, 1, 6, 21, 30] {
            let mut slices = Vec::new();
            output.gather(&mut slices, slices_max);
            assert_eq!(slices.len(), slices_max);
        }
    }

    #[test]
    fn what_the_queue_holds_is_counted_in_whole_pages_and_given_back() {
        let mut output = Output::default();
        for _ in 0..1000 {
            output.push(&[1; 528]);
            output.push_buffer(IoBuf::new(512));
        }
        let pages = (528usize * 1000).div_ceil(PAGE);
        assert_eq!(output.held(), (pages + 1000) * PAGE, "a buffer of 512 bytes takes a page");
        output.advance(100 * 1040);
        let pages_left = pages - 100 * 528 / PAGE;
        assert_eq!(output.held(), (pages_left + 900) * PAGE);
        output.advance(output.len());
        assert_eq!(output.held(), PAGE);
        assert!(output.chunks.capacity() <= 2 * CHUNKS_KEPT);
    }
}
