//! The slot table: what each 4096-byte block of the device holds.
//!
//! A slot is 12 bytes: a word (the repeated word of a same-filled page, or the [`Cell`] of an object) and a mark (its kind
//! and flags, and the time of the last access). 340 slots share a *leaf*, a page that is taken when its first slot is
//! written and given back when its last one is freed, so that a device costs what it holds. Leaves are spread over shards,
//! each a plain structure behind its own lock, which is held for tens of nanoseconds: to look, to swap, and to copy an
//! object out; for half a microsecond to decompress one with a fast codec. Nothing is compressed under it.
//!
//! Beside the shards a bitmap says which leaves exist, so that a walk finds the next one at 64 a word and can stop and go
//! on anywhere. A bit changes under the lock of its leaf's shard.
//!
//! Lock order: a shard's lock first; a shelf's, [`Pages`]' and the bitmap's may be taken under it, another shard's never.

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use spillway_core::sync::{Mutex, MutexGuard, RwLock, SummaryBitmap};
use spillway_core::{Budget, Charge, Kind, mutant};

use super::page::PAGE;
use super::pages::{Leaf, Pages};
use super::pool::{Cell, Fresh, Pool, Scratch};
use super::work;

/// Slots of a leaf: 340 words, 340 half-words of marks and a count fill a page but for 8 bytes.
pub(super) const LEAF_SLOTS: u64 = 340;
const MARKS: usize = LEAF_SLOTS as usize;
const COUNT: usize = 511;
const SHARDS: u64 = 256;

/// What a slot holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// Nothing: reads as zero.
    Empty,
    /// A page of one repeated word.
    Same(u64),
    /// An object of the pool; raw if it is as long as a page.
    Stored(Cell),
}

/// Kind and flags in the low byte, seconds of the last access above.
///
/// Flags that later work will use (idle, incompressible, written back, two bits of priority) have their places here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark(u32);

impl Mark {
    const KIND: u32 = 3;
    const SAME: u32 = 1;
    const STORED: u32 = 2;
    const SECONDS_SHIFT: u32 = 8;

    fn new(slot: Slot, seconds: u32) -> Self {
        match slot {
            Slot::Empty => Self(0),
            Slot::Same(_) => Self(Self::SAME | seconds << Self::SECONDS_SHIFT),
            Slot::Stored(_) => Self(Self::STORED | seconds << Self::SECONDS_SHIFT),
        }
    }

    fn slot(self, word: u64) -> Slot {
        match self.0 & Self::KIND {
            Self::SAME => Slot::Same(word),
            Self::STORED => Slot::Stored(Cell(word)),
            _ => Slot::Empty,
        }
    }
}

/// Counts of what the slots of a shard hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Holdings {
    /// Slots that hold something.
    pub(super) pages_stored: u64,
    /// Of these: one repeated word, zero included.
    pub(super) same_pages: u64,
    /// Of these: the word is zero.
    pub(super) zero_pages: u64,
    /// Stored raw.
    pub(super) huge_pages: u64,
    /// Bytes of all objects.
    pub(super) object_bytes: u64,
}

impl Holdings {
    fn change(&mut self, slot: Slot, step: i64) {
        let add = |count: &mut u64, by: i64| {
            *count = count.checked_add_signed(by).expect("a slot is counted before it is uncounted");
        };
        match slot {
            Slot::Empty => return,
            Slot::Same(word) => {
                add(&mut self.same_pages, step);
                add(&mut self.zero_pages, if word == 0 { step } else { 0 });
            }
            Slot::Stored(cell) => {
                add(&mut self.huge_pages, if cell.len() == PAGE { step } else { 0 });
                add(&mut self.object_bytes, step * cell.len() as i64);
            }
        }
        add(&mut self.pages_stored, step);
    }

    fn add(&mut self, other: &Holdings) {
        self.pages_stored += other.pages_stored;
        self.same_pages += other.same_pages;
        self.zero_pages += other.zero_pages;
        self.huge_pages += other.huge_pages;
        self.object_bytes += other.object_bytes;
    }
}

#[derive(Default)]
struct Shard {
    leaves: HashMap<u64, Leaf>,
    holdings: Holdings,
    /// Slots set to something, or emptied, so far. Moving an object is no change.
    changes: u64,
}

impl Shard {
    /// Takes a page for `leaf` and lists it; the map's growth is charged first. Changes nothing where that is refused.
    fn add_leaf(&mut self, pages: &Pages, leaf: u64) -> Result<&mut Leaf, Kind> {
        let before = self.leaves.allocation_size() as u64;
        let grows = self.leaves.len() == self.leaves.capacity();
        let growth = if grows { 2 * before + MAP_BYTES_MIN } else { 0 };
        // The old map lives until all is moved to the new one.
        pages.budget().charge(growth)?;
        let page = pages.take_leaf().inspect_err(|_| pages.budget().uncharge(growth))?;
        self.leaves.reserve(1);
        if growth > 0 {
            let charged = before + growth;
            let needed = self.leaves.allocation_size() as u64;
            assert!(needed <= growth, "a map of {needed} bytes was charged with {growth}");
            pages.budget().uncharge(charged - needed);
        }
        Ok(self.leaves.entry(leaf).insert(page).into_mut())
    }

    /// Drops the map once nothing is in it.
    fn shrink(&mut self, pages: &Pages) {
        if self.leaves.is_empty() {
            pages.budget().uncharge(self.leaves.allocation_size() as u64);
            self.leaves = HashMap::new();
        }
    }
}

/// At least what a map of leaves takes first; later it doubles.
const MAP_BYTES_MIN: u64 = 1024;

/// Which leaves exist. A leaf comes and goes under the lock of its shard.
#[derive(Default)]
struct Present {
    leaves: SummaryBitmap,
    _charge: Option<Charge>,
}

/// The slots of one device.
pub(super) struct Table {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
    present: RwLock<Present>,
}

impl Table {
    /// A table without slots.
    pub(super) fn new() -> Self {
        let present = RwLock::new(Present::default());
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect(), present }
    }

    /// Makes room for `slots` slots, none of which is in use, and charges the bitmap to `budget`: hardly more than a bit for 340
    /// slots.
    pub(super) fn resize(&self, slots: u64, budget: &std::sync::Arc<Budget>) -> Result<(), Kind> {
        let leaves = slots.div_ceil(LEAF_SLOTS);
        let charge = budget.hold(SummaryBitmap::bytes(leaves))?;
        *self.present.write() = Present { leaves: SummaryBitmap::new(leaves), _charge: Some(charge) };
        Ok(())
    }

    /// Locks the shard of a slot.
    pub(super) fn lock(&self, index: u64) -> Locked<'_> {
        work::note(work::SLOT);
        self.lock_slot(index)
    }

    fn lock_slot(&self, index: u64) -> Locked<'_> {
        let mut leaf = index / LEAF_SLOTS;
        if mutant::on("zram: take two leaves of a shard for one") {
            leaf %= SHARDS;
        }
        let shard = self.shards[(leaf % SHARDS) as usize].lock();
        Locked { shard, present: &self.present, leaf, place: (index % LEAF_SLOTS) as usize }
    }

    /// Shows the slots of `range`, which lie in one leaf, under one lock.
    pub(super) fn look(&self, range: std::ops::Range<u64>, mut see: impl FnMut(Slot)) {
        work::note(work::LEAF);
        let first = self.lock_slot(range.start);
        let leaf = first.shard.leaves.get(&first.leaf);
        for place in (first.place..).take((range.end - range.start) as usize) {
            see(leaf.map_or(Slot::Empty, |leaf| mark(leaf, place).slot(leaf[place])));
        }
    }

    /// The first leaf that exists within `leaves`. A few loads, however far it is.
    pub(super) fn next_leaf(&self, leaves: std::ops::Range<u64>) -> Option<u64> {
        self.present.read().leaves.next_set(leaves.start).filter(|leaf| *leaf < leaves.end)
    }

    /// A number that differs from what it was before as soon as a slot was set or emptied.
    pub(super) fn changes(&self) -> u64 {
        self.shards.iter().fold(0, |sum, shard| sum.wrapping_add(shard.lock().changes))
    }

    /// Sums over all shards; exact while nobody writes.
    pub(super) fn holdings(&self) -> Holdings {
        self.shards.iter().fold(Holdings::default(), |mut sum, shard| {
            sum.add(&shard.lock().holdings);
            sum
        })
    }
}

/// A slot whose shard is locked.
pub(super) struct Locked<'a> {
    shard: MutexGuard<'a, Shard>,
    present: &'a RwLock<Present>,
    leaf: u64,
    place: usize,
}

impl Locked<'_> {
    /// What the slot holds.
    pub(super) fn get(&self) -> Slot {
        self.shard
            .leaves
            .get(&self.leaf)
            .map_or(Slot::Empty, |leaf| mark(leaf, self.place).slot(leaf[self.place]))
    }

    /// Notes an access at `seconds`.
    pub(super) fn touch(&mut self, seconds: u32) {
        let place = self.place;
        if let Some(leaf) = self.shard.leaves.get_mut(&self.leaf) {
            let Mark(old) = mark(leaf, place);
            let new = old & ((1 << Mark::SECONDS_SHIFT) - 1) | seconds << Mark::SECONDS_SHIFT;
            if old != new {
                set_mark(leaf, place, Mark(new));
            }
        }
    }

    /// The slot's object, which cannot change as long as the shard is locked. The slot must hold `cell`.
    pub(super) fn object<'s>(&'s self, pool: &Pool, pages: &'s Pages, cell: Cell) -> &'s [u8] {
        assert_eq!(self.get(), Slot::Stored(cell));
        // SAFETY: the cell is published in this slot, as just checked, and `self` holds the shard's lock while it is borrowed.
        unsafe { pool.object(pages, cell) }
    }

    /// Copies the slot's object out. The slot must hold `cell`.
    pub(super) fn copy_to<'s>(
        &self,
        pool: &Pool,
        pages: &Pages,
        cell: Cell,
        scratch: &'s mut Scratch,
    ) -> &'s [u8] {
        assert_eq!(self.get(), Slot::Stored(cell));
        // SAFETY: the cell is published in this slot, as just checked, and `self` holds the shard's lock.
        unsafe { pool.copy_to(pages, cell, scratch) }
    }

    /// Copies the slot's raw page out. The slot must hold `cell`, of a page's length.
    pub(super) fn copy_into(&self, pool: &Pool, pages: &Pages, cell: Cell, target: &mut [u8]) {
        assert_eq!(self.get(), Slot::Stored(cell));
        // SAFETY: as in `copy_to`.
        unsafe { pool.copy_into(pages, cell, target) }
    }

    /// Moves the slot's object to `fresh`; returns the cell it left. The slot must hold `cell`.
    pub(super) fn relocate(&mut self, pool: &Pool, pages: &Pages, cell: Cell, fresh: Fresh) -> Cell {
        assert_eq!(self.get(), Slot::Stored(cell));
        // SAFETY: as in `copy_to`.
        unsafe { pool.copy_cell(pages, cell, &fresh) };
        let place = self.place;
        let leaf = self.shard.leaves.get_mut(&self.leaf).expect("the slot holds an object");
        leaf[place] = fresh.publish().0;
        cell
    }

    /// Sets the slot and returns what it held. Fails without a change where a new leaf is refused.
    pub(super) fn set(&mut self, pages: &Pages, slot: Slot, seconds: u32) -> Result<Replaced, Kind> {
        let place = self.place;
        let shard = &mut *self.shard;
        let Some(leaf) = shard.leaves.get_mut(&self.leaf) else {
            if slot != Slot::Empty {
                put(shard.add_leaf(pages, self.leaf)?, place, slot, seconds);
                shard.holdings.change(slot, 1);
                shard.changes += 1;
                if !mutant::on("zram: forget that a leaf exists") {
                    self.present.read().leaves.set(self.leaf);
                }
            }
            return Ok(Replaced { slot: Slot::Empty, leaf: None });
        };
        let old = put(leaf, place, slot, seconds);
        shard.holdings.change(old, -1);
        shard.holdings.change(slot, 1);
        shard.changes += u64::from(old != Slot::Empty || slot != Slot::Empty);
        let leaf = if leaf[COUNT] == 0 { shard.leaves.remove(&self.leaf) } else { None };
        if leaf.is_some() {
            self.present.read().leaves.clear(self.leaf);
            shard.shrink(pages);
        }
        Ok(Replaced { slot: old, leaf })
    }
}

/// What a slot held before, and the leaf that it leaves empty: to be given back once the shard is unlocked.
#[must_use]
pub(super) struct Replaced {
    pub(super) slot: Slot,
    pub(super) leaf: Option<Leaf>,
}

fn mark(leaf: &Leaf, place: usize) -> Mark {
    let pair = leaf[MARKS + place / 2];
    Mark((pair >> (place % 2 * 32)) as u32)
}

fn set_mark(leaf: &mut Leaf, place: usize, mark: Mark) {
    let shift = place % 2 * 32;
    let pair = &mut leaf[MARKS + place / 2];
    *pair = *pair & !(0xffff_ffff << shift) | u64::from(mark.0) << shift;
}

/// Writes a slot and the leaf's count of slots in use; returns what it held.
fn put(leaf: &mut Leaf, place: usize, slot: Slot, seconds: u32) -> Slot {
    let old = mark(leaf, place).slot(leaf[place]);
    leaf[place] = match slot {
        Slot::Empty => 0,
        Slot::Same(word) => word,
        Slot::Stored(cell) => cell.0,
    };
    set_mark(leaf, place, Mark::new(slot, seconds));
    leaf[COUNT] = leaf[COUNT] + u64::from(slot != Slot::Empty) - u64::from(old != Slot::Empty);
    old
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::Budget;
    use spillway_sim::memory::VecRegions;
    use std::sync::Arc;

    fn pages() -> Pages {
        let budget = Budget::new(1 << 20);
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::share(&budget, Budget::UNLIMITED), budget)
    }

    fn table() -> Table {
        let table = Table::new();
        table.resize(1 << 32, &Budget::new(2 << 20)).unwrap();
        table
    }

    /// Sets a slot and returns what it held.
    fn set(table: &Table, pages: &Pages, index: u64, slot: Slot) -> Result<Slot, Kind> {
        let old = table.lock(index).set(pages, slot, 5)?;
        old.leaf.into_iter().for_each(|leaf| pages.give_leaf(leaf));
        Ok(old.slot)
    }

    #[test]
    fn slots_hold_what_was_set_and_leaves_come_and_go() {
        let (table, pages) = (table(), pages());
        let far = 1 << 31;
        for index in [0, 1, 339, 340, far] {
            assert_eq!(set(&table, &pages, index, Slot::Same(index)), Ok(Slot::Empty));
        }
        let maps = pages.budget().used() - 3 * PAGE as u64;
        assert!((1..=3 * MAP_BYTES_MIN).contains(&maps), "{maps} bytes for three maps");
        for index in [0, 1, 339, 340, far] {
            assert_eq!(table.lock(index).get(), Slot::Same(index));
            assert_eq!(set(&table, &pages, index, Slot::Empty), Ok(Slot::Same(index)));
            assert_eq!(table.lock(index).get(), Slot::Empty);
        }
        assert_eq!((pages.budget().used(), table.holdings()), (0, Holdings::default()));
    }

    #[test]
    fn a_refused_leaf_changes_nothing() {
        let (table, pages) = (table(), pages());
        for limit in [0, MAP_BYTES_MIN] {
            pages.budget().set_limit(limit);
            assert_eq!(set(&table, &pages, 7, Slot::Same(1)), Err(Kind::NoSpace));
            assert_eq!(table.lock(7).get(), Slot::Empty);
            assert_eq!((pages.budget().used(), table.holdings()), (0, Holdings::default()));
            assert!(leaves_within(&table, 0..100).is_empty());
        }
    }

    #[test]
    fn the_maps_of_many_leaves_are_charged_for_what_they_take() {
        let budget = Budget::new(256 << 20);
        let pages = Pages::new(Arc::new(VecRegions::new(256 << 20)), budget.clone(), budget.clone());
        let (table, fixed) = (table(), budget.used());
        let maps =
            || table.shards.iter().map(|shard| shard.lock().leaves.allocation_size() as u64).sum::<u64>();
        let check = |leaves: u64| {
            assert_eq!(budget.used() - pages.tag_bytes() - fixed, leaves * PAGE as u64 + maps());
        };
        for leaf in 0..20_000 {
            set(&table, &pages, leaf * LEAF_SLOTS, Slot::Same(1)).unwrap();
            if leaf % 1000 == 999 {
                check(leaf + 1);
            }
        }
        for leaf in 0..20_000 {
            set(&table, &pages, leaf * LEAF_SLOTS, Slot::Empty).unwrap();
        }
        check(0);
        assert_eq!(maps(), 0);
    }

    fn leaves_within(table: &Table, leaves: std::ops::Range<u64>) -> Vec<u64> {
        let next = |&leaf: &u64| table.next_leaf(leaf + 1..leaves.end);
        std::iter::successors(table.next_leaf(leaves.clone()), next).collect()
    }

    #[test]
    fn leaves_are_found_within_any_range() {
        let (table, pages) = (table(), pages());
        for leaf in [0, 3, 63, 64, 255, 256, 5000, 12_000_000] {
            let _ = set(&table, &pages, leaf * LEAF_SLOTS, Slot::Same(1)).unwrap();
        }
        let all = [0, 3, 63, 64, 255, 256, 5000, 12_000_000];
        assert_eq!(leaves_within(&table, 0..u64::MAX / LEAF_SLOTS), all);
        assert_eq!(leaves_within(&table, 1..256), [3, 63, 64, 255]);
        assert_eq!(leaves_within(&table, 255..257), [255, 256]);
        assert!(leaves_within(&table, 4..4).is_empty());
        assert!(leaves_within(&table, 4..63).is_empty());
    }
}
