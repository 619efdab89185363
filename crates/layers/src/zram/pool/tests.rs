//! Tests of the object pool.

use super::*;
use spillway_core::random::Random;
use spillway_sim::memory::VecRegions;

fn pages() -> Pages {
    Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(32 << 20), Budget::new(1 << 20))
}

fn pool() -> Pool {
    Pool::new(&Budget::new(1 << 20)).unwrap()
}

fn read(pool: &Pool, pages: &Pages, cell: Cell) -> Vec<u8> {
    let mut scratch = Scratch::new();
    // SAFETY: one thread, and the cell was published to the test.
    unsafe { pool.copy_to(pages, cell, &mut scratch) }.to_vec()
}

/// An object, its bytes and its owner.
type Kept = (Cell, Vec<u8>, SlotIndex);

/// Compares with what is known, and the charge with what is in use but for warm spans.
fn verify(pool: &Pool, pages: &Pages, kept: &[Kept]) {
    let charged = pool.verify(pages, kept.iter().map(|(cell, _, owner)| (*owner, *cell)));
    assert_eq!(charged + pages.warm_bytes(), pages.budget().used());
}

#[test]
fn a_cell_that_no_slot_names_and_one_that_is_named_wrongly_are_noticed() {
    let (pool, pages) = (pool(), pages());
    pool.prepare_packing(&pages);
    let packed = pool.place_packed(&pages, 100, SlotIndex(1)).unwrap().publish();
    let cell = pool.allocate(&pages, 1000, SlotIndex(2)).unwrap().publish();
    let (one, two) = ((SlotIndex(1), packed), (SlotIndex(2), cell));
    pool.verify(&pages, [one, two].into_iter());
    let wrong: [&[(SlotIndex, Cell)]; 6] =
        [&[], &[one], &[two], &[one, (SlotIndex(3), cell)], &[(SlotIndex(3), packed), two], &[one, two, two]];
    for named in wrong {
        let look = || pool.verify(&pages, named.iter().copied());
        let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(look));
        assert!(found.is_err(), "{named:?} was taken for the truth");
    }
}

#[test]
fn objects_keep_their_bytes_among_each_other_and_all_memory_returns() {
    let (pool, pages, mut random) = (pool(), pages(), Random(5));
    let mut kept: Vec<Kept> = Vec::new();
    for step in 0..20_000u32 {
        if kept.len() > 500 || (random.below(3) == 0 && !kept.is_empty()) {
            let (cell, bytes, _) = kept.swap_remove(random.below(kept.len() as u64) as usize);
            assert_eq!(read(&pool, &pages, cell), bytes);
            pool.free(&pages, cell);
            continue;
        }
        let mut bytes = vec![0; 1 + random.below(4096) as usize];
        random.fill(&mut bytes);
        let fresh = if step % 5 == 0 {
            pool.prepare_packing(&pages);
            pool.place_packed(&pages, bytes.len(), SlotIndex(step)).unwrap()
        } else {
            pool.allocate(&pages, bytes.len(), SlotIndex(step)).unwrap()
        };
        kept.push((pool.fill(&pages, fresh, &bytes), bytes, SlotIndex(step)));
        if step % 64 == 0 {
            verify(&pool, &pages, &kept);
        }
    }
    verify(&pool, &pages, &kept);
    for (cell, bytes, _) in kept {
        assert_eq!(read(&pool, &pages, cell), bytes);
        pool.free(&pages, cell);
    }
    pool.end_packing(&pages);
    pages.cool();
    assert_eq!(pages.budget().used(), 0);
}

#[test]
fn a_span_being_emptied_takes_nothing_new() {
    let (pool, pages) = (pool(), pages());
    let class = pool.sizes.of(1000);
    let (cells, arena) = (pool.classes[class].shape.cells, ArenaId::new(class, ArenaIndex(0)));
    let all: Vec<Cell> = (0..2 * cells as u32)
        .map(|owner| pool.allocate(&pages, 1000, SlotIndex(owner)).unwrap().publish())
        .collect();
    // Leave two in the first span and half in the second.
    all[2..cells].iter().chain(&all[cells + cells / 2..]).for_each(|&cell| pool.free(&pages, cell));
    let eviction = pool.begin_merge(arena).unwrap();
    assert_eq!(eviction.objects.iter().map(|(_, owner)| owner.0).collect::<Vec<_>>(), [0, 1]);
    for &cell in &all[..2] {
        let moved = pool.place_merged(1000, SlotIndex(9), cell).unwrap().publish();
        assert_ne!(moved.span(), cell.span());
        pool.free(&pages, cell);
    }
    pool.end_eviction(&pages, eviction);
    assert!(pool.begin_merge(arena).is_none(), "one span is left");
}

/// Looks at spans that it takes to empty one of `count` spans of one class, each half full.
fn looks_a_merge(count: usize) -> u64 {
    let (pool, pages) = (pool(), pages());
    let class = pool.sizes.of(1000);
    let (cells, arena) = (pool.classes[class].shape.cells, ArenaId::new(class, ArenaIndex(0)));
    let all: Vec<Cell> = (0..(count * cells) as u32)
        .map(|owner| pool.allocate(&pages, 1000, SlotIndex(owner)).unwrap().publish())
        .collect();
    all.iter().skip(1).step_by(2).for_each(|&cell| pool.free(&pages, cell));
    crate::zram::work::meter::take_looks();
    let eviction = pool.begin_merge(arena).unwrap();
    for (asked, owner) in &eviction.objects {
        let left = Cell::new(asked.span(), asked.position(), asked.arena(), 1000);
        let _ = pool.place_merged(1000, *owner, left).unwrap().publish();
        pool.free(&pages, left);
    }
    pool.end_eviction(&pages, eviction);
    crate::zram::work::meter::take_looks()
}

#[test]
fn emptying_a_span_costs_the_same_however_many_there_are() {
    let (few, many) = (looks_a_merge(10), looks_a_merge(500));
    assert!(many <= few + few / 4, "{few} looks among 10 spans, {many} among 500");
}

#[test]
fn an_empty_pool_takes_little_and_none_where_that_is_refused() {
    let budget = Budget::new(1 << 20);
    let pool = Pool::new(&budget).unwrap();
    assert!((32 << 10..384 << 10).contains(&budget.used()), "{} bytes", budget.used());
    budget.set_limit(budget.used() + 100);
    assert_eq!(Pool::new(&budget).err(), Some(Kind::NoSpace));
    let class = &pool.classes[0];
    class.widen();
    assert_eq!(class.open(), 1, "no memory, no second arena");
    budget.set_limit(1 << 20);
    class.widen();
    assert_eq!(class.open(), 2);
    drop(pool);
    assert_eq!(budget.used(), 0);
}
