//! Reads, writes and the like of disk files: their submission, backpressure and replies.
//!
//! Back-pressure is that of [`Pipeline`]; replies leave at once, so that none counts as unsent.
//!
//! A long payload stays where it was received, unless that is the driver's last buffer: a device that hangs would keep the driver from
//! reading requests for others.

use std::collections::VecDeque;
use std::task::Context;

use spillway_core::exchange::Message;
use spillway_core::{Aligned, Flags, IoBuf, Kind, LocalFuture, Op, Reply, Request};

use super::answer::{ControlResult, ControlTicket, Other, RequestTicket, SeekResult, Ticket};
use super::config::{Config, STAYING_LEN_MIN};
use super::seek::seek;
use super::wire::{ReplyHead, errno};
use crate::covered::spend_for;
use crate::pending::PENDING_MAX;
use crate::pipeline::{Outcome, Pipeline, PipelineLimits};

/// Bytes of replies that are not sent.
const UNSENT: usize = 0;

/// A read or write without its buffer, and the message that has the payload of a write.
struct Transfer {
    ticket: Ticket,
    request: Request,
    payload: IoBuf,
}

/// The requests of a session that a device or the server carries out.
pub(super) struct Transfers {
    config: Config,
    pipeline: Pipeline<Transfer, RequestTicket, Other>,
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
            self.returned = Some(payload);
        }
        self.submit(ticket, with_buffer(request, buf));
    }

    /// The buffer of a payload that has been copied since.
    pub(super) fn returned(&mut self) -> Option<IoBuf> {
        self.returned.take()
    }

    /// Carries out a request without payload.
    pub(super) fn bare(&mut self, ticket: Ticket, request: Request) {
        spend_for(request.range.len);
        self.submit(ticket, request);
    }

    /// Looks for data from `offset` on, or for what is none.
    pub(super) fn seek(&mut self, ticket: Ticket, offset: u64, data: bool) {
        let device = ticket.volume.export().device().clone();
        let found = async move { Other::Seek(seek(device, offset, data).await) };
        self.begin(RequestTicket::Disk(ticket), Box::pin(found));
    }

    /// Waits for what a control file shows, or does.
    pub(super) fn control(&mut self, ticket: ControlTicket, shown: LocalFuture<ControlResult>) {
        self.begin(RequestTicket::Control(ticket), Box::pin(async move { Other::Control(shown.await) }));
    }

    fn submit(&mut self, ticket: Ticket, request: Request) {
        let held = request.buf.capacity();
        let submission = self.pipeline.submit(ticket.volume.export(), request, Aligned::submit_bytes);
        if let Some((asked, outcome)) = self.pipeline.submitted(RequestTicket::Disk(ticket), held, submission)
        {
            self.finish(&asked, outcome);
        }
    }

    fn begin(&mut self, asked: RequestTicket, other: LocalFuture<Other>) {
        if let Some((asked, outcome)) = self.pipeline.begin(asked, 0, other) {
            self.finish(&asked, outcome);
        }
    }

    fn finish(&mut self, asked: &RequestTicket, outcome: Outcome<Other>) {
        match (asked, outcome) {
            (RequestTicket::Disk(ticket), Outcome::Io(reply)) => self.finish_io(ticket, reply),
            (RequestTicket::Disk(ticket), Outcome::Own(Other::Seek(found))) => {
                self.finish_seek(ticket, found)
            }
            (RequestTicket::Control(ticket), Outcome::Own(Other::Control(shown))) => {
                self.finish_control(ticket, shown)
            }
            _ => unreachable!("each request has an answer of its own kind"),
        }
    }

    fn finish_io(&mut self, ticket: &Ticket, Reply { result, buf }: Reply) {
        match result {
            Ok(()) => self.succeed(ticket, buf),
            Err(kind) => self.fail(ticket, errno_of(kind)),
        }
    }

    fn finish_seek(&mut self, ticket: &Ticket, found: SeekResult) {
        match found {
            Ok(offset) => {
                ticket.volume.export().counters.count(ticket.op, Some(0));
                self.reply(ReplyHead::of(ticket.unique, 0).u64(offset));
            }
            Err(None) => {
                ticket.volume.export().counters.count(ticket.op, Some(0));
                self.refuse(ticket.unique, errno::ENXIO);
            }
            Err(Some(kind)) => self.fail(ticket, errno_of(kind)),
        }
    }

    fn finish_control(&mut self, ticket: &ControlTicket, shown: ControlResult) {
        let mut head = ReplyHead::of(ticket.unique, 0);
        match (shown, ticket.written) {
            (Err(errno), _) => self.refuse(ticket.unique, errno),
            (Ok(text), None) => self.reply_with(&mut head, text),
            (Ok(_), Some(len)) => self.reply(head.u32(len).u32(0)),
        }
    }

    fn fail(&mut self, ticket: &Ticket, errno: i32) {
        ticket.volume.export().counters.count(ticket.op, None);
        self.refuse(ticket.unique, errno);
    }

    fn succeed(&mut self, ticket: &Ticket, buf: IoBuf) {
        let mut head = ReplyHead::of(ticket.unique, 0);
        ticket.volume.export().counters.count(ticket.op, Some(buf.len() as u64));
        match ticket.op {
            Some(Op::Read) => self.reply_with(&mut head, buf),
            Some(Op::Write) => self.reply(head.u32(buf.len() as u32).u32(0)),
            _ => self.reply(&mut head),
        }
    }

    /// Replies with a head alone.
    pub(super) fn reply(&mut self, head: &mut ReplyHead) {
        self.reply_with(head, IoBuf::empty());
    }

    /// Replies with a body behind the head.
    pub(super) fn reply_with(&mut self, head: &mut ReplyHead, body: IoBuf) {
        self.replies.push_back(Message::new(head.finish(body.len()), body));
    }

    /// Replies with an errno.
    pub(super) fn refuse(&mut self, unique: u64, errno: i32) {
        self.reply(&mut ReplyHead::of(unique, errno));
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
        while let Some((asked, outcome)) = self.pipeline.next_answer() {
            self.finish(&asked, outcome);
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

/// A request to write what comes later at `offset`.
pub(super) fn writing(offset: u64, durable: bool) -> Request {
    let request = Request::write(offset, IoBuf::empty());
    Request { flags: Flags { fua: durable, ..Flags::default() }, ..request }
}

/// The errno of a failure, as files have it.
pub(super) fn errno_of(kind: Kind) -> i32 {
    if kind == Kind::ReadOnly { errno::EROFS } else { kind.errno() }
}
