//! A slot of the table that is locked, and its object as long as it is.

use spillway_core::sync::{Ordering, WordLocks};

use super::blocks::SlotWords;
use super::mark::{Mark, Slot};
use crate::zram::pool::Pool;
use crate::zram::pool::cell::{Cell, Scratch, SlotIndex};
use crate::zram::pool::pages::Pages;

/// A slot that is locked.
pub(crate) struct Locked<'a> {
    pub(crate) locks: &'a WordLocks,
    pub(crate) words: &'a SlotWords,
    pub(crate) index: SlotIndex,
    pub(crate) mark: Mark,
}

impl Locked<'_> {
    /// What the slot holds.
    #[inline]
    pub(crate) fn get(&self) -> Slot {
        self.mark.slot(self.words[0].load(Ordering::Relaxed))
    }

    /// Notes an access at `seconds`.
    #[inline]
    pub(crate) fn touch(&mut self, seconds: u32) {
        self.mark = self.mark.touched(seconds);
    }

    pub(crate) fn put(mut self, slot: Slot, mark: Mark) {
        self.words[0].store(slot.word(), Ordering::Relaxed);
        self.mark = mark;
    }

    fn assert_holds(&self, cell: Cell) {
        assert!(
            matches!(self.get(), Slot::Stored(held, _) | Slot::Deferred(held) if held == cell),
            "{:?} holds {cell:?}",
            self.index
        );
    }

    /// The slot's object, which cannot change as long as the slot is locked. The slot must hold `cell`.
    #[inline]
    pub(crate) fn object<'s>(&'s self, pool: &Pool, pages: &'s Pages, cell: Cell) -> &'s [u8] {
        self.assert_holds(cell);
        // SAFETY: the cell is published in this slot, as just checked, and `self` holds the slot's lock while it is borrowed.
        unsafe { pool.object(pages, cell) }
    }

    /// Copies the slot's object out. The slot must hold `cell`.
    #[inline]
    pub(crate) fn copy_to<'s>(
        &self,
        pool: &Pool,
        pages: &Pages,
        cell: Cell,
        scratch: &'s mut Scratch,
    ) -> &'s [u8] {
        self.assert_holds(cell);
        // SAFETY: the cell is published in this slot, as just checked, and `self` holds the slot's lock.
        unsafe { pool.copy_to(pages, cell, scratch) }
    }

    /// Copies the slot's object to `target`, which is as long as it. The slot must hold `cell`.
    #[inline]
    pub(crate) fn copy_into(&self, pool: &Pool, pages: &Pages, cell: Cell, target: &mut [u8]) {
        self.assert_holds(cell);
        // SAFETY: as in `copy_to`.
        unsafe { pool.copy_into(pages, cell, target) }
    }

    /// Writes a page over the slot's raw page. The slot must hold `cell`, of a page's length, which no thread has picked.
    pub(crate) fn overwrite(&mut self, pool: &Pool, pages: &Pages, cell: Cell, page: &[u8]) {
        self.assert_holds(cell);
        assert!(!self.mark.is_picked(), "{:?} is picked, and stays as it is", self.index);
        // SAFETY: the cell is published in this slot, as just checked; `self` holds the slot's lock, under which alone the bytes of a
        // published cell are read.
        unsafe { pool.overwrite(pages, cell, page) }
    }
}

/// Unlocks the slot.
impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        self.locks.unlock(self.index.0.into(), &self.words[1], self.mark.content());
    }
}
