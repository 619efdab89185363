//! Where a client is in its stream of requests.

use super::incoming::Incoming;
use super::reply::Refusal;
use super::ticket::Ticket;

/// Where in the stream we are.
pub(super) enum StreamPosition {
    /// At a request's header.
    Header,
    /// In a payload.
    Payload(Incoming),
    /// In a payload whose buffer the driver has.
    Lent(Ticket, usize),
    /// In a payload that nobody wants: bytes left, and the refusal of its request, which follows it. Clients do not look for a reply
    /// to what they still send.
    Skip(u64, Option<(Ticket, Refusal)>),
    /// Behind the last request: nothing is taken any more.
    End,
}
