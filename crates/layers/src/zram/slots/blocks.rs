//! The memory of the slot table: pages of slots that come with their first slot in use and go with the last.
//!
//! Slots lie in *blocks* of 512 MiB of the device, each a stretch of words that costs nothing until touched. Beside each page of
//! slots stands a *count*: slots that hold something, and threads that are about to fill one. From 0 to 1 it charges the page, and
//! the last one out gives the page back; during both the count is locked, and threads that enter wait. So no lock of a slot and
//! nothing that was written is lost with a page: a slot that is locked or holds something is counted.
//!
//! A block is made when its first slot is written, and stays until the device goes: its counts and the system's page of addresses
//! are charged with it. A bitmap, a bit for each page that has slots in use, finds the next such page in a few loads.
//!
//! Lock order: `making`, a leaf; a count's lock, then the locks of [`Pages`] and the bitmap. No slot is locked while a page comes
//! or goes.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use spillway_core::sync::{AtomicU64, Marks, Mutex, Ordering, RwLock, WORDS_A_PAGE, WordLocks, Words};
use spillway_core::{Budget, Charge, Kind, Regions, mutant};

use super::mark::Mark;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::pool::pages::Pages;

/// Words of a slot.
const SLOT_WORDS: usize = 2;

/// The word and the mark of a slot.
pub(crate) type SlotWords = [AtomicU64; SLOT_WORDS];

/// Slots of a page.
pub(crate) const PAGE_SLOTS: u64 = (WORDS_A_PAGE / SLOT_WORDS) as u64;

/// Pages of a block: as many as one page of the system's tables maps.
const BLOCK_PAGES: u64 = if cfg!(feature = "shuttle") { 2 } else { 512 };
const BLOCK_SLOTS: u64 = BLOCK_PAGES * PAGE_SLOTS;
const BLOCK_WORDS: usize = BLOCK_SLOTS as usize * SLOT_WORDS;

/// Blocks of a group, which is made with its first block.
const GROUP_BLOCKS: u64 = 64;

/// Enough for the largest device.
const GROUPS: u64 = crate::zram::page::DISKSIZE_MAX / PAGE as u64 / 64 / 512 / 256;

/// One slot in use or to come, in a count.
const ONE: u64 = 1 << WordLocks::BITS;

/// Slots of 512 MiB of the device.
struct Block {
    words: Box<dyn Words>,
    counts: [AtomicU64; BLOCK_PAGES as usize],
    _charge: Charge,
}

/// What a block is charged with: itself, and the system's page of addresses.
const BLOCK_BYTES: u64 = size_of::<Block>() as u64 + PAGE as u64;

struct Group {
    blocks: [OnceLock<Box<Block>>; GROUP_BLOCKS as usize],
    _charge: Charge,
}

const GROUP_BYTES: u64 = size_of::<Group>() as u64;

/// Which pages have slots in use. A bit changes under the lock of its page's count, beside others; a walk is alone for a moment.
#[derive(Default)]
struct Present {
    pages: Marks,
    _charge: Option<Charge>,
}

/// A page of slots.
#[derive(Clone, Copy)]
pub(crate) struct SlotPage<'a> {
    slots: &'a [SlotWords],
    count: &'a AtomicU64,
    block: &'a Block,
    /// Number of the page in the table.
    number: u64,
}

impl<'a> SlotPage<'a> {
    #[inline]
    fn new(block: &'a Block, number: u64) -> Self {
        let page = (number % BLOCK_PAGES) as usize;
        let (pages, _) = block.words.all().as_chunks::<WORDS_A_PAGE>();
        let (slots, _) = pages[page].as_chunks();
        Self { slots, count: &block.counts[page], block, number }
    }

    /// The word and the mark of a slot, which lies in this page.
    #[inline]
    pub(crate) fn slot(&self, index: SlotIndex) -> &'a SlotWords {
        &self.slots[(u64::from(index.0) % PAGE_SLOTS) as usize]
    }

    /// What is known of a slot without its lock.
    pub(crate) fn mark(&self, index: SlotIndex) -> Mark {
        Mark::from_content(WordLocks::content(self.slot(index)[1].load(Ordering::Acquire)))
    }

    /// Whether a slot may hold something: else none does, and the page may cost nothing.
    #[inline]
    pub(crate) fn is_used(&self) -> bool {
        WordLocks::content(self.count.load(Ordering::Acquire)) != 0
    }

    /// Slots in use, and threads about to fill one.
    fn in_use(&self) -> u64 {
        self.count.load(Ordering::Acquire) / ONE
    }

    /// Gives the memory of the page back to the system.
    fn release(&self) {
        let first = (self.number % BLOCK_PAGES) as usize * WORDS_A_PAGE;
        self.block.words.release(first..first + WORDS_A_PAGE);
    }
}

/// All pages of slots of a device.
pub(crate) struct SlotPages {
    groups: Box<[OnceLock<Box<Group>>; GROUPS as usize]>,
    making: Mutex<()>,
    /// Pages that are charged.
    charged: AtomicU64,
    present: RwLock<Present>,
    regions: Arc<dyn Regions>,
    fixed: Arc<Budget>,
}

impl SlotPages {
    /// No blocks. Each is charged to `fixed` when it is made.
    pub(crate) fn new(regions: Arc<dyn Regions>, fixed: Arc<Budget>) -> Self {
        let groups = Box::new([const { OnceLock::new() }; GROUPS as usize]);
        let (making, charged, present) = (Mutex::new(()), AtomicU64::new(0), RwLock::default());
        Self { groups, making, charged, present, regions, fixed }
    }

    /// Makes room for `slots` slots, beside threads that use them, and charges a bit for each page of them. None behind them is in
    /// use. [`Kind::NoSpace`] where the budget has no room for that.
    pub(crate) fn resize(&self, slots: u64) -> Result<(), Kind> {
        let pages = slots.div_ceil(PAGE_SLOTS);
        let charge = self.fixed.hold(Marks::bytes(pages))?;
        let mut present = self.present.write();
        let marks = match mutant::on("zram: a table that grows forgets its pages") {
            true => Marks::new(pages),
            false => present.pages.resized(pages),
        };
        *present = Present { pages: marks, _charge: Some(charge) };
        Ok(())
    }

    /// The page of a slot, if its block exists.
    #[inline]
    pub(crate) fn page_of(&self, index: SlotIndex) -> Option<SlotPage<'_>> {
        let number = u64::from(index.0) / PAGE_SLOTS;
        let mut block = number / BLOCK_PAGES;
        if mutant::on("zram: take two blocks of the table for one") {
            block = 0;
        }
        let group = self.groups[(block / GROUP_BLOCKS) as usize].get()?;
        let block = group.blocks[(block % GROUP_BLOCKS) as usize].get()?;
        Some(SlotPage::new(block, number))
    }

    /// Counts a thread that is about to fill a slot of a page: it exists until the thread leaves. Charges the page if it is the
    /// first; [`Kind::NoSpace`] or [`Kind::OutOfMemory`] where that is refused. Called with no lock held.
    pub(crate) fn enter(&self, pages: &Pages, locks: &WordLocks, page: SlotPage<'_>) -> Result<(), Kind> {
        loop {
            match locks.lock_if(page.number, page.count, |count| count == 0) {
                Err(count) if locks.change(page.count, count, count + ONE) => return Ok(()),
                Err(_) => {}
                Ok(_) => return self.take(pages, locks, page),
            }
        }
    }

    /// Charges a page whose count is locked, and unlocks it.
    #[cold]
    fn take(&self, pages: &Pages, locks: &WordLocks, page: SlotPage<'_>) -> Result<(), Kind> {
        let charged = pages.charge(PAGE as u64);
        self.charged.fetch_add(charged.is_ok().into(), Ordering::Relaxed);
        if charged.is_ok() && !mutant::on("zram: forget that a page of slots exists") {
            self.present.read().pages.mark(page.number);
        }
        locks.unlock(page.number, page.count, if charged.is_ok() { ONE } else { 0 });
        charged
    }

    /// Pages that are charged.
    pub(crate) fn charged_pages(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Uncounts `slots` of a page that were emptied, or were not filled; gives the page back where they were the last. Called with
    /// no lock held.
    pub(crate) fn leave(&self, pages: &Pages, locks: &WordLocks, page: SlotPage<'_>, slots: u64) {
        let mut left = slots == 0;
        while !left {
            let count = page.count.load(Ordering::Relaxed);
            assert!(
                count / ONE >= slots && count.is_multiple_of(ONE),
                "{slots} of {count:#x} leave page {}",
                page.number
            );
            if count > slots * ONE {
                left = locks.change(page.count, count, count - slots * ONE);
            } else if locks.lock_changed(page.count, count, 0) {
                return self.give(pages, locks, page);
            }
        }
    }

    /// Gives a page whose count is 0 and locked back to the system, and unlocks it.
    #[cold]
    fn give(&self, pages: &Pages, locks: &WordLocks, page: SlotPage<'_>) {
        self.present.read().pages.unmark(page.number);
        let early = mutant::on("zram: let threads enter a page of slots that goes back");
        if early {
            locks.unlock(page.number, page.count, 0);
        }
        page.release();
        self.charged.fetch_sub(1, Ordering::Relaxed);
        pages.uncharge_page();
        if !early {
            locks.unlock(page.number, page.count, 0);
        }
    }

    /// Gives a page that is not in use back to the system once more: a thread that found a slot in it, and tried to lock that after the
    /// page had gone back, has made it resident. Called with no lock held.
    #[cold]
    pub(crate) fn release_unused(&self, locks: &WordLocks, page: SlotPage<'_>) {
        if mutant::on("zram: keep a page that was touched after it went back") {
            return;
        }
        if locks.lock_if(page.number, page.count, |count| count == 0).is_ok() {
            page.release();
            locks.unlock(page.number, page.count, 0);
        }
    }

    /// The page of a slot, its block made. Warm spans are given back for that where need be; [`Kind::NoSpace`] or
    /// [`Kind::OutOfMemory`] where it is refused. Called with no lock held.
    #[cold]
    pub(crate) fn make_page_of(&self, pages: &Pages, index: SlotIndex) -> Result<SlotPage<'_>, Kind> {
        let mut waited = false;
        loop {
            match self.make_block(u64::from(index.0) / BLOCK_SLOTS) {
                Err(Kind::NoSpace) if pages.makes_room(&mut waited) => {}
                made => break made?,
            }
        }
        Ok(self.page_of(index).expect("its block was made"))
    }

    fn make_block(&self, number: u64) -> Result<(), Kind> {
        let _making = self.making.lock();
        let group = &self.groups[(number / GROUP_BLOCKS) as usize];
        if group.get().is_none() {
            let charge = self.fixed.hold(GROUP_BYTES)?;
            let blocks = [const { OnceLock::new() }; GROUP_BLOCKS as usize];
            let made = group.set(Box::new(Group { blocks, _charge: charge }));
            assert!(made.is_ok(), "groups are made under the lock");
        }
        let group = group.get().expect("it was made");
        let block = &group.blocks[(number % GROUP_BLOCKS) as usize];
        if block.get().is_none() {
            assert!(block.set(Box::new(self.new_block()?)).is_ok(), "blocks are made under the lock");
        }
        Ok(())
    }

    fn new_block(&self) -> Result<Block, Kind> {
        let charge = self.fixed.hold(BLOCK_BYTES)?;
        let words = self.regions.map_words(BLOCK_WORDS)?;
        assert_eq!(words.all().len(), BLOCK_WORDS, "a block has its words");
        let counts = [const { AtomicU64::new(0) }; BLOCK_PAGES as usize];
        Ok(Block { words, counts, _charge: charge })
    }

    /// The first page within `pages` that has slots in use. A few loads, however far it is.
    pub(crate) fn next_page(&self, pages: Range<u64>) -> Option<u64> {
        // Alone: one thread at a time may walk.
        self.present.write().pages.next(pages.start).filter(|page| *page < pages.end)
    }

    /// Shows every page that is charged and its slots in use to `see`, and asserts that counts and bitmap agree: while no thread
    /// enters or leaves one.
    pub(crate) fn verify(&self, mut see: impl FnMut(SlotPage<'_>, Range<u64>, u64)) {
        let (mut counted, mut from) = (0, 0);
        while let Some(number) = self.next_page(from..u64::MAX) {
            let slots = number * PAGE_SLOTS..(number + 1) * PAGE_SLOTS;
            let page = self.page_of(SlotIndex::new(slots.start)).expect("a page in use has a block");
            assert!((1..=PAGE_SLOTS).contains(&page.in_use()), "{} slots in page {number}", page.in_use());
            see(page, slots, page.in_use());
            (counted, from) = (counted + 1, number + 1);
        }
        let groups = self.groups.iter().filter_map(OnceLock::get);
        let blocks = groups.flat_map(|group| group.blocks.iter()).filter_map(OnceLock::get);
        let counts = blocks.flat_map(|block| block.counts.iter());
        let used = counts.filter(|count| count.load(Ordering::Relaxed) != 0).count();
        assert_eq!(
            (used, self.charged_pages()),
            (counted, counted as u64),
            "pages with a count, and in the bitmap"
        );
    }

    /// Bytes that blocks and groups are charged with.
    #[cfg(test)]
    pub(crate) fn fixed_bytes(&self) -> u64 {
        let groups = self.groups.iter().filter_map(OnceLock::get);
        let blocks = |group: &Group| group.blocks.iter().filter(|block| block.get().is_some()).count() as u64;
        groups.map(|group| GROUP_BYTES + blocks(group) * BLOCK_BYTES).sum()
    }
}
