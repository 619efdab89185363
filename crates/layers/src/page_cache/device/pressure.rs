//! Memory that a shard is short of: writers that found none for a folio, first come, first served, and what reclaim found.

use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, Semaphore};

/// See the head of this file.
pub(crate) struct Pressure {
    /// Of writers: who has the one unit looks for memory before all others, and none of them takes any meanwhile.
    pub(crate) turn: Semaphore,
    /// Those of them that have found none so far: reads take none meanwhile. They can do without.
    waiting: AtomicU64,
    /// Reclaim finds too few clean folios.
    short: AtomicBool,
}

/// Waits for memory.
pub(crate) struct Waits<'a>(&'a AtomicU64);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let before = self.0.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "who no longer waits has waited");
    }
}

impl Default for Pressure {
    fn default() -> Self {
        Self { turn: Semaphore::new(1), waiting: AtomicU64::new(0), short: AtomicBool::new(false) }
    }
}

impl Pressure {
    /// Whether a writer has a turn, or waits for it.
    pub(crate) fn has_line(&self) -> bool {
        self.turn.used() > 0
    }

    /// The writer that has the turn waits until what is returned is dropped.
    pub(crate) fn wait(&self) -> Waits<'_> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        Waits(&self.waiting)
    }

    /// Whether what comes free is for a writer.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::SeqCst)
    }

    /// Notes whether it is short; whether it was.
    pub(crate) fn set_short(&self, short: bool) -> bool {
        self.short.swap(short, Ordering::SeqCst)
    }

    /// Whether folios have to become clean so that they can leave.
    pub(crate) fn is_wanting(&self) -> bool {
        self.is_short() || self.has_line()
    }
}
