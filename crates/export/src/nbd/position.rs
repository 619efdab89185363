//! Where a client is in its stream of requests.

use spillway_core::{IoBuf, LocalFuture};

use super::incoming::Incoming;
use super::reply::Refusal;
use super::ticket::{Command, Ticket};

/// Where in the stream we are.
pub(super) enum Position {
    /// At a request's header.
    Header,
    /// In a payload.
    Payload(Incoming),
    /// In a payload whose buffer the driver has.
    Lent(Ticket, usize),
    /// In a payload that nobody wants: bytes left, and the refusal of its request, which follows it. Clients do not look for a reply
    /// to what they still send.
    Skip(u64, Option<(Ticket, Refusal)>),
    /// Behind a header whose request waits for a buffer, or without a future for the connection to hold less.
    Parked(Ticket, Option<LocalFuture<IoBuf>>),
    /// Behind the last request: nothing is taken any more.
    End,
}

impl Position {
    /// The rest of a payload that nobody wants once the server stops, and the refusal of its request, unless that is sent.
    pub(super) fn unwanted(&self) -> Option<(u64, Option<(Ticket, Refusal)>)> {
        match self {
            Position::Skip(left, refused) => Some((*left, *refused)),
            Position::Parked(ticket, _) if ticket.command == Command::Write => {
                Some((ticket.length, Some((*ticket, Refusal::SHUTTING_DOWN))))
            }
            _ => None,
        }
    }
}
