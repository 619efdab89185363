//! How one conversation ends, once nothing of it is pending.

use std::task::{Context, Poll};

use spillway_core::{Answer, LocalFuture, Reply, Request, mutant};

use crate::export::Export;

/// Whether and how a conversation ends.
#[derive(Default)]
pub(crate) enum Ending {
    /// It goes on.
    #[default]
    No,
    /// The client said goodbye or broke the protocol.
    Disconnect,
    /// The server stops: a last flush comes first.
    WindDown,
    /// That flush.
    Flushing(LocalFuture<Reply>),
    /// It has ended.
    Over,
}

impl Ending {
    /// Whether no further request is carried out.
    pub(crate) fn is_wanted(&self) -> bool {
        !matches!(self, Ending::No)
    }

    pub(crate) fn is_over(&self) -> bool {
        matches!(self, Ending::Over)
    }

    /// The client leaves: what is pending is still answered.
    pub(crate) fn disconnect(&mut self) {
        if matches!(self, Ending::No) {
            *self = Ending::Disconnect;
        }
    }

    /// The server stops: what is pending is still answered, and then the device is flushed.
    pub(crate) fn wind_down(&mut self) {
        if matches!(self, Ending::No | Ending::Disconnect) {
            *self = Ending::WindDown;
        }
    }

    /// Goes on with the end, where one is wanted. To be called while nothing is pending.
    pub(crate) fn settle(&mut self, export: &Export) {
        match self {
            Ending::Disconnect => *self = Ending::Over,
            Ending::WindDown if export.geometry().read_only => *self = Ending::Over,
            Ending::WindDown if mutant::on("ending: close without a last flush") => *self = Ending::Over,
            Ending::WindDown => match export.device().submit(Request::flush()) {
                Answer::Done(reply) => self.flushed(export, &reply),
                Answer::Pending(future) => *self = Ending::Flushing(future),
            },
            Ending::No | Ending::Flushing(_) | Ending::Over => {}
        }
    }

    /// Lets the last flush progress.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>, export: &Export) {
        if let Ending::Flushing(future) = self
            && let Poll::Ready(reply) = future.as_mut().poll(context)
        {
            self.flushed(export, &reply);
        }
    }

    fn flushed(&mut self, export: &Export, reply: &Reply) {
        let begun = matches!(self, Ending::WindDown | Ending::Flushing(_));
        assert!(begun, "a last flush ends that has not begun");
        if let Err(kind) = reply.result {
            let (export, error) = (export.name(), kind.errno_name());
            tracing::error!(export, error, "the last flush of a connection failed");
        }
        *self = Ending::Over;
    }
}
