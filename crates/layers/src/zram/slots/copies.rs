//! Clean copies: records in the spill file of pages that reads have brought back to memory.
//!
//! Such a page keeps its record until it is written or freed, or the file needs the room. If it is to leave before that, its slot names
//! the record again, and nothing is written. A bit in the slot's mark says that there is one, so that others pay for looking at a bit;
//! what it is stands in a second table, in the format of a slot that holds it. Its pages are charged as those of the table are, while
//! one of their records is kept, and take no more than a 32nd of the memory that the device may use.
//!
//! The words of a copy are read and changed under the lock of its slot. Their page is entered before the bit is set, and left by
//! who has taken it away, with no slot locked.

use std::sync::Arc;

use spillway_core::sync::{AtomicBool, AtomicU64, Ordering, WordLocks};
use spillway_core::{Budget, Kind, Regions};

use super::blocks::{SlotPage, SlotPages};
use super::mark::{Away, Mark, Slot};
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::pool::pages::Pages;

/// The share of memory that copies may take.
const SHARE: u64 = 32;

/// The clean copies of one table.
pub(crate) struct Copies {
    pub(crate) blocks: SlotPages,
    kept: AtomicU64,
    /// The device has, or had, a spill file.
    begun: AtomicBool,
}

impl Copies {
    pub(crate) fn new(regions: Arc<dyn Regions>, fixed: Arc<Budget>) -> Self {
        let (kept, begun) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { blocks: SlotPages::new(regions, fixed), kept, begun }
    }

    /// The device, which has so many slots, has a spill file. [`Kind::NoSpace`] where there is no memory for a bit for each page of them.
    pub(crate) fn begin(&self, slots: u64) -> Result<(), Kind> {
        self.begun.store(true, Ordering::Relaxed);
        self.resize(slots)
    }

    /// The device has so many slots from now on.
    pub(crate) fn resize(&self, slots: u64) -> Result<(), Kind> {
        if self.begun.load(Ordering::Relaxed) { self.blocks.resize(slots) } else { Ok(()) }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> u64 {
        self.kept.load(Ordering::Relaxed)
    }

    /// Pages that are charged.
    pub(crate) fn charged_pages(&self) -> u64 {
        self.blocks.charged_pages()
    }

    /// Takes room for the copy of a slot, for a device that may use so many bytes of memory; false where there is none. Called with no
    /// lock held.
    pub(crate) fn enter(&self, pages: &Pages, locks: &WordLocks, index: SlotIndex, memory: u64) -> bool {
        let page = match self.blocks.page_of(index) {
            Some(page) => Ok(page),
            None => self.blocks.make_page_of(pages, index),
        };
        let more = (self.charged_pages() + 1) * PAGE as u64;
        let fits = |page: &SlotPage<'_>| page.is_used() || more <= memory / SHARE;
        let entered = page.and_then(|page| {
            if fits(&page) { self.blocks.enter(pages, locks, page) } else { Err(Kind::NoSpace) }
        });
        if entered.is_ok() {
            self.kept.fetch_add(1, Ordering::Relaxed);
        }
        entered.is_ok()
    }

    /// Gives the room of a copy back that no slot has any more. Called with no lock held.
    pub(crate) fn leave(&self, pages: &Pages, locks: &WordLocks, index: SlotIndex) {
        let before = self.kept.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "what goes was kept");
        self.blocks.leave(pages, locks, self.page(index), 1);
    }

    /// Notes the copy of a slot that the caller has locked, and has room for.
    pub(crate) fn put(&self, index: SlotIndex, away: Away) {
        let slot = Slot::Spilled(away);
        let words = self.page(index).slot(index);
        words[0].store(slot.word(), Ordering::Relaxed);
        words[1].store(Mark::new(slot, 0).content(), Ordering::Relaxed);
    }

    /// The copy of a slot that the caller has locked, and that has one.
    pub(crate) fn get(&self, index: SlotIndex) -> Away {
        let [word, mark] = self.page(index).slot(index).each_ref().map(|word| word.load(Ordering::Relaxed));
        match Mark::from_content(mark).slot(word) {
            Slot::Spilled(away) => away,
            other => panic!("the copy of {index:?} is a record, not {other:?}"),
        }
    }

    /// Asserts that room is taken for these, which slots have, and no others, while no other thread uses the table; the bytes that they are
    /// charged with.
    pub(crate) fn verify(&self, had: &[(SlotIndex, Away)]) -> u64 {
        let (mut charged, mut entered) = (0, 0);
        self.blocks.verify(|_, slots, in_use| {
            let here = had.iter().filter(|(index, _)| slots.contains(&u64::from(index.0))).count();
            assert_eq!(here as u64, in_use, "copies of slots {slots:?}");
            (charged, entered) = (charged + PAGE as u64, entered + in_use);
        });
        assert_eq!((entered, self.count()), (had.len() as u64, entered), "copies that slots have");
        charged
    }

    fn page(&self, index: SlotIndex) -> SlotPage<'_> {
        self.blocks.page_of(index).expect("who has a copy has room for it")
    }
}
