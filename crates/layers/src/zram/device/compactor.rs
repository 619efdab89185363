//! Passes of compaction: those asked for, and those under way.

use std::sync::Arc;

use spillway_core::Attempts;
use spillway_core::sync::{AtomicU32, Mutex, Ordering};

/// Passes asked for, and made.
#[derive(Default)]
pub(crate) struct Compactor {
    /// Held for a step of a pass.
    pub(crate) pass: Mutex<()>,
    /// Passes that requests wait for.
    pub(crate) attempts: Arc<Attempts>,
    /// Passes that are being made.
    under_way: AtomicU32,
}

impl Compactor {
    pub(crate) fn begin_pass(&self) {
        self.under_way.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn end_pass(&self) {
        let before = self.under_way.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "a pass that ends has begun");
    }

    /// Whether memory may come free without a request for a pass.
    pub(crate) fn is_under_way(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.attempts.is_asked()
    }
}
