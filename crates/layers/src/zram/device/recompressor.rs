//! Who recompresses, and how far a device has come with what it recompresses by itself.

use spillway_core::sync::{AtomicU64, Semaphore};

/// Who recompresses, and how far the device itself has come with it.
pub(crate) struct Recompressor {
    /// Held by who recompresses, and by a reset.
    pub(crate) turn: Semaphore,
    /// The slot that is looked at next.
    pub(crate) hand: AtomicU64,
    /// Time in milliseconds at which the last lap has ended; 0 before the first one.
    pub(crate) lap_ended: AtomicU64,
}

impl Default for Recompressor {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), hand: AtomicU64::new(0), lap_ended: AtomicU64::new(0) }
    }
}
