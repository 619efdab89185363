//! Reads, writes and the like of disk files: their submission, backpressure and replies.
//!
//! Back-pressure is that of [`Pipeline`]; replies leave at once, so that none counts as unsent.
//!
//! A long payload stays where it was received, unless that is the driver's last buffer: a device that hangs would keep the driver from
//! reading requests for others.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Context;

use spillway_core::exchange::Message;
use spillway_core::{Aligned, Flags, IoBuf, Kind, Op, Reply, Request};

use super::config::{Config, STAYING_LEN_MIN};
use super::seek::seek;
use super::tree::Volume;
use super::wire::{ReplyHead, errno};
use crate::covered::spend_for;
use crate::pending::PENDING_MAX;
use crate::pipeline::{Outcome, Pipeline, PipelineLimits};

/// Bytes of replies that are not sent.
const UNSENT: usize = 0;

/// What is kept of a request to a device until its reply.
pub(super) struct Ticket {
    pub(super) unique: u64,
    pub(super) volume: Arc<Volume>,
    /// What the device is asked for.
    pub(super) op: Op,
}

/// A read or write without its buffer, and the message that has the payload of a write.
struct Transfer {
    ticket: Ticket,
    request: Request,
    payload: IoBuf,
}

/// The requests of a session that a device or the server carries out.
pub(super) struct Transfers {
    config: Config,
    /// What no device answers by itself needs no ticket: it comes as the reply.
    pipeline: Pipeline<Transfer, Option<Ticket>, Box<Message>>,
    /// What a request had its payload in that is parked no longer.
    returned: Option<IoBuf>,
    replies: VecDeque<Message>,
}

impl Transfers {
    pub(super) fn new(config: Config) -> Self {
        let limits = PipelineLimits { held_bytes_max: config.held_bytes_max, requests_max: PENDING_MAX };
        Self { config, pipeline: Pipeline::new(limits), returned: None, replies: VecDeque::new() }
    }

    /// Requests that are not answered.
    pub(super) fn pending(&self) -> usize {
        self.pipeline.pending() + usize::from(self.pipeline.parked().is_some())
    }

    /// Whether another request is taken.
    pub(super) fn takes(&mut self) -> bool {
        self.pipeline.admits(UNSENT)
    }

    /// Reads as many bytes as the ticket says.
    pub(super) fn read(&mut self, ticket: Ticket, offset: u64, len: usize) {
        self.transfer(
            Transfer { ticket, request: Request::read(offset, IoBuf::empty()), payload: IoBuf::empty() },
            len,
        );
    }

    /// Writes the window of `payload`. Gives the buffer back unless it is kept: until the answer, never where it is the `last`, or until
    /// [`Transfers::returned`].
    pub(super) fn write(
        &mut self,
        ticket: Ticket,
        request: Request,
        payload: IoBuf,
        last: bool,
    ) -> Option<IoBuf> {
        let len = payload.len();
        if len >= STAYING_LEN_MIN && !last {
            self.submit(ticket, with_buffer(request, payload));
            return None;
        }
        self.transfer(Transfer { ticket, request, payload }, len);
        self.returned()
    }

    /// Submits a read or write once it has a buffer of `len` bytes.
    fn transfer(&mut self, transfer: Transfer, len: usize) {
        if let Some((transfer, buf)) = self.pipeline.equip(transfer, len, UNSENT) {
            self.submit_with_buffer(transfer, buf);
        }
    }

    fn submit_with_buffer(&mut self, transfer: Transfer, mut buf: IoBuf) {
        let Transfer { ticket, request, payload } = transfer;
        if request.op == Op::Write {
            buf.copy_from_slice(&payload);
            let before = self.returned.replace(payload);
            assert!(before.is_none(), "one payload is parked at a time, and taken back before the next");
        }
        self.submit(ticket, with_buffer(request, buf));
    }

    /// The buffer of a payload that has been copied since.
    pub(super) fn returned(&mut self) -> Option<IoBuf> {
        self.returned.take()
    }

    /// Carries out a request without payload.
    pub(super) fn bare(&mut self, ticket: Ticket, request: Request) {
        assert!(request.buf.is_empty(), "{:?} has no payload", request.op);
        spend_for(request.range.len);
        self.submit(ticket, request);
    }

    /// Looks for data from `offset` on, or for what is none.
    pub(super) fn seek(&mut self, unique: u64, volume: Arc<Volume>, offset: u64, data: bool) {
        self.reply_later(async move {
            let export = volume.export();
            let found = seek(export.device().clone(), offset, data).await;
            export.counters.count(None, found.is_ok().then_some(0));
            match found {
                Ok(Some(place)) => reply(ReplyHead::of(unique, 0).u64(place), IoBuf::empty()),
                Ok(None) => refusal(unique, errno::ENXIO),
                Err(kind) => refusal(unique, errno_of(kind)),
            }
        });
    }

    /// Sends a reply once it has come to be.
    pub(super) fn reply_later(&mut self, reply: impl Future<Output = Message> + 'static) {
        let reply = Box::pin(async move { Box::new(reply.await) });
        if let Some((ticket, outcome)) = self.pipeline.begin(None, 0, reply) {
            self.finish(ticket, outcome);
        }
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        let held = request.buf.capacity();
        let submission = self.pipeline.submit(ticket.volume.export(), request, Aligned::submit_bytes);
        if let Some((ticket, outcome)) = self.pipeline.submitted(Some(ticket), held, submission) {
            self.finish(ticket, outcome);
        }
    }

    fn finish(&mut self, ticket: Option<Ticket>, outcome: Outcome<Box<Message>>) {
        let Reply { result, buf } = match outcome {
            Outcome::Own(reply) => return self.replies.push_back(*reply),
            Outcome::Io(reply) => reply,
        };
        let Ticket { unique, volume, op } = ticket.expect("a device answers what it was asked for");
        volume.export().counters.count(Some(op), result.is_ok().then_some(buf.len() as u64));
        let mut head = ReplyHead::of(unique, 0);
        match (result, op) {
            (Err(kind), _) => self.refuse(unique, errno_of(kind)),
            (Ok(()), Op::Read) => self.reply_with(&mut head, buf),
            (Ok(()), Op::Write) => self.reply(head.u32(buf.len() as u32).u32(0)),
            (Ok(()), _) => self.reply(&mut head),
        }
    }

    /// Replies with a head alone.
    pub(super) fn reply(&mut self, head: &mut ReplyHead) {
        self.reply_with(head, IoBuf::empty());
    }

    /// Replies with a body behind the head.
    pub(super) fn reply_with(&mut self, head: &mut ReplyHead, body: IoBuf) {
        self.replies.push_back(reply(head, body));
    }

    /// Replies with an errno.
    pub(super) fn refuse(&mut self, unique: u64, errno: i32) {
        self.replies.push_back(refusal(unique, errno));
    }

    /// Nothing is answered any more.
    pub(super) fn hang_up(&mut self) {
        *self = Self::new(self.config);
    }

    pub(super) fn next_reply(&mut self) -> Option<Message> {
        self.replies.pop_front()
    }

    /// Lets pending answers progress and replies to those that came.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) {
        self.pipeline.collect(context);
        while let Some((ticket, outcome)) = self.pipeline.next_answer() {
            self.finish(ticket, outcome);
        }
        if let Some((transfer, buf)) = self.pipeline.poll_parked(context, UNSENT) {
            self.submit_with_buffer(transfer, buf);
        }
    }
}

fn with_buffer(mut request: Request, buf: IoBuf) -> Request {
    request.range.len = buf.len() as u64;
    request.buf = buf;
    request
}

/// A reply of a head, and a body behind it.
pub(super) fn reply(head: &mut ReplyHead, body: IoBuf) -> Message {
    Message::new(head.finish(body.len()), body)
}

/// A reply with an errno.
pub(super) fn refusal(unique: u64, errno: i32) -> Message {
    reply(&mut ReplyHead::of(unique, errno), IoBuf::empty())
}

/// A request to write what comes later at `offset`.
pub(super) fn writing(offset: u64, durable: bool) -> Request {
    let request = Request::write(offset, IoBuf::empty());
    Request { flags: Flags { fua: durable, ..Flags::default() }, ..request }
}

/// The errno of a failure, as files have it.
fn errno_of(kind: Kind) -> i32 {
    if kind == Kind::ReadOnly { errno::EROFS } else { kind.errno() }
}
