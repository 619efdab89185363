//! Walks over the slots of a table, a page of them at a time.

use std::ops::Range;

use super::blocks::SlotPage;
use super::mark::{Mark, Slot};
use super::table::SlotTable;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::work;

impl SlotTable {
    /// Shows the slots of `range`, which lie in one page. Only repeated words are looked at under the lock of their slot. Returns
    /// the units of work.
    pub(crate) fn look(&self, range: Range<u64>, mut see: impl FnMut(Slot)) -> u32 {
        let (first, mut locks) = (SlotIndex::new(range.start), 0);
        let page = self.used_page(first);
        for index in range.map(SlotIndex::new) {
            see(page.map_or(Slot::Empty, |page| self.look_at(page, index, &mut locks)));
        }
        let units = work::LOOK + locks / work::LOCKS;
        work::note(units);
        units
    }

    fn look_at(&self, page: SlotPage<'_>, index: SlotIndex, locks: &mut u32) -> Slot {
        let mark = page.mark(index);
        if mark.is_same() {
            *locks += 1;
            return self
                .lock_in(page, index, |mark| !mark.is_empty())
                .map_or(Slot::Empty, |locked| locked.get());
        }
        // Where an object lies may change at once: what it is does not need its word.
        mark.slot(0)
    }

    /// Shows the marks of the slots of `range`, which lie in one page, that hold something; without a lock. Returns the units of work.
    pub(crate) fn marks(&self, range: Range<u64>, mut see: impl FnMut(SlotIndex, Mark)) -> u32 {
        work::note(work::LOOK);
        let Some(page) = self.used_page(SlotIndex::new(range.start)) else { return work::LOOK };
        for index in range.map(SlotIndex::new) {
            let mark = page.mark(index);
            if !mark.is_empty() {
                see(index, mark);
            }
        }
        work::LOOK
    }

    /// Marks as idle what the slots of `range`, which lie in one page, hold in memory, if it was not accessed in the last `age` seconds
    /// before `now`; what was is marked as not idle. No slot is locked. Returns the units of work.
    pub(crate) fn mark_idle(&self, range: Range<u64>, age: u32, now: u32) -> u32 {
        work::note(work::LOOK);
        let Some(page) = self.used_page(SlotIndex::new(range.start)) else { return work::LOOK };
        let mut changes = 0;
        let next = |mark: Mark| mark.is_stored().then(|| mark.with_idle(mark.age(now) >= age));
        for index in range.map(SlotIndex::new) {
            changes += u32::from(self.change_mark(page, index, next).is_some());
        }
        work::LOOK + changes / work::LOCKS
    }

    /// Passes over the slots of `range`, which lie in one page: each object that may leave memory, or `any`, is shown to `see`, with its mark, until
    /// that says no; what was accessed since the last time is passed. No slot is locked. Returns the units of work.
    pub(crate) fn sweep(
        &self,
        range: Range<u64>,
        now: u32,
        any: bool,
        mut see: impl FnMut(SlotIndex, Mark) -> bool,
    ) -> u32 {
        work::note(work::LOOK);
        let Some(page) = self.used_page(SlotIndex::new(range.start)) else { return work::LOOK };
        let mut changes = 0;
        // What is deferred still found no memory to be compressed.
        let wanted = |mark: Mark| (mark.is_stored() || mark.is_deferred()) && !mark.is_picked();
        let next = |mark: Mark| wanted(mark).then(|| mark.passed());
        for index in range.map(SlotIndex::new) {
            let Some(mark) = self.change_mark(page, index, next) else { continue };
            changes += 1;
            if (any || mark.leaves(mark.len(), now)) && !see(index, mark) {
                break;
            }
        }
        work::LOOK + changes / work::LOCKS
    }
}
