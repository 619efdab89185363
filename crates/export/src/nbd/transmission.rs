//! The stream of requests: headers and payloads in, submissions to the device, replies out.
//!
//! Each request is submitted as soon as it is here whole. An answer that is known at once is replied to at once; the
//! others go to the [`Pipeline`]. Replies leave in the order in which answers come.
//!
//! Back-pressure is that of [`Pipeline`], with the charges of [`memory`](super::memory).
//!
//! Fairness: each request and each poll of an answer is counted as [`work`]; once the turn is spent no other is begun, and the
//! bytes behind it stay with the driver.

use std::task::Context;

use spillway_core::buffer::Reserve;
use spillway_core::session::{Intake, Output};
use spillway_core::{Aligned, Answer, ByteRange, Extent, IoBuf, Kind, Op, Request, mutant, work};

use super::config::Config;
use super::incoming::{Incoming, PartialHeader, StreamPosition};
use super::memory::{EXTENTS_BYTES, EXTENTS_MAX, EXTENTS_MIN};
use super::reply::{Refusal, cut};
use super::request::NegotiatedRules;
use super::responder::Responder;
use super::ticket::{Command, Ticket};
use super::wire::{RequestHeader, cmd, cmd_flag};
use crate::covered::spend_for;
use crate::ending::Ending;
use crate::export::Connected;
use crate::pipeline::{Outcome, Pipeline, PipelineLimits};

/// Bytes of replies that are sent before more requests are taken: the client has something to do meanwhile.
const SENT_SOON: usize = 64 << 10;

/// Extents sent in one unit of work.
const EXTENTS_A_UNIT: u32 = 8;

/// What lies in a range, as the device says.
type Found = Result<Vec<Extent>, Kind>;

/// The transmission phase of one client.
pub(super) struct Transmission {
    device: Aligned,
    rules: NegotiatedRules,
    position: StreamPosition,
    partial: PartialHeader,
    pipeline: Pipeline<Ticket, Ticket, Found>,
    ending: Ending,
    responder: Responder,
    /// Last, so that the client is counted out after its pending requests are gone.
    connected: Connected,
}

impl Transmission {
    pub(super) fn new(connected: Connected, rules: NegotiatedRules, config: Config) -> Self {
        let Config { held_bytes_max, requests_max, .. } = config;
        Self {
            device: connected.export().device().clone(),
            rules,
            position: StreamPosition::Header,
            partial: PartialHeader::default(),
            pipeline: Pipeline::new(PipelineLimits { held_bytes_max, requests_max }),
            ending: Ending::default(),
            responder: Responder::new(rules.replies),
            connected,
        }
    }

    /// Nothing more will be answered.
    pub(super) fn over(&self) -> bool {
        self.ending.is_over()
    }

    /// Requests received whole and not answered.
    pub(super) fn pending(&self) -> usize {
        let parked = self.pipeline.parked().is_some_and(|ticket| ticket.command == Command::Io(Op::Read));
        self.pipeline.pending() + usize::from(parked)
    }

    /// A payload has begun and is not here whole, or a request waits for a buffer.
    pub(super) fn owed(&self) -> bool {
        matches!(self.position, StreamPosition::Payload(_) | StreamPosition::Lent(..))
            || self.pipeline.parked().is_some()
    }

    /// Nothing more is carried out but what is pending.
    pub(super) fn ends(&self) -> bool {
        self.ending.is_wanted()
    }

    /// What to receive next.
    pub(super) fn intake(&mut self, out: &Output) -> Intake {
        match &mut self.position {
            StreamPosition::Header if !self.pipeline.admits(unsent(out)) => Intake::Pause,
            StreamPosition::Header | StreamPosition::Skip(..) => Intake::Bytes,
            StreamPosition::Payload(incoming) => {
                let Some(buf) = incoming.lend() else { return Intake::Bytes };
                self.position = StreamPosition::Lent(incoming.ticket, incoming.filled);
                Intake::Payload(buf)
            }
            StreamPosition::Lent(..) | StreamPosition::End => Intake::Pause,
        }
    }

    /// Takes back a lent buffer with `filled` more bytes in it.
    pub(super) fn returned(&mut self, mut buf: IoBuf, filled: usize, out: &mut Output) {
        let StreamPosition::Lent(ticket, before) = self.position else { return };
        assert!(filled <= buf.len(), "{filled} bytes filled of a window of {}", buf.len());
        let before = if mutant::on("nbd: forget the first piece of a payload") { 0 } else { before };
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
            at += match &mut self.position {
                StreamPosition::Header if out.len() - before >= SENT_SOON || work::spent() => break,
                StreamPosition::Header if !self.pipeline.admits(unsent(out)) => break,
                StreamPosition::Header => self.take_header(rest, out),
                StreamPosition::Payload(_) => self.take_payload(rest, out),
                StreamPosition::Skip(left, refused) => {
                    let used = rest.len().min(*left as usize);
                    let (left, refused) = (*left - used as u64, *refused);
                    self.skip(left, refused, out);
                    used
                }
                StreamPosition::Lent(..) => break,
                StreamPosition::End => rest.len(),
            };
        }
        self.settle();
        at
    }

    fn take_header(&mut self, bytes: &[u8], out: &mut Output) -> usize {
        let len = self.rules.headers().request_len();
        if self.partial.is_empty() && bytes.len() >= len {
            let (header, rest) = bytes.split_at(len);
            return len + self.begin(header, rest, out);
        }
        match self.partial.fill(len, bytes) {
            (used, None) => used,
            (used, Some(header)) => used + self.begin(&header[..len], &bytes[used..], out),
        }
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
                self.skip(payload_len, Some((Ticket::refused(&header), refusal)), out);
                0
            }
        }
    }

    /// Skips so many bytes of payload before it refuses their request; at once where the connection ends.
    fn skip(&mut self, len: u64, mut refused: Option<(Ticket, Refusal)>, out: &mut Output) {
        if (len == 0 || self.ending.is_wanted())
            && let Some((ticket, refusal)) = refused.take()
        {
            self.responder.refuse(&ticket, refusal, out);
        }
        self.position = if len > 0 { StreamPosition::Skip(len, refused) } else { StreamPosition::Header };
    }

    fn admit(&mut self, header: &RequestHeader) -> Result<Ticket, Refusal> {
        if self.ending.is_wanted() {
            return Err(Refusal::SHUTTING_DOWN);
        }
        let admitted = self.rules.admit(header);
        if admitted.is_ok() || !self.has_grown() {
            return admitted;
        }
        self.rules.admit(header)
    }

    /// Whether there is room that the client was not told of. The kernel's client uses it once it is told by another way.
    fn has_grown(&mut self) -> bool {
        let (told, present) = (self.rules.geometry.size, self.connected.export().geometry().size);
        self.rules.geometry.size = present.max(told);
        present > told
    }

    fn accept(&mut self, ticket: Ticket, rest: &[u8], out: &mut Output) -> usize {
        match ticket.command {
            Command::Io(Op::Read | Op::Write) => {
                if let Some((ticket, buf)) = self.pipeline.equip(ticket, ticket.length as usize, unsent(out))
                {
                    return self.begin_with_buffer(ticket, buf, rest, out);
                }
            }
            Command::Io(Op::Flush) => self.submit(ticket, Request::flush(), out),
            Command::Io(op) => self.submit_bare(ticket, op, out),
            Command::Cache => self.responder.succeed(&ticket, out),
            Command::BlockStatus => self.query_extents(ticket, out),
        }
        0
    }

    fn begin_with_buffer(&mut self, ticket: Ticket, buf: IoBuf, rest: &[u8], out: &mut Output) -> usize {
        if ticket.command == Command::Io(Op::Read) {
            self.submit(ticket, Request { buf, ..ticket.request(Op::Read) }, out);
            return 0;
        }
        let mut incoming = Incoming::new(ticket, buf, 0);
        let used = incoming.fill(rest);
        self.go_on(incoming, out);
        used
    }

    fn take_payload(&mut self, bytes: &[u8], out: &mut Output) -> usize {
        let StreamPosition::Payload(mut incoming) =
            std::mem::replace(&mut self.position, StreamPosition::Header)
        else {
            unreachable!("{} bytes are taken for a payload that has not begun", bytes.len())
        };
        let used = incoming.fill(bytes);
        self.go_on(incoming, out);
        used
    }

    /// Waits for the rest of a payload, or submits it.
    fn go_on(&mut self, incoming: Incoming, out: &mut Output) {
        if incoming.missing() > 0 {
            self.position = StreamPosition::Payload(incoming);
            return;
        }
        self.position = StreamPosition::Header;
        let (ticket, buf) = incoming.into_parts();
        if self.ending.is_wanted() {
            return self.responder.refuse(&ticket, Refusal::SHUTTING_DOWN, out);
        }
        self.submit(ticket, Request { buf, ..ticket.request(Op::Write) }, out);
    }

    fn submit_bare(&mut self, ticket: Ticket, op: Op, out: &mut Output) {
        spend_for(ticket.length);
        self.submit(ticket, ticket.request(op), out);
    }

    fn submit(&mut self, ticket: Ticket, request: Request, out: &mut Output) {
        let held = request.buf.capacity();
        let submission = self.pipeline.submit(self.connected.export(), request, Aligned::submit);
        if let Some((ticket, outcome)) = self.pipeline.submitted(ticket, held, submission) {
            self.finish(&ticket, outcome, out);
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
        let found = self.device.extents(self.blocks_around(ticket.range()), count_max);
        let found = match found {
            Answer::Done(found) => return self.finish(&ticket, Outcome::Own(found), out),
            Answer::Pending(future) => future,
        };
        let held = if one { 0 } else { EXTENTS_BYTES };
        let with_memory = async move {
            let _reserve = reserve;
            found.await
        };
        if let Some((ticket, outcome)) = self.pipeline.begin(ticket, held, Box::pin(with_memory)) {
            self.finish(&ticket, outcome, out);
        }
    }

    /// Devices know whole blocks only.
    fn blocks_around(&self, range: ByteRange) -> ByteRange {
        let cover = self.device.preferred_block().cover(range);
        ByteRange::new(cover.offset, cover.len.min(self.rules.geometry.size - cover.offset))
    }

    fn finish(&mut self, ticket: &Ticket, outcome: Outcome<Found>, out: &mut Output) {
        match outcome {
            Outcome::Io(reply) => self.responder.answer(ticket, reply, out),
            Outcome::Own(Err(kind)) => self.responder.refuse(ticket, kind.into(), out),
            Outcome::Own(Ok(extents)) => {
                let head = ticket.offset - self.blocks_around(ticket.range()).offset;
                work::spend(extents.len() as u32 / EXTENTS_A_UNIT);
                self.responder.block_status(ticket, &cut(&extents, head, ticket.length), out);
            }
        }
    }

    /// Lets pending answers progress and replies to those that came.
    pub(super) fn poll(&mut self, context: &mut Context<'_>, out: &mut Output) {
        self.pipeline.collect(context);
        while let Some((ticket, outcome)) = self.pipeline.next_answer() {
            self.finish(&ticket, outcome, out);
        }
        if let Some((ticket, buf)) = self.pipeline.poll_parked(context, unsent(out)) {
            self.begin_with_buffer(ticket, buf, &[], out);
        }
        self.settle();
        self.ending.poll(context, self.connected.export());
        self.responder.publish(&self.connected.export().counters);
    }

    /// Nothing more is taken; what is pending is still answered.
    fn disconnect(&mut self) -> usize {
        self.position = StreamPosition::End;
        self.ending.disconnect();
        0
    }

    /// The client's place in its export.
    pub(super) fn connected(&self) -> &Connected {
        &self.connected
    }

    /// Refuses what comes from now on, and ends after what is pending. A client that comes back is refused nothing: the kernel's sends to the
    /// next server what has no answer, and fails what has another.
    pub(super) fn wind_down(&mut self, out: &mut Output) {
        let begins = !self.ending.is_wanted();
        self.ending.wind_down();
        if begins && self.connected.export().comes_back() {
            self.position = StreamPosition::End;
            if self.pipeline.parked().is_some_and(|ticket| ticket.command == Command::Io(Op::Write)) {
                self.pipeline.take_parked();
            }
        }
        if let StreamPosition::Skip(left, refused) = self.position {
            self.skip(left, refused, out);
        }
        // Its payload has not been received.
        if self.pipeline.parked().is_some_and(|ticket| ticket.command == Command::Io(Op::Write))
            && let Some(ticket) = self.pipeline.take_parked()
        {
            self.skip(ticket.length, Some((ticket, Refusal::SHUTTING_DOWN)), out);
        }
        self.settle();
    }

    /// Goes on with the end, where nothing is pending any more.
    fn settle(&mut self) {
        if self.ending.is_wanted() && self.pending() == 0 {
            self.ending.settle(self.connected.export());
        }
    }
}

/// Bytes of memory that unsent replies take; a queue without any keeps a page, which is the connection's own.
fn unsent(out: &Output) -> usize {
    if out.is_empty() { 0 } else { out.held() }
}

impl Drop for Transmission {
    fn drop(&mut self) {
        self.responder.publish(&self.connected.export().counters);
    }
}
