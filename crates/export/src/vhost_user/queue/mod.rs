//! One queue: requests from the ring to the device, answers back into the ring.
//!
//! ```text
//!   ring -> chain -> header -> `Pipeline::equip` -> copied in, where it is a write -> device -> copied out, where it was a read -> status
//!        -> used ring, in between two notes in the memory that outlives this process
//! ```
//!
//! A chain is copied before anything of it is looked at, and the guest may change it meanwhile: what counts is what was copied.

mod answers;

use std::sync::Arc;
use std::task::Context;

use spillway_core::shared_memory::Queue;
use spillway_core::sync::Ordering;
use spillway_core::{Aligned, Flags, IoBuf, Op, Request, SECTOR, mutant, work};

use super::block::{Command, DiscardRange, HEADER_LEN, ID_LEN, RANGE_LEN, status};
use super::inflight::Inflight;
use super::memory::{GuestMemory, NotShared};
use super::pieces::{copy_out, drop_front, keep_last_byte, spare_of};
use super::ring::{Broken, Chain, GuestSegments, Ring, Segment, bytes_of};
use super::setup::Parts;
use crate::covered::spend_for;
use crate::pending::PENDING_MAX;
use crate::pipeline::{Pipeline, PipelineLimits};

/// Bytes of answers that are not in the ring.
const UNSENT: usize = 0;

/// Pieces of memory that the requests of a queue may have in all, beyond those that each has room for: from then on no other is taken.
const SEGMENTS_HELD_MAX: usize = 2048;

/// Pieces that are looked up and copied in one unit of work. The guest decides how many a request has.
const PIECES_A_UNIT: usize = 4;

/// Fewest requests in a row after which the front end is told of answers, where so many come in a row.
const ROUND_MIN: usize = 4;

/// It is told when so many requests wait: they keep this side busy until it has awoken and added more. While more of them wait, it can sleep.
const AHEAD: usize = 24;

const CUT_OFF: Broken = Broken("memory that was shared is gone: its file was cut off");

/// A request that is under way.
struct Ticket {
    head: u16,
    command: Command,
    /// Where what is read goes, and the status behind it.
    writable: GuestSegments,
    /// Of a flush, its number.
    flush: u64,
    /// Of a write or zeroing: it is durable when it is answered.
    durable: bool,
}

/// A read or write without its buffer.
struct Transfer {
    ticket: Ticket,
    offset: u64,
    /// Where the payload of a write lies, behind the header.
    readable: GuestSegments,
}

/// Nothing is waited for besides the device.
enum Never {}

/// See the head of this file.
pub(crate) struct BlockQueue {
    parts: Parts,
    /// Absent once it is broken.
    ring: Option<Ring>,
    pipeline: Pipeline<Transfer, Ticket, Never>,
    /// Taken by a former server and not given back, the first one last.
    left_over: Vec<u16>,
    stopped: bool,
    /// Pieces held beyond those that each request has room for.
    segments: usize,
    breach: Option<&'static str>,
    /// Whether the driver is to be interrupted for what was given back before the ring was broken.
    owed: bool,
}

impl BlockQueue {
    pub(crate) fn new(mut parts: Parts) -> Self {
        let memory = parts.shared.memory.lock().clone();
        let Parts { layout, event_index, base, .. } = parts;
        let (ring, mut left_over) = match Ring::new(layout, event_index, base, &memory) {
            Ok(ring) => recovered(ring, parts.inflight.as_mut()),
            Err(NotShared) => (None, Vec::new()),
        };
        let breach = ring.is_none().then_some("its rings are not in shared memory");
        left_over.reverse();
        parts.shared.base.store(ring.as_ref().map_or(base, Ring::base).into(), Ordering::Relaxed);
        let limits =
            PipelineLimits { held_bytes_max: parts.limits.held_bytes_max, requests_max: PENDING_MAX };
        let pipeline = Pipeline::new(limits);
        Self { parts, ring, pipeline, left_over, stopped: false, segments: 0, breach, owed: false }
    }

    fn memory(&self) -> Arc<GuestMemory> {
        self.parts.shared.memory.lock().clone()
    }

    fn break_down(&mut self, memory: &GuestMemory, why: Broken) {
        self.breach = Some(why.0);
        if let Some(mut ring) = self.ring.take() {
            self.parts.shared.base.store(u32::from(ring.base()), Ordering::Relaxed);
            self.owed = ring.interrupts(memory).unwrap_or(false);
        }
        self.left_over.clear();
    }

    fn admits(&mut self) -> bool {
        let enabled = self.parts.shared.enabled.load(Ordering::Acquire) != 0;
        enabled && !self.stopped && self.segments < SEGMENTS_HELD_MAX && self.pipeline.admits(UNSENT)
    }

    /// Takes the next request: first those that a former server has left.
    fn take(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, Broken> {
        let Some(ring) = &mut self.ring else { return Ok(None) };
        if !memory.is_whole() {
            return Err(CUT_OFF);
        }
        if let Some(head) = self.left_over.pop() {
            return ring.chain(memory, head).map(Some);
        }
        let taken = ring.take(memory)?;
        if let Some((chain, inflight)) = taken.as_ref().zip(self.parts.inflight.as_mut()) {
            inflight.take(chain.head);
        }
        Ok(taken)
    }

    /// Takes requests until the front end is to hear of answers, and to go on, while those that wait are carried out.
    fn take_some(&mut self, memory: &GuestMemory) -> Result<(), Broken> {
        for taken in 1.. {
            if work::spent() || !self.admits() {
                break;
            }
            let Some(chain) = self.take(memory)? else { break };
            let pieces = chain.readable.len() + chain.writable.len();
            work::spend(work::REQUEST + (pieces / PIECES_A_UNIT) as u32);
            self.begin(memory, chain)?;
            if taken >= ROUND_MIN && self.waiting(memory)? <= AHEAD {
                break;
            }
        }
        Ok(())
    }

    /// Requests that can be taken.
    fn waiting(&self, memory: &GuestMemory) -> Result<usize, Broken> {
        let available = self.ring.as_ref().map_or(Ok(0), |ring| ring.waiting(memory))?;
        Ok(self.left_over.len() + usize::from(available))
    }

    /// Begins a request, or answers one that cannot be carried out.
    fn begin(&mut self, memory: &GuestMemory, chain: Chain) -> Result<(), Broken> {
        let Chain { head, mut readable, mut writable } = chain;
        if bytes_of(&writable) == 0 {
            return Err(Broken("a request has no room for its status"));
        }
        let mut header = [0; HEADER_LEN];
        let whole = copy_out(memory, &readable, &mut header)?;
        let (command, offset) = if whole { Command::decode(&header) } else { (Command::Unknown, 0) };
        if !matches!(command, Command::Io(Op::Read) | Command::Identify) {
            keep_last_byte(&mut writable)?;
        }
        let ticket = Ticket { head, command, writable, flush: 0, durable: false };
        drop_front(&mut readable, HEADER_LEN as u64);
        // The device may take what this export does not.
        if command.op().is_some_and(Op::writes) && self.parts.export.geometry().read_only {
            return self.finish(memory, &ticket, status::IO_ERROR, &[]);
        }
        match command {
            Command::Io(Op::Read | Op::Write) => self.transfer(memory, Transfer { ticket, offset, readable }),
            Command::Io(Op::Flush) => self.flush(memory, ticket),
            Command::Io(_) => self.bare(memory, ticket, &readable),
            Command::Identify => self.identify(memory, &ticket),
            Command::Unknown => self.finish(memory, &ticket, status::UNSUPPORTED, &[]),
        }
    }

    fn identify(&mut self, memory: &GuestMemory, ticket: &Ticket) -> Result<(), Broken> {
        let mut id = [0; ID_LEN];
        let name = self.parts.export.name().as_bytes();
        let len = name.len().min(ID_LEN);
        id[..len].copy_from_slice(&name[..len]);
        let room = (bytes_of(&ticket.writable) - 1).min(ID_LEN as u64) as usize;
        self.finish(memory, ticket, status::OK, &id[..room])
    }

    fn flush(&mut self, memory: &GuestMemory, mut ticket: Ticket) -> Result<(), Broken> {
        if self.parts.unflushed.lost() {
            return self.finish(memory, &ticket, status::IO_ERROR, &[]);
        }
        ticket.flush = self.parts.unflushed.begin_flush();
        self.submit(memory, ticket, Request::flush())
    }

    /// Discards or zeroes one range, as many as the guest is told.
    fn bare(&mut self, memory: &GuestMemory, mut ticket: Ticket, readable: &[Segment]) -> Result<(), Broken> {
        let mut bytes = [0; RANGE_LEN];
        let whole = copy_out(memory, readable, &mut bytes)? && bytes_of(readable) == RANGE_LEN as u64;
        let named = whole.then(|| DiscardRange::decode(&bytes)).flatten();
        if !memory.is_whole() {
            return Err(CUT_OFF);
        }
        let zeroes = ticket.command == Command::Io(Op::WriteZeroes);
        let Some(DiscardRange { offset, len, unmap }) = named.filter(|named| zeroes || !named.unmap) else {
            return self.finish(memory, &ticket, status::UNSUPPORTED, &[]);
        };
        let range = spillway_core::ByteRange::new(offset.min(u64::MAX - len), len);
        spend_for(len);
        let op = if zeroes { Op::WriteZeroes } else { Op::Discard };
        let flags = Flags { fua: self.parts.write_through && zeroes, no_hole: zeroes && !unmap, free: false };
        ticket.durable = flags.fua;
        self.submit(memory, ticket, Request { flags, ..Request::bare(op, range) })
    }

    /// A read or write, once it has its buffer.
    fn transfer(&mut self, memory: &GuestMemory, transfer: Transfer) -> Result<(), Broken> {
        let len = match transfer.ticket.command {
            Command::Io(Op::Read) => bytes_of(&transfer.ticket.writable) - 1,
            _ => bytes_of(&transfer.readable),
        };
        let most = u64::from(self.parts.limits.payload_len_max);
        if len == 0 || !len.is_multiple_of(SECTOR) || len > most {
            return self.finish(memory, &transfer.ticket, status::IO_ERROR, &[]);
        }
        self.segments += spilled(&transfer);
        match self.pipeline.equip(transfer, len as usize, UNSENT) {
            Some((transfer, buf)) => self.submit_transfer(memory, transfer, buf),
            None => Ok(()),
        }
    }

    fn submit_transfer(
        &mut self,
        memory: &GuestMemory,
        transfer: Transfer,
        mut buf: IoBuf,
    ) -> Result<(), Broken> {
        let held = spilled(&transfer);
        assert!(self.segments >= held, "a request gives back {held} pieces of {}", self.segments);
        self.segments -= held;
        let Transfer { mut ticket, offset, readable } = transfer;
        self.segments += spare_of(&ticket.writable);
        let range = spillway_core::ByteRange::new(offset.min(u64::MAX - buf.len() as u64), buf.len() as u64);
        if ticket.command == Command::Io(Op::Read) {
            return self.submit(memory, ticket, Request { range, ..Request::read(range.offset, buf) });
        }
        copy_out(memory, &readable, &mut buf)?;
        if !memory.is_whole() {
            return Err(CUT_OFF);
        }
        work::spend_bytes(buf.len(), work::BYTES_COPIED);
        let fua =
            self.parts.write_through && !mutant::on("vhost: leave writes of a driver that does not flush");
        let flags = Flags { fua, ..Flags::default() };
        ticket.durable = flags.fua;
        self.submit(memory, ticket, Request { flags, ..Request::write(range.offset, buf) })
    }

    fn submit(&mut self, memory: &GuestMemory, ticket: Ticket, request: Request) -> Result<(), Broken> {
        let held = request.buf.capacity();
        let submission = self.pipeline.submit(&self.parts.export, request, Aligned::submit);
        match self.pipeline.submitted(ticket, held, submission) {
            Some((ticket, outcome)) => self.answer(memory, &ticket, outcome),
            None => Ok(()),
        }
    }

    fn round(&mut self, memory: &GuestMemory, context: &mut Context<'_>) -> Result<(), Broken> {
        self.take_some(memory)?;
        self.pipeline.collect(context);
        while let Some((ticket, outcome)) = self.pipeline.next_answer() {
            self.answer(memory, &ticket, outcome)?;
        }
        if let Some((transfer, buf)) = self.pipeline.poll_parked(context, UNSENT) {
            self.submit_transfer(memory, transfer, buf)?;
        }
        Ok(())
    }
}

impl Queue for BlockQueue {
    fn poll(&mut self, context: &mut Context<'_>) {
        let memory = self.memory();
        if let Some(ring) = &mut self.ring
            && let Err(why) = ring.hush(&memory)
        {
            self.break_down(&memory, why.into());
        }
        // What has come before the ring was broken is looked at as well: it does not come again.
        while let Err(why) = self.round(&memory, context) {
            self.break_down(&memory, why);
        }
    }

    fn interrupts(&mut self) -> bool {
        let memory = self.memory();
        let Some(ring) = &mut self.ring else { return std::mem::take(&mut self.owed) };
        let asked = ring.interrupts(&memory);
        asked.unwrap_or_else(|why| {
            self.break_down(&memory, why.into());
            false
        })
    }

    fn arm(&mut self) -> bool {
        // Where nothing is taken, an answer or a change ends that, and wakes the task.
        if self.ring.is_none() || !self.admits() {
            return true;
        }
        if !self.left_over.is_empty() {
            return false;
        }
        let memory = self.memory();
        let ring = self.ring.as_mut().expect("it was looked at");
        ring.arm(&memory).unwrap_or_else(|why| {
            self.break_down(&memory, why);
            true
        })
    }

    fn stop(&mut self) {
        self.stopped = true;
        if let Some(ring) = &self.ring {
            self.parts.shared.base.store(u32::from(ring.base()), Ordering::Release);
        }
    }

    fn pending(&self) -> usize {
        self.pipeline.pending() + usize::from(self.pipeline.parked().is_some())
    }

    fn broken(&mut self) -> Option<&'static str> {
        self.breach.take()
    }
}

/// The ring behind all that a former server has taken, and what of that it has not given back.
fn recovered(mut ring: Ring, inflight: Option<&mut Inflight>) -> (Option<Ring>, Vec<u16>) {
    let left_over = inflight.map(|inflight| inflight.recover(ring.used()));
    if let Some(left_over) = &left_over {
        ring.go_on_behind(left_over.len() as u16);
    }
    (Some(ring), left_over.unwrap_or_default())
}

fn spilled(transfer: &Transfer) -> usize {
    spare_of(&transfer.readable) + spare_of(&transfer.ticket.writable)
}
