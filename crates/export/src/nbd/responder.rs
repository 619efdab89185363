//! Replies to requests, each counted.

use spillway_core::session::Output;
use spillway_core::{Extent, Reply};

use super::reply::{Refusal, ReplyStyle};
use super::ticket::{Command, Ticket};
use crate::statistics::{Counter, Counts, Tally};

/// Replies to one client.
pub(super) struct Responder {
    style: ReplyStyle,
    tally: Tally,
}

impl Responder {
    pub(super) fn new(style: ReplyStyle) -> Self {
        Self { style, tally: Tally::default() }
    }

    #[inline]
    pub(super) fn answer(&mut self, ticket: &Ticket, reply: Reply, out: &mut Output) {
        match reply.result {
            Err(kind) => self.refuse(ticket, kind.into(), out),
            Ok(()) if ticket.command == Command::Read => {
                self.count(ticket);
                self.style.content(ticket, reply.buf, out);
            }
            Ok(()) => self.succeed(ticket, out),
        }
    }

    #[inline]
    pub(super) fn succeed(&mut self, ticket: &Ticket, out: &mut Output) {
        self.count(ticket);
        self.style.success(ticket, out);
    }

    pub(super) fn refuse(&mut self, ticket: &Ticket, refusal: Refusal, out: &mut Output) {
        self.tally.add(Counter::Errors, 1);
        self.style.refusal(ticket, refusal, out);
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

    /// What the range of a request holds.
    pub(super) fn block_status(&mut self, ticket: &Ticket, extents: &[Extent], out: &mut Output) {
        self.count(ticket);
        self.style.block_status(ticket, extents, out);
    }

    /// Adds what happened since the last time to the export's counts.
    pub(super) fn publish(&mut self, counts: &Counts) {
        self.tally.publish(counts);
    }
}
