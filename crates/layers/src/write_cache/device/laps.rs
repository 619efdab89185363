//! Where write-back is: laps over the origin, and turns of islands between free blocks.

use spillway_core::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use spillway_policy::islands::Islands;
use spillway_policy::lap::Lap;

use crate::write_cache::index::victims::Victim;

/// What a look for victims came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Versions of consecutive blocks, marked.
    Victims(Vec<Victim>),
    /// Nothing yet: ask again.
    Later,
    /// Nothing in a whole lap, but for versions that cannot leave yet where some were `skipped`.
    Nothing {
        /// Whether some were.
        skipped: bool,
    },
}

/// Where write-back is. Its lock comes before those of the index.
pub(crate) struct Laps {
    order: Mutex<(Lap, Islands)>,
    /// Laps that have ended: one load.
    ended: AtomicU64,
}

impl Laps {
    /// Before the first lap over what was committed before `seq_count`.
    pub(crate) fn new(seq_count: u64) -> Self {
        Self { order: Mutex::new((Lap::new(seq_count), Islands::default())), ended: AtomicU64::new(0) }
    }

    /// The lap and the turns, to be changed.
    pub(crate) fn order(&self) -> MutexGuard<'_, (Lap, Islands)> {
        self.order.lock()
    }

    /// So many laps have ended.
    pub(crate) fn end(&self, laps: u64) {
        let before = self.ended.swap(laps, Ordering::AcqRel);
        assert!(laps > before, "lap {laps} ends after {before}");
    }

    /// Laps that have ended.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Acquire)
    }
}
