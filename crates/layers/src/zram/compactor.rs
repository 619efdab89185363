//! Who asks for a pass of compaction, and how far these are.

use futures_util::future::{Either, select};
use spillway_core::LocalFuture;
use spillway_core::sync::{AtomicBool, Mutex, Ordering, Watermark};

/// Who asked for a pass, and who makes one.
#[derive(Default)]
pub(super) struct Compactor {
    /// Held for a step of a pass.
    pub(super) pass: Mutex<()>,
    /// Passes asked for so far, and how many of these asks had been made when the last finished pass began.
    pub(super) asked: Watermark,
    pub(super) served: Watermark,
    /// Whether the background task makes a pass.
    under_way: AtomicBool,
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
}

impl Compactor {
    /// Asks for a pass; returns the number of the question.
    pub(super) fn ask(&self) -> u64 {
        self.asked.step()
    }

    pub(super) fn has_served(&self, ticket: u64) -> bool {
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

    pub(super) fn set_under_way(&self, yes: bool) {
        self.under_way.store(yes, Ordering::Relaxed);
    }

    /// Whether memory may come free though nobody has asked for a pass.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed)
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
