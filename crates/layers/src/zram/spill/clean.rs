//! Clean pages: those that reads have brought back, and that were not written since. They leave as they came, without an I/O, and what the
//! file has of them goes where it is short of room. Which these are is in `copies`.

use super::spilling::lies_at;
use crate::spill::Location;
use crate::zram::device::Core;
use crate::zram::pool::cell::{Cell, SlotIndex};
use crate::zram::slots::mark::{Away, Mark, Slot};
use crate::zram::slots::table::SlotTable;

/// What a slot has of a record.
enum Claim {
    Nothing,
    /// The page lies there.
    Page,
    /// It had a clean copy there.
    Copy(Away),
}

impl SlotTable {
    /// Whether a page has a clean copy; without the lock of its slot.
    pub(crate) fn has_copy(&self, index: SlotIndex) -> bool {
        self.used_page(index).is_some_and(|page| page.mark(index).has_copy())
    }

    /// Puts `object`, which holds the page from now on, in place of its record, if the slot still holds that. With `copy` the record is kept:
    /// the caller has entered it.
    #[must_use]
    pub(crate) fn bring_back(&self, index: SlotIndex, away: Away, object: Slot, copy: bool) -> bool {
        self.exchange(index, Slot::Spilled(away), object, |mark| {
            if copy {
                self.copies.put(index, away);
            }
            mark.with_copy(copy)
        })
    }

    /// Has the slot hold the copy of its page instead of the object, if that is `wanted` and no thread has picked it. The caller frees the
    /// object.
    fn leave_as_copy(
        &self,
        index: SlotIndex,
        wanted: impl FnOnce(Mark, Cell) -> bool,
    ) -> Option<(Cell, Away)> {
        let locked = self.lock(index)?;
        let Slot::Stored(cell, _) = locked.get() else { return None };
        if !locked.mark.has_copy() || locked.mark.is_picked() || !wanted(locked.mark, cell) {
            return None;
        }
        let away = self.copies.get(index);
        let mark = locked.mark.moved_to(Slot::Spilled(away)).has_left();
        self.tally.moved(locked.get(), Slot::Spilled(away));
        locked.put(Slot::Spilled(away), mark);
        Some((cell, away))
    }

    /// What the slot has of the record at `at`. A clean copy it has no longer.
    fn claim(&self, index: SlotIndex, at: Location) -> Claim {
        let Some(mut locked) = self.lock(index) else { return Claim::Nothing };
        if let Slot::Spilled(away) = locked.get() {
            return if lies_at(away, at) { Claim::Page } else { Claim::Nothing };
        }
        let copy = locked.mark.has_copy().then(|| self.copies.get(index));
        match copy.filter(|away| away.at == at) {
            Some(away) => {
                locked.mark = locked.mark.with_copy(false);
                Claim::Copy(away)
            }
            None => Claim::Nothing,
        }
    }
}

impl Core {
    /// Sees to it that the record of a page that is brought back can be kept; false where it cannot.
    pub(crate) fn keep_copy(&self, index: SlotIndex, away: Away) -> bool {
        let memory = self.budget.limit().min(self.fixed.limit());
        let kept = self.table.copies.enter(&self.pages, &self.table.locks, index, memory);
        if kept {
            self.spill_file().store.keep(&self.record(index, away));
        }
        kept
    }

    /// A record is a copy no longer.
    pub(crate) fn end_copy(&self, index: SlotIndex, away: Away) {
        self.spill_file().store.unkeep(&self.record(index, away));
        self.table.copies.leave(&self.pages, &self.table.locks, index);
    }

    /// Releases the record of a copy that its slot has no longer.
    pub(crate) fn release_copy(&self, index: SlotIndex, away: Away) {
        self.end_copy(index, away);
        self.release(index, away);
    }

    /// Has a page leave memory whose record was kept, if it is `wanted`: nothing is written. True if it has left.
    pub(crate) fn leave_as_copy(&self, index: SlotIndex, wanted: impl FnOnce(Mark, Cell) -> bool) -> bool {
        let left = if self.table.has_copy(index) { self.table.leave_as_copy(index, wanted) } else { None };
        if let Some((cell, away)) = left {
            self.pool.free(&self.pages, cell);
            self.end_copy(index, away);
        }
        left.is_some()
    }

    /// Whether the page of a slot lies at `at`. A clean copy that it has there is given up.
    pub(crate) fn needs_record(&self, index: SlotIndex, at: Location) -> bool {
        match self.table.claim(index, at) {
            Claim::Page => true,
            Claim::Nothing => false,
            Claim::Copy(away) => {
                self.release_copy(index, away);
                false
            }
        }
    }
}
