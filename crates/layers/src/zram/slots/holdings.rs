//! Counts of what the slots of a table hold.

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicU64, Ordering};

use super::mark::Slot;
use crate::zram::page::PAGE;

/// What all slots hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holdings {
    /// Slots that hold something.
    pub(crate) pages_stored: u64,
    /// Of these: one repeated word, zero included.
    pub(crate) same_pages: u64,
    /// Of these: the word is zero.
    pub(crate) zero_pages: u64,
    /// Stored raw.
    pub(crate) huge_pages: u64,
    /// Bytes of all objects in memory.
    pub(crate) object_bytes: u64,
    /// Of the pages stored: in the spill file.
    pub(crate) spilled_pages: u64,
    /// Bytes of these.
    pub(crate) spilled_bytes: u64,
    /// Of the pages stored: lost.
    pub(crate) lost_pages: u64,
}

impl Holdings {
    /// What one slot holds.
    #[inline]
    pub(crate) fn of(slot: Slot) -> Self {
        let count = |is: bool| u64::from(is);
        match slot {
            Slot::Empty => Self::default(),
            Slot::Same(word) => {
                Self { pages_stored: 1, same_pages: 1, zero_pages: count(word == 0), ..Self::default() }
            }
            Slot::Stored(cell, _) => Self {
                pages_stored: 1,
                huge_pages: count(cell.len() == PAGE),
                object_bytes: cell.len() as u64,
                ..Self::default()
            },
            Slot::Deferred(cell) => {
                Self { pages_stored: 1, object_bytes: cell.len() as u64, ..Self::default() }
            }
            Slot::Spilled(away) => {
                Self { pages_stored: 1, spilled_pages: 1, spilled_bytes: away.len as u64, ..Self::default() }
            }
            Slot::Lost => Self { pages_stored: 1, lost_pages: 1, ..Self::default() },
        }
    }

    /// Both together.
    #[must_use]
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            pages_stored: self.pages_stored + other.pages_stored,
            same_pages: self.same_pages + other.same_pages,
            zero_pages: self.zero_pages + other.zero_pages,
            huge_pages: self.huge_pages + other.huge_pages,
            object_bytes: self.object_bytes + other.object_bytes,
            spilled_pages: self.spilled_pages + other.spilled_pages,
            spilled_bytes: self.spilled_bytes + other.spilled_bytes,
            lost_pages: self.lost_pages + other.lost_pages,
        }
    }
}

/// Counters: the fields of [`Holdings`] in their order, but for pages that are lost, and changes.
const COUNTERS: usize = 8;

/// Holdings and changes, counted by the threads that make these.
#[derive(Default)]
pub(crate) struct Tally {
    counters: Counters<COUNTERS>,
    /// Apart, because it hardly ever changes, and the others fill a line of a cache.
    lost: AtomicU64,
}

impl Tally {
    /// Counts a slot that held `old` and was set to `new` by a request.
    pub(crate) fn changed(&self, old: Slot, new: Slot) {
        self.count(old, new, 1);
    }

    /// Counts an object that moved from `old` to `new`.
    pub(crate) fn moved(&self, old: Slot, new: Slot) {
        self.count(old, new, 0);
    }

    #[inline]
    fn count(&self, old: Slot, new: Slot, changes: u64) {
        let (old, new) = (Holdings::of(old), Holdings::of(new));
        self.counters.add_each([
            new.pages_stored.wrapping_sub(old.pages_stored),
            new.same_pages.wrapping_sub(old.same_pages),
            new.zero_pages.wrapping_sub(old.zero_pages),
            new.huge_pages.wrapping_sub(old.huge_pages),
            new.object_bytes.wrapping_sub(old.object_bytes),
            new.spilled_pages.wrapping_sub(old.spilled_pages),
            new.spilled_bytes.wrapping_sub(old.spilled_bytes),
            changes,
        ]);
        if new.lost_pages != old.lost_pages {
            self.lost.fetch_add(new.lost_pages.wrapping_sub(old.lost_pages), Ordering::Relaxed);
        }
    }

    /// Slots set to something, or emptied, so far. Moving an object is no change.
    pub(crate) fn changes(&self) -> u64 {
        self.counters.sum(COUNTERS - 1)
    }

    /// Exact while no writer is at work.
    pub(crate) fn holdings(&self) -> Holdings {
        Holdings {
            pages_stored: self.counters.sum(0),
            same_pages: self.counters.sum(1),
            zero_pages: self.counters.sum(2),
            huge_pages: self.counters.sum(3),
            object_bytes: self.counters.sum(4),
            spilled_pages: self.counters.sum(5),
            spilled_bytes: self.counters.sum(6),
            lost_pages: self.lost.load(Ordering::Relaxed),
        }
    }
}
