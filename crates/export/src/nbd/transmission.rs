//! The stream of requests: headers and payloads in, submissions to the device, replies out.
//!
//! Each request is submitted as soon as it is here whole. An answer that is known at once is replied to at once; the
//! others go to [`Pending`]. Replies leave in the order in which answers come.
//!
//! Backpressure, by the rule in [`memory`](super::memory): no new request is begun while unsent replies and pending
//! requests together hold more than [`Config::held_bytes_max`], or [`Config::requests_max`] are pending, or memory is short
//! and the connection holds more than it gets in any case. A request that needs a buffer waits until the connection's own
//! limit has room for it, and then until [`buffer::room`] has it; one of a connection that holds nothing gets a small buffer
//! at once.
//!
//! Fairness: each request and each poll of an answer is counted as [`work`]; once the turn is spent no other is begun, and the
//! bytes behind it stay with the driver.

use std::task::{Context, Poll};

use spillway_core::buffer::{self, Reserve};
use spillway_core::session::{Intake, Output};
use spillway_core::{Aligned, Answer, ByteRange, IoBuf, LocalFuture, Op, Reply, Request, work};

use super::answer::{Outcome, Work, held_by};
use super::config::Config;
use super::incoming::Incoming;
use super::memory::{ASSURED_BYTES, EXTENTS_BYTES, EXTENTS_MAX, EXTENTS_MIN};
use super::reply::{Refusal, cut};
use super::request::Rules;
use super::ticket::{Command, Ticket};
use super::wire::{RequestHeader, cmd, cmd_flag, errno};
use crate::covered::spend_for;
use crate::ending::Ending;
use crate::export::Connected;
use crate::pending::Pending;
use crate::statistics::{Counter, Tally};

/// Bytes of replies that are sent before more requests are taken: the client has something to do meanwhile.
const SENT_SOON: usize = 64 << 10;

/// Extents sent in one unit of work.
const EXTENTS_A_UNIT: u32 = 8;

/// Where in the stream we are.
enum Place {
    /// At a request's header.
    Header,
    /// In a payload.
    Payload(Incoming),
    /// In a payload whose buffer the driver has.
    Lent(Ticket, usize),
    /// In a payload that nobody wants: bytes left.
    Skip(u64),
    /// Behind a header whose request waits for a buffer, or without a future for the connection to hold less.
    Parked(Ticket, Option<LocalFuture<IoBuf>>),
    /// Behind the last request: nothing is taken any more.
    End,
}

/// The transmission phase of one client.
pub(super) struct Transmission {
    device: Aligned,
    rules: Rules,
    config: Config,
    place: Place,
    partial: [u8; RequestHeader::LEN_MAX],
    partial_len: usize,
    pending: Pending<Ticket, Work>,
    ending: Ending,
    tally: Tally,
    /// Last, so that the client is counted out after its pending requests are gone.
    connected: Connected,
}

impl Transmission {
    pub(super) fn new(connected: Connected, rules: Rules, config: Config) -> Self {
        Self {
            device: connected.export().device().clone(),
            rules,
            config,
            place: Place::Header,
            partial: [0; RequestHeader::LEN_MAX],
            partial_len: 0,
            pending: Pending::default(),
            ending: Ending::default(),
            tally: Tally::default(),
            connected,
        }
    }

    /// Nothing more will be answered.
    pub(super) fn over(&self) -> bool {
        self.ending.is_over()
    }

    /// Requests received whole and not answered.
    pub(super) fn pending(&self) -> usize {
        let parked = matches!(&self.place, Place::Parked(ticket, _) if ticket.command == Command::Read);
        self.pending.len() + usize::from(parked)
    }

    /// A payload has begun and is not here whole.
    pub(super) fn owed(&self) -> bool {
        matches!(self.place, Place::Payload(_) | Place::Lent(..))
    }

    /// Bytes that this connection keeps from others.
    fn held(&self, out: &Output) -> usize {
        out.held() + self.pending.bytes() as usize
    }

    /// Whether no further request is begun. Sending or an answer ends that.
    fn full(&mut self, out: &Output) -> bool {
        let held = self.held(out);
        held > self.config.held_bytes_max
            || self.pending.len() >= self.config.requests_max
            || (held > ASSURED_BYTES && buffer::is_short())
            || !self.pending.has_room()
    }

    /// Whether the connection may hold another buffer of `len` bytes.
    fn affords(&self, len: usize, out: &Output) -> bool {
        (self.pending.is_empty() && out.is_empty())
            || self.held(out) + buffer::bytes_for(len) <= self.config.held_bytes_max
    }

    /// What to receive next.
    pub(super) fn intake(&mut self, out: &Output) -> Intake {
        if let Place::Payload(incoming) = &mut self.place {
            let Some(buf) = incoming.lend() else { return Intake::Bytes };
            self.place = Place::Lent(incoming.ticket, incoming.filled);
            return Intake::Payload(buf);
        }
        let full = matches!(self.place, Place::Header) && self.full(out);
        match &self.place {
            Place::Header if full => Intake::Pause,
            Place::Header | Place::Skip(_) | Place::Payload(_) => Intake::Bytes,
            Place::Lent(..) | Place::End => Intake::Pause,
            Place::Parked(ticket, room) => {
                let len = ticket.length as usize;
                // Only sending made this so: nothing else would wake the task to look again.
                if self.assured(len, out) || (room.is_none() && self.affords(len, out)) {
                    self.pending.wake_task();
                }
                Intake::Pause
            }
        }
    }

    /// Takes back a lent buffer with `filled` more bytes in it.
    pub(super) fn returned(&mut self, mut buf: IoBuf, filled: usize, out: &mut Output) {
        let Place::Lent(ticket, before) = self.place else { return };
        assert!(filled <= buf.len(), "{filled} bytes filled of a window of {}", buf.len());
        buf.widen(ticket.length as usize);
        self.go_on(Incoming::new(ticket, buf, before + filled), out);
        self.settle();
    }

    /// Takes bytes; returns how many.
    pub(super) fn receive(&mut self, bytes: &[u8], out: &mut Output) -> usize {
        let mut at = 0;
        let before = out.len();
        while at < bytes.len() {
            let rest = &bytes[at..];
            let enough = out.len() - before >= SENT_SOON || self.full(out) || work::spent();
            at += match &mut self.place {
                Place::Header if enough => break,
                Place::Header => self.take_header(rest, out),
                Place::Payload(_) => self.take_payload(rest, out),
                Place::Skip(left) => {
                    let used = (*left).min(rest.len() as u64);
                    *left -= used;
                    if *left == 0 {
                        self.place = Place::Header;
                    }
                    used as usize
                }
                Place::Lent(..) | Place::Parked(..) => break,
                Place::End => rest.len(),
            };
        }
        self.settle();
        at
    }

    fn take_header(&mut self, bytes: &[u8], out: &mut Output) -> usize {
        let len = self.rules.headers().request_len();
        if self.partial_len == 0 && bytes.len() >= len {
            let (header, rest) = bytes.split_at(len);
            return len + self.begin(header, rest, out);
        }
        let used = (len - self.partial_len).min(bytes.len());
        self.partial[self.partial_len..self.partial_len + used].copy_from_slice(&bytes[..used]);
        self.partial_len += used;
        if self.partial_len < len {
            return used;
        }
        self.partial_len = 0;
        let header = self.partial;
        used + self.begin(&header[..len], &bytes[used..], out)
    }

    /// Begins a request; returns how many bytes of `rest` it took.
    fn begin(&mut self, header: &[u8], rest: &[u8], out: &mut Output) -> usize {
        work::spend(work::REQUEST);
        let Some(header) = RequestHeader::decode(self.rules.headers(), header) else {
            return self.disconnect();
        };
        if header.command == cmd::DISC {
            return self.disconnect();
        }
        let Some(payload_len) = self.rules.payload_len(&header) else { return self.disconnect() };
        match self.admit(&header) {
            Ok(ticket) => self.accept(ticket, rest, out),
            Err(refusal) => {
                self.place = if payload_len > 0 { Place::Skip(payload_len) } else { Place::Header };
                self.refuse_header(&header, refusal, out);
                0
            }
        }
    }

    fn admit(&self, header: &RequestHeader) -> Result<Ticket, Refusal> {
        if self.ending.is_wanted() { Err(SHUTTING_DOWN) } else { self.rules.admit(header) }
    }

    fn refuse_header(&mut self, header: &RequestHeader, refusal: Refusal, out: &mut Output) {
        let RequestHeader { flags, cookie, offset, length, .. } = *header;
        // A reply needs the mark and the offset; the command no longer matters.
        let ticket = Ticket { command: Command::Flush, flags, cookie, offset, length };
        self.refuse(&ticket, refusal, out);
    }

    fn accept(&mut self, ticket: Ticket, rest: &[u8], out: &mut Output) -> usize {
        match ticket.command {
            Command::Read | Command::Write => match self.buffer(ticket.length as usize, out) {
                Some(buf) => return self.begin_with_buffer(ticket, buf, rest, out),
                None => self.place = Place::Parked(ticket, self.room(&ticket, out)),
            },
            Command::Flush => self.submit(ticket, Request::flush(), out),
            Command::Trim => self.submit_bare(ticket, Op::Discard, out),
            Command::WriteZeroes => self.submit_bare(ticket, Op::WriteZeroes, out),
            Command::Cache => self.succeed(&ticket, out),
            Command::BlockStatus => self.query_extents(ticket, out),
        }
        0
    }

    fn buffer(&self, len: usize, out: &Output) -> Option<IoBuf> {
        if !self.affords(len, out) {
            return None;
        }
        IoBuf::try_new(len).or_else(|| self.assured(len, out).then(|| IoBuf::new(len)))
    }

    /// The wait for a buffer, once the connection may hold it.
    fn room(&self, ticket: &Ticket, out: &Output) -> Option<LocalFuture<IoBuf>> {
        let len = ticket.length as usize;
        self.affords(len, out).then(|| Box::pin(buffer::room(len)) as LocalFuture<IoBuf>)
    }

    /// Whether a buffer of `len` bytes is due however short memory is.
    fn assured(&self, len: usize, out: &Output) -> bool {
        len <= ASSURED_BYTES && self.pending.is_empty() && out.is_empty()
    }

    fn begin_with_buffer(&mut self, ticket: Ticket, buf: IoBuf, rest: &[u8], out: &mut Output) -> usize {
        if ticket.command == Command::Read {
            self.submit(ticket, Request { buf, ..request(&ticket, Op::Read) }, out);
            return 0;
        }
        let mut incoming = Incoming::new(ticket, buf, 0);
        let used = incoming.fill(rest);
        self.go_on(incoming, out);
        used
    }

    fn take_payload(&mut self, bytes: &[u8], out: &mut Output) -> usize {
        let Place::Payload(mut incoming) = std::mem::replace(&mut self.place, Place::Header) else {
            return 0;
        };
        let used = incoming.fill(bytes);
        self.go_on(incoming, out);
        used
    }

    /// Waits for the rest of a payload, or submits it.
    fn go_on(&mut self, incoming: Incoming, out: &mut Output) {
        if incoming.missing() > 0 {
            self.place = Place::Payload(incoming);
            return;
        }
        self.place = Place::Header;
        let (ticket, buf) = incoming.into_parts();
        if self.ending.is_wanted() {
            return self.refuse(&ticket, SHUTTING_DOWN, out);
        }
        self.submit(ticket, Request { buf, ..request(&ticket, Op::Write) }, out);
    }

    fn submit_bare(&mut self, ticket: Ticket, op: Op, out: &mut Output) {
        spend_for(ticket.length);
        self.submit(ticket, request(&ticket, op), out);
    }

    fn submit(&mut self, ticket: Ticket, request: Request, out: &mut Output) {
        match self.device.submit(request) {
            Answer::Done(reply) => {
                work::spend_bytes(reply.buf.len(), work::BYTES_STORED);
                self.answer(&ticket, reply, out);
            }
            Answer::Pending(future) => self.await_work(ticket, Work::Io(future), out),
        }
    }

    fn query_extents(&mut self, ticket: Ticket, out: &mut Output) {
        spend_for(ticket.length);
        let one = ticket.has(cmd_flag::REQ_ONE);
        let reserve = if one { None } else { Reserve::try_new(EXTENTS_BYTES) };
        let count_max = match &reserve {
            Some(_) => EXTENTS_MAX,
            None if one => 1,
            None => EXTENTS_MIN,
        };
        match self.device.extents(self.blocks_around(ticket.range()), count_max) {
            Answer::Done(extents) => self.finish(&ticket, Outcome::Extents(extents), out),
            Answer::Pending(future) => {
                let with_memory = async move {
                    let _reserve = reserve;
                    future.await
                };
                self.await_work(ticket, Work::Extents(Box::pin(with_memory)), out);
            }
        }
    }

    /// Devices know whole blocks only.
    fn blocks_around(&self, range: ByteRange) -> ByteRange {
        let cover = self.device.preferred_block().cover(range);
        ByteRange::new(cover.offset, cover.len.min(self.rules.geometry.size - cover.offset))
    }

    fn await_work(&mut self, ticket: Ticket, work: Work, out: &mut Output) {
        if let Some((ticket, outcome)) = self.pending.begin(ticket, held_by(&ticket), work) {
            self.finish(&ticket, outcome, out);
        }
    }

    fn finish(&mut self, ticket: &Ticket, outcome: Outcome, out: &mut Output) {
        match outcome {
            Outcome::Io(reply) => self.answer(ticket, reply, out),
            Outcome::Extents(Err(kind)) => self.refuse(ticket, kind.into(), out),
            Outcome::Extents(Ok(extents)) => {
                let head = ticket.offset - self.blocks_around(ticket.range()).offset;
                self.count(ticket);
                work::spend(extents.len() as u32 / EXTENTS_A_UNIT);
                self.rules.replies.block_status(ticket, &cut(&extents, head, ticket.length), out);
            }
        }
    }

    #[inline]
    fn answer(&mut self, ticket: &Ticket, reply: Reply, out: &mut Output) {
        match reply.result {
            Err(kind) => self.refuse(ticket, kind.into(), out),
            Ok(()) if ticket.command == Command::Read => {
                self.count(ticket);
                self.rules.replies.content(ticket, reply.buf, out);
            }
            Ok(()) => self.succeed(ticket, out),
        }
    }

    #[inline]
    fn succeed(&mut self, ticket: &Ticket, out: &mut Output) {
        self.count(ticket);
        self.rules.replies.success(ticket, out);
    }

    fn refuse(&mut self, ticket: &Ticket, refusal: Refusal, out: &mut Output) {
        self.tally.add(Counter::Errors, 1);
        self.rules.replies.refusal(ticket, refusal, out);
    }

    #[inline]
    fn count(&mut self, ticket: &Ticket) {
        let (requests, bytes) = match ticket.command {
            Command::Read => (Counter::Reads, Some(Counter::ReadBytes)),
            Command::Write => (Counter::Writes, Some(Counter::WriteBytes)),
            Command::Flush => (Counter::Flushes, None),
            Command::Trim => (Counter::Trims, None),
            Command::WriteZeroes => (Counter::WriteZeroes, None),
            Command::Cache | Command::BlockStatus => (Counter::Others, None),
        };
        self.tally.add(requests, 1);
        if let Some(bytes) = bytes {
            self.tally.add(bytes, ticket.length);
        }
    }

    /// Lets pending answers progress and replies to those that came.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut Output) {
        if !self.pending.is_empty() || matches!(self.place, Place::Parked(..)) {
            self.pending.collect(context);
            while let Some((ticket, outcome)) = self.pending.next_done() {
                self.finish(&ticket, outcome, out);
                if work::spent() {
                    break;
                }
            }
            self.poll_parked(context, out);
        }
        self.settle();
        self.ending.poll(context, self.connected.export());
        self.publish();
    }

    fn poll_parked(&mut self, context: &mut Context<'_>, out: &mut Output) {
        let Place::Parked(ticket, room) = &mut self.place else { return };
        let (ticket, mut room) = (*ticket, room.take());
        let len = ticket.length as usize;
        room = room.or_else(|| self.room(&ticket, out));
        let buf = match room.as_mut().map(|room| room.as_mut().poll(context)) {
            Some(Poll::Ready(buf)) => buf,
            _ if self.assured(len, out) => IoBuf::new(len),
            _ => {
                self.place = Place::Parked(ticket, room);
                return;
            }
        };
        self.place = Place::Header;
        self.begin_with_buffer(ticket, buf, &[], out);
    }

    /// Nothing more is taken; what is pending is still answered.
    fn disconnect(&mut self) -> usize {
        self.place = Place::End;
        self.ending.disconnect();
        0
    }

    /// The client's place in its export.
    pub(super) fn connected(&self) -> &Connected {
        &self.connected
    }

    /// Refuses what comes from now on, and ends after what is pending.
    pub(super) fn wind_down(&mut self, out: &mut Output) {
        self.ending.wind_down();
        if let Place::Parked(ticket, _) = &self.place
            && ticket.command == Command::Write
        {
            let ticket = *ticket;
            self.place = Place::Skip(ticket.length);
            self.refuse(&ticket, SHUTTING_DOWN, out);
        }
        self.settle();
    }

    /// Goes on with the end, where nothing is pending any more.
    fn settle(&mut self) {
        if self.ending.is_wanted() && self.pending() == 0 {
            self.ending.settle(self.connected.export());
        }
    }

    /// Adds what happened since the last time to the export's counts.
    fn publish(&mut self) {
        self.tally.publish(&self.connected.export().counters);
    }
}

impl Drop for Transmission {
    fn drop(&mut self) {
        self.publish();
    }
}

const SHUTTING_DOWN: Refusal = Refusal::new(errno::ESHUTDOWN, "the server is stopping");

/// The request to the device, still without its buffer.
fn request(ticket: &Ticket, op: Op) -> Request {
    Request { op, range: ticket.range(), flags: ticket.device_flags(), buf: IoBuf::empty() }
}
