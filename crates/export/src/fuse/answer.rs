//! Answers that are still to come, and what is kept of their requests meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::{IoBuf, Kind, LocalFuture, Reply};

use super::tree::Volume;

/// What is kept of a request until its reply.
pub(super) enum Asked {
    /// Of a disk file.
    Disk(Ticket),
    /// Of a control file.
    Control(ControlTicket),
}

/// What is kept of a request about a control file.
pub(super) struct ControlTicket {
    pub(super) unique: u64,
    /// Bytes that were written, where it was not read.
    pub(super) written: Option<u32>,
}

/// What is kept of a request about a disk file.
pub(super) struct Ticket {
    pub(super) unique: u64,
    pub(super) volume: Arc<Volume>,
    pub(super) command: Command,
}

/// What a disk file is asked for, and the bytes that travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write(u32),
    Flush,
    Zero,
    Seek,
}

/// Where what was looked for begins; an error without a kind where there is no more of it.
pub(super) type Found = Result<u64, Option<Kind>>;

/// What a control file shows, nothing where it was written to; or an errno.
pub(super) type Shown = Result<IoBuf, i32>;

/// An answer that is still to come.
pub(super) enum PendingAnswer {
    Io(LocalFuture<Reply>),
    Seek(LocalFuture<Found>),
    Control(LocalFuture<Shown>),
}

/// An answer.
pub(super) enum Outcome {
    Io(Reply),
    Seek(Found),
    Control(Shown),
}

impl Future for PendingAnswer {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut *self {
            PendingAnswer::Io(future) => future.as_mut().poll(context).map(Outcome::Io),
            PendingAnswer::Seek(future) => future.as_mut().poll(context).map(Outcome::Seek),
            PendingAnswer::Control(future) => future.as_mut().poll(context).map(Outcome::Control),
        }
    }
}
