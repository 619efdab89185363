//! Replies to requests, each counted.

use spillway_core::session::Output;
use spillway_core::{Extent, Op, Reply};

use super::reply::{Refusal, ReplyStyle};
use super::ticket::{Command, Ticket};
use crate::statistics::{Counts, Statistics};

/// Replies to one client.
pub(super) struct Responder {
    style: ReplyStyle,
    /// What was counted and not published yet.
    counted: Statistics,
}

impl Responder {
    pub(super) fn new(style: ReplyStyle) -> Self {
        Self { style, counted: Statistics::default() }
    }

    #[inline]
    pub(super) fn answer(&mut self, ticket: &Ticket, reply: Reply, out: &mut Output) {
        match reply.result {
            Err(kind) => self.refuse(ticket, kind.into(), out),
            Ok(()) if ticket.command == Command::Io(Op::Read) => {
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
        self.counted.count(None, None);
        self.style.refusal(ticket, refusal, out);
    }

    #[inline]
    fn count(&mut self, ticket: &Ticket) {
        self.counted.count(ticket.command.op(), Some(ticket.length));
    }

    /// What the range of a request holds.
    pub(super) fn block_status(&mut self, ticket: &Ticket, extents: &[Extent], out: &mut Output) {
        self.count(ticket);
        self.style.block_status(ticket, extents, out);
    }

    /// Adds what happened since the last time to the export's counts.
    pub(super) fn publish(&mut self, counts: &Counts) {
        counts.publish(&mut self.counted);
    }
}
