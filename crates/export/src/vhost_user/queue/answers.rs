//! Answers, back into the ring.

use spillway_core::{Op, Reply, work};

use super::super::block::{Command, status};
use super::super::memory::GuestMemory;
use super::super::pieces::{copy_in, spare_of};
use super::super::ring::{Broken, bytes_of};
use super::{BlockQueue, CUT_OFF, Never, Ticket};
use crate::pipeline::Outcome;

impl BlockQueue {
    pub(super) fn answer(
        &mut self,
        memory: &GuestMemory,
        ticket: &Ticket,
        outcome: Outcome<Never>,
    ) -> Result<(), Broken> {
        let Outcome::Io(Reply { result, buf }) = outcome;
        if matches!(ticket.command, Command::Io(Op::Read | Op::Write)) {
            let held = spare_of(&ticket.writable);
            assert!(self.segments >= held, "an answer gives back {held} pieces of {}", self.segments);
            self.segments -= held;
        }
        if result.is_err() {
            return self.finish(memory, ticket, status::IO_ERROR, &[]);
        }
        match ticket.command {
            // What was discarded may come back: no discard is lost.
            Command::Io(Op::Write | Op::WriteZeroes) if !ticket.durable => self.parts.unflushed.written(),
            Command::Io(Op::Flush) => self.parts.unflushed.flushed(ticket.flush),
            _ => {}
        }
        self.finish(memory, ticket, status::OK, &buf)
    }

    /// Counts the request, writes the status and what was read into `buf`, and gives the request back; not where they were written in place
    /// of memory that is gone.
    pub(super) fn finish(
        &mut self,
        memory: &GuestMemory,
        ticket: &Ticket,
        status: u8,
        buf: &[u8],
    ) -> Result<(), Broken> {
        let bytes = (status == status::OK).then_some(buf.len() as u64);
        self.parts.export.counters.count(ticket.command.op(), bytes);
        let content: &[u8] = if ticket.command == Command::Io(Op::Write) { &[] } else { buf };
        let Some(ring) = &mut self.ring else { return Ok(()) };
        work::spend_bytes(content.len(), work::BYTES_COPIED);
        let status_at = bytes_of(&ticket.writable) - 1;
        copy_in(memory, &ticket.writable, 0, content)?;
        copy_in(memory, &ticket.writable, status_at, &[status])?;
        if !memory.is_whole() {
            return Err(CUT_OFF);
        }
        if let Some(inflight) = &self.parts.inflight {
            inflight.give_back(ticket.head);
        }
        // What counts as written is what comes first without a gap.
        let written = if content.len() as u64 == status_at { status_at + 1 } else { content.len() as u64 };
        ring.give_back(memory, ticket.head, u32::try_from(written).unwrap_or(u32::MAX))?;
        if let Some(inflight) = &self.parts.inflight {
            inflight.given_back(ticket.head, ring.used());
        }
        Ok(())
    }
}
