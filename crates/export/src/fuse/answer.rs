//! Answers that are still to come, and what is kept of their requests meanwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use spillway_core::{Error, Kind, LocalFuture, Reply};

use super::tree::Volume;

/// What is kept of a request until its reply.
pub(super) struct Ticket {
    pub(super) unique: u64,
    pub(super) volume: Arc<Volume>,
    pub(super) command: Command,
}

/// What a file is asked for, and the bytes that travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Read,
    Write(u32),
    Flush,
    Zero,
    Seek,
    /// An attribute was set.
    Set(u32),
}

/// Where what was looked for begins; an error without a kind where there is no more of it.
pub(super) type Found = Result<u64, Option<Kind>>;

/// An answer that is still to come.
pub(super) enum Work {
    Io(LocalFuture<Reply>),
    Seek(LocalFuture<Found>),
    Set(LocalFuture<Result<(), Error>>),
}

/// An answer.
pub(super) enum Outcome {
    Io(Reply),
    Seek(Found),
    Set(Result<(), Error>),
}

impl Future for Work {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        match &mut *self {
            Work::Io(future) => future.as_mut().poll(context).map(Outcome::Io),
            Work::Seek(future) => future.as_mut().poll(context).map(Outcome::Seek),
            Work::Set(future) => future.as_mut().poll(context).map(Outcome::Set),
        }
    }
}
