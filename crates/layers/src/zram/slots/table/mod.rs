//! The slot table: what each 4096-byte block of the device holds.
//!
//! A slot is two words, of which the mark has the slot's lock; nothing else is written by two threads that use different slots. A
//! lock is held for tens of nanoseconds: to swap, and to copy an object out; for half a microsecond to decompress one with a
//! fast codec. Empty slots are read without it. [`SlotPages`] has the memory: what is not in use costs nothing, and a walk finds the
//! next page with slots in use and can stop and go on anywhere.
//!
//! **Moving an object elsewhere** begins with [`SlotTable::pick`], which sets a flag and copies the bytes out. What is done with them
//! takes no lock. [`SlotTable::publish`] then puts the new place into the slot if that still holds what was picked:
//!
//! - A slot is picked once at a time. A second picker finds the flag and leaves it.
//! - The cell of a picked object is not reused before the picker has come back: a writer that replaces it does not free it, the
//!   picker does. So the slot holds the same cell only if it holds the same object.
//! - A read in between leaves a trace. Whether the picker goes on then is its own decision.
//!
//! Lock order: a slot's lock is taken with no other lock of the table held, nothing is taken under it, and never two at a time.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::sync::{Ordering, WordLocks};
use spillway_core::{Budget, Kind, Regions, mutant};

use super::blocks::{SlotPage, SlotPages, SlotWords};
use super::copies::Copies;
use super::deferred::Deferred;
use super::holdings::{Holdings, Tally};
use super::locked::Locked;
use super::mark::{Away, Mark, Slot};
use super::picked::{PickOutcome, Picked, PublishIf, Replaced};
use crate::zram::page::PAGE;
use crate::zram::pool::Pool;
use crate::zram::pool::cell::{Cell, SlotIndex};
use crate::zram::pool::pages::Pages;
use crate::zram::work;

pub(crate) use super::blocks::PAGE_SLOTS;

/// The slots of one device.
pub(crate) struct SlotTable {
    blocks: SlotPages,
    pub(crate) locks: WordLocks,
    pub(crate) tally: Tally,
    fixed: Arc<Budget>,
    pub(crate) deferred: Deferred,
    pub(crate) copies: Copies,
}

impl SlotTable {
    /// A table without slots. Memory comes from `regions`; what does not go back with the slots is charged to `fixed`.
    pub(crate) fn new(regions: Arc<dyn Regions>, fixed: Arc<Budget>) -> Self {
        Self {
            blocks: SlotPages::new(regions.clone(), fixed.clone()),
            copies: Copies::new(regions, fixed.clone()),
            locks: WordLocks::default(),
            tally: Tally::default(),
            fixed,
            deferred: Deferred::default(),
        }
    }

    /// Makes room for `slots` slots, beside threads that use them; none behind them is in use. [`Kind::NoSpace`] where there is no
    /// memory for a bit for each page of them, and one more each where pages are deferred and where they are spilled.
    pub(crate) fn resize(&self, slots: u64) -> Result<(), Kind> {
        self.deferred.resize(slots.div_ceil(PAGE_SLOTS), &self.fixed)?;
        self.copies.resize(slots)?;
        self.blocks.resize(slots)
    }

    /// Changes how many pages may be deferred. [`Kind::NoSpace`] where there is no memory for a bit for each page of slots.
    pub(crate) fn set_deferred(&self, pages_max: u64) -> Result<(), Kind> {
        self.deferred.set_pages_max(pages_max, &self.fixed)
    }

    /// Locks a slot that holds something; one that holds nothing is not locked.
    #[inline]
    pub(crate) fn lock(&self, index: SlotIndex) -> Option<Locked<'_>> {
        work::note(work::SLOT);
        self.lock_in(self.used_page(index)?, index, |mark| !mark.is_empty())
    }

    /// The page of a slot, if some of it is in use.
    #[inline]
    pub(crate) fn used_page(&self, index: SlotIndex) -> Option<SlotPage<'_>> {
        self.blocks.page_of(index).filter(SlotPage::is_used)
    }

    /// Locks a slot of a page that is in use, if its mark is `wanted`.
    #[inline]
    pub(crate) fn lock_in<'a>(
        &'a self,
        page: SlotPage<'a>,
        index: SlotIndex,
        wanted: impl Fn(Mark) -> bool,
    ) -> Option<Locked<'a>> {
        let locked = self.lock_where(page.slot(index), index, wanted);
        if locked.is_none() && !page.is_used() {
            self.blocks.release_unused(&self.locks, page);
        }
        locked
    }

    #[inline]
    fn lock_where<'a>(
        &'a self,
        words: &'a SlotWords,
        index: SlotIndex,
        wanted: impl Fn(Mark) -> bool,
    ) -> Option<Locked<'a>> {
        let locked = self.locks.lock_if(key(index), &words[1], |content| wanted(Mark::from_content(content)));
        let mark = Mark::from_content(locked.ok()?);
        Some(Locked { locks: &self.locks, words, index, mark })
    }

    /// Changes the mark of a slot of a page that is in use to what `next` makes of it, without locking the slot; returns what it was, or
    /// `None` where `next` makes nothing of it.
    pub(crate) fn change_mark(
        &self,
        page: SlotPage<'_>,
        index: SlotIndex,
        next: impl Fn(Mark) -> Option<Mark>,
    ) -> Option<Mark> {
        let next = |content| next(Mark::from_content(content)).map(Mark::content);
        let changed = self.locks.update(key(index), &page.slot(index)[1], next);
        if changed.is_err() && !page.is_used() {
            self.blocks.release_unused(&self.locks, page);
        }
        changed.ok().map(Mark::from_content)
    }

    /// Sets a slot to something. Fails without a change where memory for it is refused. Called with no lock held.
    pub(crate) fn set(
        &self,
        pages: &Pages,
        index: SlotIndex,
        slot: Slot,
        now: u32,
    ) -> Result<Replaced, Kind> {
        assert!(slot != Slot::Empty, "slots are emptied by clear");
        work::note(work::SLOT);
        let page = match self.blocks.page_of(index) {
            Some(page) => page,
            None => self.blocks.make_page_of(pages, index)?,
        };
        if page.is_used()
            && let Some(locked) = self.lock_in(page, index, |mark| !mark.is_empty())
        {
            return Ok(self.replace(locked, slot, now));
        }
        self.blocks.enter(pages, &self.locks, page)?;
        let locked = self.lock_where(page.slot(index), index, |_| true).expect("any slot will do");
        let replaced = self.replace(locked, slot, now);
        // Another writer has filled it meanwhile, and was counted for it.
        let surplus = u64::from(replaced.slot != Slot::Empty);
        self.blocks.leave(pages, &self.locks, page, surplus);
        Ok(replaced)
    }

    fn replace(&self, locked: Locked<'_>, slot: Slot, now: u32) -> Replaced {
        let (index, picked) = (locked.index, locked.mark.is_picked());
        let copy = locked.mark.has_copy().then(|| self.copies.get(index));
        let mut replaced = Replaced { index, slot: locked.get(), picked, copy };
        let mark = Mark::new(slot, now);
        let again = slot != Slot::Empty && replaced.slot != Slot::Empty;
        let mut mark = if again { mark.touched(now) } else { mark };
        if copy.is_some() && mark.is_stored() && mutant::on("zram: a clean copy outlives the overwrite") {
            replaced.copy = None;
            mark = mark.with_copy(true);
        }
        locked.put(slot, mark);
        self.tally.changed(replaced.slot, slot);
        self.end_deferral(replaced.slot);
        replaced
    }

    /// The page of a slot that held `old`, and holds something else now, is no longer deferred.
    #[inline]
    fn end_deferral(&self, old: Slot) {
        if matches!(old, Slot::Deferred(_)) && !mutant::on("zram: keep the room of a deferred page") {
            self.deferred.give();
        }
    }

    /// Writes `page` over a slot's page, if that is deferred and no thread has picked it.
    pub(crate) fn overwrite(
        &self,
        (pool, pages): (&Pool, &Pages),
        index: SlotIndex,
        page: &[u8],
        now: u32,
    ) -> bool {
        if !self.holds_deferred(index) {
            return false;
        }
        let Some(mut locked) = self.lock(index) else { return false };
        let slot = locked.get();
        let Slot::Deferred(cell) = slot else { return false };
        if locked.mark.is_picked() && !mutant::on("zram: overwrite what is picked") {
            return false;
        }
        locked.overwrite(pool, pages, cell, page);
        locked.touch(now);
        self.tally.changed(slot, slot);
        true
    }

    /// Whether a slot's page is deferred; without its lock.
    pub(crate) fn holds_deferred(&self, index: SlotIndex) -> bool {
        self.used_page(index).is_some_and(|page| page.mark(index).is_deferred())
    }

    /// Empties the slots of `range`, which lie in one page, and shows what they held to `see`, with no lock held. Returns how
    /// many there were.
    pub(crate) fn clear(&self, pages: &Pages, range: Range<u64>, mut see: impl FnMut(Replaced)) -> u64 {
        work::note(work::LOOK);
        let first = SlotIndex::new(range.start);
        let Some(page) = self.used_page(first) else { return 0 };
        let mut cleared = 0;
        for index in range.map(SlotIndex::new) {
            if let Some(locked) = self.lock_in(page, index, |mark| !mark.is_empty()) {
                work::note(work::SLOT);
                see(self.replace(locked, Slot::Empty, 0));
                cleared += 1;
            }
        }
        self.blocks.leave(pages, &self.locks, page, cleared);
        cleared
    }

    /// The first of `slots` that lie in a page with some in use: as many as lie there. A few loads, however far they are.
    pub(crate) fn next_slots(&self, slots: Range<u64>) -> Option<Range<u64>> {
        if slots.is_empty() {
            return None;
        }
        let page = self.blocks.next_page(slots.start / PAGE_SLOTS..slots.end.div_ceil(PAGE_SLOTS))?;
        Some(slots.start.max(page * PAGE_SLOTS)..slots.end.min((page + 1) * PAGE_SLOTS))
    }

    /// Picks the object that the slot holds, if it is `wanted` and no thread has picked it, and copies it out with `copy`.
    pub(crate) fn pick<T>(
        &self,
        index: SlotIndex,
        wanted: impl FnOnce(Mark, Cell) -> bool,
        copy: impl FnOnce(&Locked<'_>, Cell) -> T,
    ) -> Option<(Picked, T)> {
        let mut locked = self.lock(index)?;
        let object = locked.get();
        let cell = object.cell()?;
        if locked.mark.is_picked() || !wanted(locked.mark, cell) {
            return None;
        }
        let copied = copy(&locked, cell);
        locked.mark = locked.mark.picked();
        Some((Picked { index, object }, copied))
    }

    /// Puts `new` in place of what was picked, if the slot still holds that; its mark is `changed` then. The caller frees what is not in
    /// the slot: the object that was picked, or `new`, or both.
    pub(crate) fn publish(
        &self,
        picked: Picked,
        new: Slot,
        when: PublishIf,
        changed: impl FnOnce(Mark) -> Mark,
    ) -> PickOutcome {
        let Some(locked) = self.lock(picked.index) else { return PickOutcome::Replaced };
        if locked.get() != picked.object && !mutant::on("zram: publish over a newer write") {
            return PickOutcome::Replaced;
        }
        let (touched, mark) = (locked.mark.was_touched(), locked.mark.unpicked());
        if when == PublishIf::Untouched && touched {
            locked.put(picked.object, mark);
            return PickOutcome::Touched;
        }
        locked.put(new, changed(mark.moved_to(new)));
        self.tally.moved(picked.object, new);
        if !matches!(new, Slot::Deferred(_)) {
            self.end_deferral(picked.object);
        }
        PickOutcome::InPlace
    }

    /// Puts `new`, where the same page lies now, in place of `old`, which is not in memory, if the slot still holds that. The caller
    /// sees to it that nothing else can lie where `old` does. The mark of a slot that holds `new` is `changed`, under its lock.
    #[must_use]
    pub(crate) fn exchange(
        &self,
        index: SlotIndex,
        old: Slot,
        new: Slot,
        changed: impl FnOnce(Mark) -> Mark,
    ) -> bool {
        let Some(locked) = self.lock(index) else { return false };
        let same = locked.get() == old || mutant::on("zram: bring back what was replaced meanwhile");
        if same {
            let mark = changed(locked.mark.moved_to(new));
            locked.put(new, mark);
            self.tally.moved(old, new);
        }
        same
    }

    /// Where a slot's page lies in the spill file, if it does.
    pub(crate) fn away(&self, index: SlotIndex) -> Option<Away> {
        match self.lock(index)?.get() {
            Slot::Spilled(away) => Some(away),
            _ => None,
        }
    }

    /// Leaves what was picked where it is, with its mark `changed`. False where it was replaced meanwhile: then the caller frees it.
    #[must_use]
    pub(crate) fn unpick(&self, picked: Picked, changed: impl FnOnce(Mark) -> Mark) -> bool {
        let Some(mut locked) = self.lock(picked.index) else { return false };
        let same = locked.get() == picked.object;
        if same {
            assert!(locked.mark.is_picked(), "{:?} is put back, and was not picked", picked.index);
            locked.mark = changed(locked.mark.unpicked());
        }
        same
    }

    /// Sums over all slots; exact while no writer is at work.
    pub(crate) fn holdings(&self) -> Holdings {
        self.tally.holdings()
    }

    /// Bytes that pages of slots and of copies are charged with.
    pub(crate) fn charged_bytes(&self) -> u64 {
        (self.blocks.charged_pages() + self.copies.charged_pages()) * PAGE as u64
    }

    /// Every slot that names an object, in memory and spilled, and the bytes that slots are charged with, after asserting that counts,
    /// pages and sums agree with the slots: while no other thread uses the table.
    pub(crate) fn verify(&self) -> Named {
        let (mut named, mut held) = (Named::default(), Holdings::default());
        self.blocks.verify(|page, slots, in_use| {
            named.charged += PAGE as u64;
            let mut used = 0;
            for index in slots.map(SlotIndex::new) {
                let [word, mark] = page.slot(index).each_ref().map(|word| word.load(Ordering::Relaxed));
                assert_eq!(WordLocks::content(mark), mark, "no thread has locked {index:?}");
                let slot = Mark::from_content(mark).slot(word);
                assert!(slot != Slot::Empty || mark == 0, "{index:?} is empty and has the mark {mark:#x}");
                assert!(!Mark::from_content(mark).is_picked(), "no thread has picked {index:?}");
                held = held.plus(Holdings::of(slot));
                used += u64::from(slot != Slot::Empty);
                if Mark::from_content(mark).has_copy() {
                    named.copies.push((index, self.copies.get(index)));
                }
                match slot {
                    Slot::Stored(cell, _) => named.objects.push((index, cell)),
                    Slot::Deferred(cell) => {
                        named.objects.push((index, cell));
                        named.deferred += 1;
                    }
                    Slot::Spilled(away) => named.spilled.push((index, away)),
                    Slot::Empty | Slot::Same(_) | Slot::Lost => {}
                }
            }
            assert_eq!(used, in_use, "slots in use of the page of {:?}", named.objects.last());
        });
        assert_eq!(held, self.holdings(), "what the slots hold, and its sums");
        self.deferred.verify(named.deferred);
        named.charged += self.copies.verify(&named.copies);
        named
    }
}

/// What the slots of a table name.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) objects: Vec<(SlotIndex, Cell)>,
    pub(crate) spilled: Vec<(SlotIndex, Away)>,
    pub(crate) copies: Vec<(SlotIndex, Away)>,
    /// Pages that are deferred.
    deferred: u64,
    /// Bytes that pages of slots are charged with.
    pub(crate) charged: u64,
}

fn key(index: SlotIndex) -> u64 {
    u64::from(index.0)
}

#[cfg(test)]
mod tests;
