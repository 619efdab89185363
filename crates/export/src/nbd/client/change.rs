//! Changes of ranges, as their callers hold them.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use spillway_core::ByteRange;

use super::link::Link;

impl Link {
    /// Waits until no change of `range` that came before is under way or waits, and begins this one.
    pub(super) async fn begin_change(self: &Arc<Self>, range: ByteRange) -> Change {
        let number = self.changing.lock().come(range);
        let change = Change { link: self.clone(), number, range };
        poll_fn(|context| match self.changing.lock().is_waiting(number, context.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        })
        .await;
        change
    }
}

/// A change of a range that others wait for; over when dropped.
pub(super) struct Change {
    link: Arc<Link>,
    number: u64,
    range: ByteRange,
}

impl Drop for Change {
    fn drop(&mut self) {
        let begun = self.link.changing.lock().end(self.number, self.range);
        begun.into_iter().for_each(Waker::wake);
    }
}
