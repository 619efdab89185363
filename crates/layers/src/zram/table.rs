//! The slot table: what each 4096-byte block of the device holds.
//!
//! A slot is 12 bytes: a word (the repeated word of a same-filled page, or the [`Cell`] of an object) and a mark (its kind
//! and flags, and the time of the last access). 340 slots share a *leaf*, a page that is taken when its first slot is
//! written and given back when its last one is freed, so that a device costs what it holds. Leaves are spread over shards,
//! each a plain structure behind its own lock, which is held for tens of nanoseconds: to look, to swap, and to copy an
//! object out. Nothing is compressed or decompressed under it.
//!
//! Lock order: a shard's lock first; a shelf's and [`Pages`]' may be taken under it, another shard's never.

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use spillway_core::Kind;
use spillway_core::sync::{Mutex, MutexGuard};

use super::PAGE;
use super::pages::{Leaf, Pages};
use super::pool::{Cell, Fresh, Pool, Scratch};

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
}

/// The slots of one device.
pub(super) struct Table {
    shards: Box<[CachePadded<Mutex<Shard>>]>,
}

impl Table {
    pub(super) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| CachePadded::default()).collect() }
    }

    /// Locks the shard of a slot.
    pub(super) fn lock(&self, index: u64) -> Locked<'_> {
        let leaf = index / LEAF_SLOTS;
        let shard = self.shards[(leaf % SHARDS) as usize].lock();
        Locked { shard, leaf, place: (index % LEAF_SLOTS) as usize }
    }

    /// Sums over all shards; exact while nobody writes.
    pub(super) fn holdings(&self) -> Holdings {
        self.shards.iter().fold(Holdings::default(), |mut sum, shard| {
            sum.add(&shard.lock().holdings);
            sum
        })
    }

    /// Numbers of the leaves that exist within `leaves`, in order.
    pub(super) fn leaves_within(&self, leaves: std::ops::Range<u64>) -> Vec<u64> {
        let mut found = Vec::new();
        for (number, shard) in self.shards.iter().enumerate() {
            let shard = shard.lock();
            let first = leaves.start + (number as u64 + SHARDS - leaves.start % SHARDS) % SHARDS;
            if (leaves.end.saturating_sub(first)).div_ceil(SHARDS) < shard.leaves.len() as u64 {
                let here = (first..leaves.end).step_by(SHARDS as usize);
                found.extend(here.filter(|leaf| shard.leaves.contains_key(leaf)));
            } else {
                found.extend(shard.leaves.keys().filter(|leaf| leaves.contains(leaf)));
            }
        }
        found.sort_unstable();
        found
    }
}

/// A slot whose shard is locked.
pub(super) struct Locked<'a> {
    shard: MutexGuard<'a, Shard>,
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
    pub(super) fn set(&mut self, pages: &Pages, slot: Slot, seconds: u32) -> Result<Slot, Kind> {
        let place = self.place;
        let shard = &mut *self.shard;
        let Some(leaf) = shard.leaves.get_mut(&self.leaf) else {
            if slot != Slot::Empty {
                let mut leaf = pages.take_leaf()?;
                put(&mut leaf, place, slot, seconds);
                shard.leaves.insert(self.leaf, leaf);
                shard.holdings.change(slot, 1);
            }
            return Ok(Slot::Empty);
        };
        let old = put(leaf, place, slot, seconds);
        shard.holdings.change(old, -1);
        shard.holdings.change(slot, 1);
        if leaf[COUNT] == 0 {
            let leaf = shard.leaves.remove(&self.leaf).expect("looked up above");
            pages.give_leaf(leaf);
        }
        Ok(old)
    }
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
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(1 << 20))
    }

    #[test]
    fn slots_hold_what_was_set_and_leaves_come_and_go() {
        let (table, pages) = (Table::new(), pages());
        let far = 1 << 31;
        for index in [0, 1, 339, 340, far] {
            assert_eq!(table.lock(index).set(&pages, Slot::Same(index), 5), Ok(Slot::Empty));
        }
        assert_eq!(pages.budget().used(), 3 * PAGE as u64);
        for index in [0, 1, 339, 340, far] {
            assert_eq!(table.lock(index).get(), Slot::Same(index));
            assert_eq!(table.lock(index).set(&pages, Slot::Empty, 0), Ok(Slot::Same(index)));
            assert_eq!(table.lock(index).get(), Slot::Empty);
        }
        assert_eq!((pages.budget().used(), table.holdings()), (0, Holdings::default()));
    }

    #[test]
    fn a_refused_leaf_changes_nothing() {
        let (table, pages) = (Table::new(), pages());
        pages.budget().set_limit(0);
        assert_eq!(table.lock(7).set(&pages, Slot::Same(1), 0), Err(Kind::NoSpace));
        assert_eq!(table.lock(7).get(), Slot::Empty);
        assert_eq!(table.holdings(), Holdings::default());
    }

    #[test]
    fn leaves_are_found_within_any_range() {
        let (table, pages) = (Table::new(), pages());
        for leaf in [0, 3, 255, 256, 5000] {
            table.lock(leaf * LEAF_SLOTS).set(&pages, Slot::Same(1), 0).unwrap();
        }
        assert_eq!(table.leaves_within(0..u64::MAX / LEAF_SLOTS), [0, 3, 255, 256, 5000]);
        assert_eq!(table.leaves_within(1..256), [3, 255]);
        assert_eq!(table.leaves_within(255..257), [255, 256]);
        assert!(table.leaves_within(4..4).is_empty());
    }
}
