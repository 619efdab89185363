//! The way from a host to the cluster.

use std::time::Duration;

use spillway_core::sync::{AtomicBool, Changes, Ordering};

/// A link that can be cut, and comes back: nothing is lost on it, but late.
#[derive(Default)]
pub struct Link {
    cut: AtomicBool,
    changed: Changes,
    /// How long a client waits for an answer.
    pub(super) patience: Option<Duration>,
}

impl Link {
    /// One over which a client waits so long for an answer, or until it comes.
    pub fn new(patience: Option<Duration>) -> Self {
        Self { patience, ..Self::default() }
    }

    /// Cuts it, or has it back.
    pub fn set_cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        self.changed.wake_all();
    }

    pub(super) async fn up(&self) {
        self.changed.until(|| (!self.cut.load(Ordering::SeqCst)).then_some(())).await;
    }
}
