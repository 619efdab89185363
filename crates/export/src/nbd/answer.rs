//! An answer of the device, and what is kept of its request meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use spillway_core::buffer::bytes_for;
use spillway_core::{Extent, Kind, LocalFuture, Reply};

use super::memory::EXTENTS_BYTES;
use super::ticket::{Command, Ticket};
use super::wire::cmd_flag;

/// An answer that is still to come.
pub(super) enum PendingAnswer {
    Io(LocalFuture<Reply>),
    Extents(LocalFuture<Result<Vec<Extent>, Kind>>),
}

/// An answer.
pub(super) enum Completion {
    Io(Reply),
    Extents(Result<Vec<Extent>, Kind>),
}

impl Future for PendingAnswer {
    type Output = Completion;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Completion> {
        match &mut *self {
            PendingAnswer::Io(future) => future.as_mut().poll(context).map(Completion::Io),
            PendingAnswer::Extents(future) => future.as_mut().poll(context).map(Completion::Extents),
        }
    }
}

/// Bytes that a pending request holds besides itself.
pub(super) fn held_by(ticket: &Ticket) -> u64 {
    match ticket.command {
        Command::Read | Command::Write => bytes_for(ticket.length as usize) as u64,
        Command::BlockStatus if !ticket.has(cmd_flag::REQ_ONE) => EXTENTS_BYTES,
        _ => 0,
    }
}
