//! Requests for passes of compaction, and how many are done.

use futures_util::future::{Either, select};
use spillway_core::LocalFuture;
use spillway_core::sync::{AtomicU32, Mutex, Ordering, Watermark};

/// Passes asked for, and made.
#[derive(Default)]
pub(super) struct Compactor {
    /// Held for a step of a pass.
    pub(super) pass: Mutex<()>,
    /// Passes asked for so far, and how many of these asks had been made when the last finished pass began.
    pub(super) asked: Watermark,
    pub(super) served: Watermark,
    /// Passes that are being made.
    under_way: AtomicU32,
}

/// What a writer that found no memory has done about it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Relief {
    #[default]
    Unasked,
    /// It asked for a pass, by this number.
    Asked(u64),
    /// A pass that began afterwards has ended.
    Over,
    /// It waited for pages that leave, and tried again in this round of them.
    Spilling(u64),
}

impl Compactor {
    /// Asks for a pass; returns the number of the question.
    pub(super) fn ask(&self) -> u64 {
        self.asked.step()
    }

    pub(super) fn has_served(&self, ticket: u64) -> bool {
        assert!((1..=self.asked.current()).contains(&ticket), "ticket {ticket} was given out");
        self.served.current() >= ticket
    }

    #[cfg(test)]
    pub(super) fn was_asked(&self) -> bool {
        self.asked.current() > 0
    }

    #[cfg(test)]
    pub(super) fn has_served_any(&self) -> bool {
        self.served.current() > 0
    }

    pub(super) fn begin_pass(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_pass(&self) {
        let before = self.under_way.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a pass that ends has begun");
    }

    /// Whether memory may come free without a request for a pass.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_asked(&self) -> bool {
        self.asked.current() > self.served.current()
    }

    /// Waits for an ask or for `timer`; true if it was the timer.
    pub(super) async fn asked_or(&self, timer: &mut LocalFuture<()>) -> bool {
        let ended = select(self.asked.reached(self.served.current() + 1), timer).await;
        matches!(ended, Either::Right(_))
    }
}
