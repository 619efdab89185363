//! An event descriptor.

use std::cell::{Cell, RefCell};
use std::task::{Poll, Waker};

/// An event descriptor, for one task that waits.
#[derive(Default)]
pub struct EventDescriptor {
    told: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl EventDescriptor {
    /// Tells who waits.
    pub fn tell(&self) {
        self.told.set(true);
        let waker = self.waker.borrow_mut().take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether it was told since the last call; if not, `waker` hears of the next time.
    pub(super) fn take(&self, waker: &Waker) -> bool {
        let told = self.told.take();
        if !told {
            *self.waker.borrow_mut() = Some(waker.clone());
        }
        told
    }

    /// Waits until it is told.
    pub async fn told(&self) {
        std::future::poll_fn(
            |context| if self.take(context.waker()) { Poll::Ready(()) } else { Poll::Pending },
        )
        .await;
    }
}
