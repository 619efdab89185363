//! Answers that nobody waits for any more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

/// An answer that is dropped after so many polls, as by a client that goes away.
pub(crate) struct Dropping<F> {
    pub(crate) answer: F,
    pub(crate) polls: Option<u8>,
}

impl<F: Future + Unpin> Future for Dropping<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.polls == Some(0) {
            return Poll::Ready(None);
        }
        if let Poll::Ready(reply) = Pin::new(&mut self.answer).poll(context) {
            return Poll::Ready(Some(reply));
        }
        if let Some(polls) = &mut self.polls {
            *polls -= 1;
            context.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
