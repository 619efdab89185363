//! What front ends and guests do wrong, for the log.

use spillway_core::sync::{AtomicBool, Ordering};

/// Warns once until a front end leaves in order: one that tries again and again, or whose guest breaks its queues again and again, does
/// not fill the log.
#[derive(Default)]
pub(super) struct Complaints {
    said: AtomicBool,
}

impl Complaints {
    pub(super) fn say(&self, what: &str) {
        match self.said.swap(true, Ordering::Relaxed) {
            false => tracing::warn!("{what}; further ones are not shown until a front end leaves in order"),
            true => tracing::debug!("{what}"),
        }
    }

    pub(super) fn forget(&self) {
        self.said.store(false, Ordering::Relaxed);
    }
}
