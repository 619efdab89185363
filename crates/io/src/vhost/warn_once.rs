//! What front ends and guests do wrong, for the log.

use spillway_core::sync::{AtomicBool, Ordering};

/// Warns once, until that is forgotten: what tries again and again, or is broken again and again, does not fill the log.
#[derive(Default)]
pub(super) struct WarnOnce {
    said: AtomicBool,
}

impl WarnOnce {
    pub(super) fn say(&self, what: &str) {
        match self.said.swap(true, Ordering::Relaxed) {
            false => tracing::warn!("{what}; the next ones are shown by -vv alone"),
            true => tracing::debug!("{what}"),
        }
    }

    pub(super) fn forget(&self) {
        self.said.store(false, Ordering::Relaxed);
    }
}
