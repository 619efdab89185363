//! Pages of slots that come and go under threads that use them.

use super::*;
use spillway_core::sync::{AtomicU64, Unseen, Words, touched};
use spillway_core::{Region, Slab};
use std::ops::Range;

/// Two threads fill and empty slots of one page, so that it comes and goes, while a third looks.
#[test]
fn no_slot_is_lost_with_the_page_of_its_neighbours() {
    every_order(4000, || {
        let budget = Budget::new(64 << 20);
        let zram = zram(&budget);
        let change = |index: u32| {
            let zram = zram.clone();
            thread::spawn(move || {
                let (core, slot) = (&zram.core, Slot::Same(u64::from(index) + 7));
                for _ in 0..2 {
                    core.publish(u64::from(index), slot, 0).expect("there is room");
                    assert_eq!(
                        core.table.lock(SlotIndex(index)).map(|slot| slot.get()),
                        Some(slot),
                        "{index}"
                    );
                    assert_eq!(core.clear(u64::from(index)..u64::from(index) + 1), 1);
                }
            })
        };
        let changes = [change(1), change(2)];
        let mut seen = Vec::new();
        zram.core.table.look(0..4, |slot| seen.push(slot));
        let allowed =
            |(slot, index): (&Slot, u64)| matches!(slot, Slot::Empty) || *slot == Slot::Same(index + 7);
        assert!(seen.iter().zip(0..).all(allowed), "{seen:?}");
        changes.into_iter().for_each(|thread| thread.join().expect("it ends"));
        zram.verify();
        assert_eq!(zram.core.budget.used(), 0);
    });
}

#[test]
fn the_checker_finds_a_page_that_is_entered_while_it_goes_back() {
    finds(
        "zram: let threads enter a page of slots that goes back",
        no_slot_is_lost_with_the_page_of_its_neighbours,
    );
}

/// Words of slots that are resident from a failed exchange on until they are released.
struct Touched(Arc<dyn Words>);

impl Words for Touched {
    fn all(&self) -> &[AtomicU64] {
        self.0.all()
    }

    fn release(&self, range: Range<usize>) {
        // What is touched while this goes on stays.
        touched::note_release(&self.all()[range.clone()]);
        self.0.release(range);
    }
}

/// Regions of such words, which are kept here as well.
struct TouchedRegions(VecRegions, Unseen<Vec<Arc<dyn Words>>>);

impl Regions for TouchedRegions {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        self.0.map(bytes)
    }

    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind> {
        self.0.map_slab(bytes)
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        let words: Arc<dyn Words> = self.0.map_words(count)?.into();
        touched::note_release(words.all());
        self.1.lock().push(words.clone());
        Ok(Box::new(Touched(words)))
    }
}

/// A thread locks a slot, and waits for its lock, while the page comes and goes.
#[test]
fn no_page_of_slots_is_resident_that_nobody_is_charged_for() {
    every_order(8000, || {
        let (budget, regions) = (Budget::new(64 << 20), VecRegions::new(256 << 20));
        let regions = Arc::new(TouchedRegions(regions, Unseen::default()));
        let zram = zram_in(regions.clone(), &budget);
        let change = {
            let zram = zram.clone();
            thread::spawn(move || {
                zram.core.publish(1, Slot::Same(7), 0).expect("there is room");
                assert_eq!(zram.core.clear(1..2), 1);
            })
        };
        let looks = [(); 2].map(|()| {
            let zram = zram.clone();
            thread::spawn(move || zram.core.table.lock(SlotIndex(1)).map(|slot| slot.get()))
        });
        change.join().expect("it ends");
        looks.into_iter().for_each(|look| _ = look.join().expect("it ends"));
        assert_eq!(zram.core.budget.used(), 0);
        let resident = regions.1.lock().iter().any(|words| touched::is_touched(words.all()));
        assert!(!resident, "a page of slots is resident, and nobody is charged");
    });
}

#[test]
fn the_checker_finds_a_page_that_stays_resident() {
    finds(
        "zram: keep a page that was touched after it went back",
        no_page_of_slots_is_resident_that_nobody_is_charged_for,
    );
}

/// Two writers of one empty slot: the page is counted once for it.
#[test]
fn two_that_fill_one_slot_count_it_once() {
    every_order(4000, || {
        let zram = zram(&Budget::new(64 << 20));
        let fill = |word| {
            let zram = zram.clone();
            thread::spawn(move || _ = zram.core.publish(3, Slot::Same(word), 0).expect("there is room"))
        };
        [fill(5), fill(6)].into_iter().for_each(|thread| thread.join().expect("it ends"));
        zram.verify();
        assert_eq!(zram.core.clear(0..4), 1);
        zram.verify();
        assert_eq!(zram.core.budget.used(), 0);
    });
}
