//! Slots are set, emptied, picked and moved; their pages come and go.

use super::*;
use crate::zram::codec::CodecIndex;
use crate::zram::page::PAGE;
use crate::zram::pool::cell::{ArenaIndex, Position};
use crate::zram::pool::pages::Span;
use spillway_core::random::Random;
use spillway_sim::memory::VecRegions;
use std::collections::BTreeMap;

struct World {
    table: SlotTable,
    pages: Pages,
    fixed: Arc<Budget>,
}

fn world() -> World {
    let (regions, budget, fixed) =
        (Arc::new(VecRegions::new(256 << 20)), Budget::new(1 << 20), Budget::new(4 << 20));
    let table = SlotTable::new(regions.clone(), fixed.clone());
    table.resize(1 << 32).unwrap();
    World { table, pages: Pages::new(regions, budget, fixed.clone()), fixed }
}

impl World {
    fn set(&self, index: u32, slot: Slot) -> Result<Slot, Kind> {
        self.table.set(&self.pages, SlotIndex(index), slot, 5).map(|replaced| replaced.slot)
    }

    fn get(&self, index: u32) -> Slot {
        self.table.lock(SlotIndex(index)).map_or(Slot::Empty, |locked| locked.get())
    }

    /// Empties one slot; returns what it held.
    fn clear(&self, index: u32) -> Slot {
        let (index, mut held) = (u64::from(index), Slot::Empty);
        self.table.clear(&self.pages, index..index + 1, |replaced| held = replaced.slot);
        held
    }

    fn pages_within(&self, pages: Range<u64>) -> Vec<u64> {
        let next = |&page: &u64| self.table.blocks.next_page(page + 1..pages.end);
        std::iter::successors(self.table.blocks.next_page(pages.clone()), next).collect()
    }
}

fn object(span: u32) -> Slot {
    Slot::Stored(Cell::new(Span(span), Position::new(7), ArenaIndex::new(3), 100), CodecIndex(1))
}

#[test]
fn slots_hold_what_was_set_and_pages_come_and_go() {
    let world = world();
    // Both sides of the boundaries of pages, blocks and groups, and the last slot.
    let indices = [0, 1, 255, 256, 131_071, 131_072, 8_388_607, 8_388_608, u32::MAX];
    let pages = 7;
    for index in indices {
        assert_eq!(world.set(index, Slot::Same(u64::from(index))), Ok(Slot::Empty));
    }
    assert_eq!(world.pages.budget().used(), pages * PAGE as u64);
    assert_eq!(world.table.verify().charged, pages * PAGE as u64);
    for index in indices {
        assert_eq!(world.get(index), Slot::Same(u64::from(index)));
        assert_eq!(world.set(index, object(index % 1000)), Ok(Slot::Same(u64::from(index))));
        assert_eq!(world.clear(index), object(index % 1000));
        assert_eq!((world.get(index), world.clear(index)), (Slot::Empty, Slot::Empty));
    }
    assert_eq!((world.pages.budget().used(), world.table.holdings()), (0, Holdings::default()));
    let bitmap = spillway_core::sync::Marks::bytes((1 << 32) / PAGE_SLOTS);
    assert_eq!(world.fixed.used(), bitmap + world.table.blocks.fixed_bytes());
}

#[test]
fn a_table_agrees_with_a_map_under_random_use() {
    let (world, mut random, mut model) = (world(), Random(4), BTreeMap::new());
    for step in 0..20_000 {
        let index = random.below(3) as u32 * 131_071 + random.below(700) as u32;
        match random.below(5) {
            0 | 1 => {
                let slot = if random.below(2) == 0 { Slot::Same(random.below(2)) } else { object(step) };
                assert_eq!(world.set(index, slot), Ok(model.insert(index, slot).unwrap_or(Slot::Empty)));
            }
            2 => assert_eq!(world.clear(index), model.remove(&index).unwrap_or(Slot::Empty)),
            3 => {
                let end = (u64::from(index) + random.below(300))
                    .min((u64::from(index) / PAGE_SLOTS + 1) * PAGE_SLOTS);
                let mut seen = Vec::new();
                world.table.clear(&world.pages, u64::from(index)..end, |replaced| seen.push(replaced.slot));
                let gone: Vec<u32> = model.range(index..end as u32).map(|(index, _)| *index).collect();
                let expected: Vec<Slot> = gone.iter().filter_map(|index| model.remove(index)).collect();
                assert_eq!(seen, expected);
            }
            _ => assert_eq!(world.get(index), *model.get(&index).unwrap_or(&Slot::Empty)),
        }
        if step % 100 == 0 {
            world.table.verify();
            let sum = model.values().fold(Holdings::default(), |sum, slot| sum.plus(Holdings::of(*slot)));
            assert_eq!(world.table.holdings(), sum);
            let mut pages: Vec<u64> = model.keys().map(|index| u64::from(*index) / PAGE_SLOTS).collect();
            pages.dedup();
            assert_eq!(world.pages_within(0..u64::MAX), pages);
            assert_eq!(world.pages.budget().used(), (pages.len() * PAGE) as u64);
        }
    }
}

#[test]
fn a_refused_page_or_block_changes_nothing() {
    let world = world();
    world.pages.budget().set_limit(PAGE as u64 - 1);
    for _ in 0..2 {
        assert_eq!(world.set(7, Slot::Same(1)), Err(Kind::NoSpace));
        assert_eq!((world.get(7), world.pages.budget().used()), (Slot::Empty, 0));
        assert!(world.pages_within(0..100).is_empty() && world.table.holdings() == Holdings::default());
    }
    world.pages.budget().set_limit(1 << 20);
    world.fixed.set_limit(world.fixed.used());
    assert_eq!(world.set(1 << 30, Slot::Same(1)), Err(Kind::NoSpace));
    assert_eq!((world.set(7, Slot::Same(1)), world.get(7)), (Ok(Slot::Empty), Slot::Same(1)));
    world.table.verify();
}

#[test]
fn pages_in_use_are_found_within_any_range() {
    let (world, all) = (world(), [0, 3, 63, 64, 255, 256, 5000, 16_000_000]);
    for page in all {
        world.set((page * PAGE_SLOTS) as u32, Slot::Same(1)).unwrap();
    }
    assert_eq!(world.pages_within(0..u64::MAX / PAGE_SLOTS), all);
    assert_eq!(world.pages_within(1..256), [3, 63, 64, 255]);
    assert_eq!(world.pages_within(255..257), [255, 256]);
    assert!(world.pages_within(4..4).is_empty() && world.pages_within(4..63).is_empty());
}

/// A slot that holds an object of a real pool.
struct Stored {
    world: World,
    pool: Pool,
    cell: Cell,
}

const BYTES: [u8; 100] = [9; 100];

impl Stored {
    fn new() -> Self {
        let world = world();
        let pool = Pool::new(&world.fixed).unwrap();
        let fresh = pool.allocate(&world.pages, BYTES.len(), SlotIndex(3)).unwrap();
        let cell = pool.fill(&world.pages, fresh, &BYTES);
        world.set(3, Slot::Stored(cell, CodecIndex(0))).unwrap();
        Self { world, pool, cell }
    }

    fn pick(&self) -> Option<Picked> {
        let mut bytes = [0; BYTES.len()];
        let at = |_, cell: Cell| cell.is_at(self.cell);
        let (picked, ()) = self.world.table.pick(SlotIndex(3), at, |locked, cell| {
            locked.copy_into(&self.pool, &self.world.pages, cell, &mut bytes);
        })?;
        assert_eq!(bytes, BYTES);
        Some(picked)
    }

    fn read(&self) {
        self.world.table.lock(SlotIndex(3)).expect("it holds an object").touch(9);
    }

    fn held(&self) -> Slot {
        Slot::Stored(self.cell, CodecIndex(0))
    }
}

#[test]
fn what_was_picked_is_published_unless_it_was_written_or_read() {
    let table =
        |stored: &Stored, picked, when| stored.world.table.publish(picked, object(50), when, |mark| mark);
    for when in [PublishIf::Always, PublishIf::Untouched] {
        let stored = Stored::new();
        let picked = stored.pick().unwrap();
        assert!(stored.pick().is_none(), "it is picked once at a time");
        assert_eq!(table(&stored, picked, when), PickOutcome::InPlace);
        assert_eq!(stored.world.get(3), object(50));
        stored.world.table.verify();
    }
    for (when, outcome, held) in [
        (PublishIf::Always, PickOutcome::InPlace, object(50)),
        (PublishIf::Untouched, PickOutcome::Touched, Stored::new().held()),
    ] {
        let stored = Stored::new();
        let picked = stored.pick().unwrap();
        stored.read();
        assert_eq!((table(&stored, picked, when), stored.world.get(3)), (outcome, held));
        stored.world.table.verify();
    }
    for write in [Slot::Same(4), object(60)] {
        let stored = Stored::new();
        let picked = stored.pick().unwrap();
        let replaced = stored.world.table.set(&stored.world.pages, SlotIndex(3), write, 6).unwrap();
        assert_eq!((replaced.slot, replaced.to_free()), (stored.held(), None), "its picker frees it");
        assert_eq!(table(&stored, picked, PublishIf::Always), PickOutcome::Replaced);
        assert_eq!(stored.world.get(3), write);
    }
    let stored = Stored::new();
    let picked = stored.pick().unwrap();
    stored.world.clear(3);
    assert_eq!(table(&stored, picked, PublishIf::Always), PickOutcome::Replaced);
    assert_eq!(stored.world.get(3), Slot::Empty);
}

#[test]
fn what_is_unpicked_can_be_picked_again_and_what_was_replaced_is_the_pickers() {
    let stored = Stored::new();
    let picked = stored.pick().unwrap();
    assert!(stored.world.table.unpick(picked, |mark| mark));
    let picked = stored.pick().expect("it is not picked any more");
    let elsewhere = Cell::new(Span(77), Position::new(0), ArenaIndex::new(0), 1);
    let picked_elsewhere = stored.world.table.pick(SlotIndex(3), |_, cell| cell.is_at(elsewhere), |_, _| ());
    assert!(picked_elsewhere.is_none(), "it lies elsewhere");
    stored.world.set(3, Slot::Same(1)).unwrap();
    assert!(!stored.world.table.unpick(picked, |mark| mark));
    assert!(stored.pick().is_none(), "a repeated word is no object");
}

/// An access, and a picker, take the lock of their slot; walks over many slots do not.
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
#[test]
fn walks_change_marks_without_a_lock() {
    let world = world();
    (0..3).for_each(|index| _ = world.set(index, object(index)).unwrap());
    world.set(3, Slot::Same(7)).unwrap();
    // The first write is no access.
    world.set(0, object(9)).unwrap();
    let idle = || {
        let mut idle = Vec::new();
        world.table.marks(0..PAGE_SLOTS, |index, mark| idle.extend(mark.is_idle().then_some(index.0)));
        idle
    };
    let before = spillway_core::sync::locks_taken();
    world.table.mark_idle(0..PAGE_SLOTS, 11, 15);
    assert_eq!(idle(), [0; 0], "10 seconds after the write");
    world.table.mark_idle(1..PAGE_SLOTS, 10, 15);
    assert_eq!(idle(), [1, 2], "a repeated word is none");
    let mut seen = Vec::new();
    (0..2).for_each(|_| {
        _ = world.table.sweep(0..PAGE_SLOTS, 15, false, |index, mark| {
            seen.push((index.0, mark.len()));
            index.0 != 1
        })
    });
    assert_eq!(seen, [(1, 100), (0, 100), (1, 100)], "what was accessed is passed once");
    world.table.mark_idle(0..2, 11, 15);
    assert_eq!((idle(), spillway_core::sync::locks_taken()), (vec![2], before));
    world.table.verify();
}
