//! Models for the checker of threads: pages are written, read, overwritten and cleaned while segments come free and are used again.

use std::sync::Arc;

use spillway_core::models::{Tasks, carry_out, every_order, finds, join};
use spillway_core::sync::Unseen;
use spillway_core::sync::shuttle::future::{block_on, yield_now};
use spillway_core::sync::shuttle::thread;
use spillway_core::{Answer, BlockDevice, Budget, Geometry, Kind, Op, Request, Submission};

use super::tests::{Slots, bytes, spill};
use super::*;

/// Three pages fit a segment.
const SMALL: u32 = 14;

/// Seven do, and one that is live can be copied with profit.
const LARGE: u32 = 15;

const SEGMENTS: usize = 7;

/// Turns of others before a segment is punched.
const PATIENCE: usize = 40;

/// A disk that takes a moment for each answer, before and after it does what it is asked, and long for a punch.
pub(crate) struct Disk(Arc<Unseen<Vec<u8>>>);

impl Disk {
    /// One of zeroes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Unseen::new(vec![0; bytes])))
    }
}

impl BlockDevice for Disk {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(self.0.lock().len() as u64)
    }

    fn submit(&self, mut request: Request) -> Submission {
        let bytes = self.0.clone();
        Answer::pending(async move {
            for _ in 0..if request.op == Op::WriteZeroes { PATIENCE } else { 1 } {
                yield_now().await;
            }
            carry_out(&bytes, &mut request);
            yield_now().await;
            request.answer(Ok(()))
        })
    }
}

/// Waits until there is nothing to close and to punch. Nobody gives it more meanwhile.
pub(crate) fn until_kept_up(store: &Store) {
    while !store.upkeep.is_idle() {
        thread::yield_now();
    }
}

#[derive(Clone)]
struct House {
    store: Arc<Store>,
    slots: Arc<Slots>,
}

impl House {
    fn new(shift: u32) -> Self {
        let device = Arc::new(Disk::new((SEGMENTS + 1) << shift));
        let settings = Settings { segment_shift: shift, batches: 2, ..Settings::new("ram0", 64) };
        let budget = Budget::new(64 << 20);
        let mut keep = |_| Err(Kind::Corrupt);
        let open = Store::open(device, &settings, Arc::new(Tasks), &budget, &mut keep);
        Self { store: block_on(open).expect("it is blank").0, slots: Arc::default() }
    }

    fn try_spill(&self, slot: u32, version: u64) -> Result<(), Kind> {
        let page = vec![(slot, bytes(u64::from(slot) << 32 | version, 4096))];
        block_on(spill(self.store.clone(), self.slots.clone(), page)).1
    }

    fn spill(&self, slot: u32, version: u64) {
        assert_eq!(self.try_spill(slot, version), Ok(()));
    }

    /// Reads what a slot names when it is looked at.
    fn read(&self, slot: u32) {
        let held = self.slots.held.lock();
        let Some(wanted) = held.get(&slot).cloned() else { return };
        let pinned = self.store.pin(&wanted.spilled);
        drop(held);
        let mut seen = None;
        let look = |_, found: Result<&[u8], Kind>| seen = Some(found.map(|bytes| bytes == wanted.bytes));
        block_on(self.store.read(&[wanted.spilled], look));
        drop(pinned);
        assert_eq!(seen, Some(Ok(true)), "slot {slot} was written and is something else");
    }

    fn release(&self, slot: u32) {
        let held = self.slots.held.lock().remove(&slot);
        held.into_iter().for_each(|held| self.store.release(&held.spilled));
    }

    /// Runs `work` on a thread.
    fn on_thread(&self, work: impl FnOnce(&Self) + Send + 'static) -> thread::JoinHandle<()> {
        let house = self.clone();
        thread::spawn(move || work(&house))
    }

    fn verify(&self) {
        block_on(self.store.stop(&*self.slots, None)).expect("the disk is sound");
        let named: Vec<_> = self.slots.held.lock().values().map(|held| held.spilled).collect();
        named.iter().for_each(|spilled| self.read(spilled.record.slot));
    }
}

/// A page is read while it is overwritten, so that its segment comes free and is punched.
#[test]
fn a_segment_that_is_read_stays() {
    every_order(1500, || {
        let house = House::new(SMALL);
        // The first segment is full of it, and open until something else comes.
        (0..3).for_each(|version| house.spill(0, version));
        let readers = [1, 2].map(|_| house.on_thread(|house| house.read(0)));
        let writer = house.on_thread(|house| (3..5).for_each(|version| house.spill(0, version)));
        join(readers.into_iter().chain([writer]));
        house.read(0);
        house.verify();
    });
}

/// The last page of a segment is discarded while another is written, which needs a segment.
#[test]
fn a_segment_that_is_used_again_keeps_what_is_new() {
    every_order(1500, || {
        let house = House::new(SMALL);
        (0..3).for_each(|version| house.spill(0, version));
        (0..3).for_each(|version| house.spill(1, version));
        let discards = house.on_thread(|house| house.release(0));
        let writes = house.on_thread(|house| house.spill(2, 0));
        join([discards, writes]);
        [1, 2].into_iter().for_each(|slot| house.read(slot));
        house.verify();
    });
}

/// The last reader, who overwrites, and who discards leave one segment at the same time.
#[test]
fn a_segment_that_all_leave_at_once_is_freed_once() {
    every_order(3000, || {
        let house = House::new(SMALL);
        (0..4).for_each(|slot| house.spill(slot, 0));
        house.release(2);
        let reader = house.on_thread(|house| house.read(0));
        let leave = [0, 1].map(|slot| house.on_thread(move |house| house.release(slot)));
        join(leave.into_iter().chain([reader]));
        house.spill(5, 1);
        house.read(3);
        house.verify();
    });
}

/// A full file is cleaned for one writer while another waits, pages that are moved are overwritten, and one is read.
#[test]
fn a_full_file_is_cleaned_beside_writers_and_readers() {
    every_order(600, || {
        let house = House::new(LARGE);
        let mut slot = 0;
        while house.try_spill(slot, 0).is_ok() {
            slot += 1;
        }
        assert_eq!(slot, 28, "pages of four segments");
        (0..14).filter(|slot| slot % 7 != 6).for_each(|slot| house.release(slot));
        let first = house.on_thread(|house| house.spill(30, 0));
        let second = house.on_thread(|house| house.spill(6, 1));
        let reader = house.on_thread(|house| [6, 13].into_iter().for_each(|slot| house.read(slot)));
        join([first, second, reader]);
        (0..31).for_each(|slot| house.read(slot));
        house.verify();
    });
}

#[test]
fn the_checker_finds_a_segment_that_is_freed_while_it_is_read() {
    finds("spill: free a segment that is read", a_segment_that_is_read_stays);
}

#[test]
fn the_checker_finds_a_segment_that_is_punched_after_it_is_used_again() {
    finds("spill: punch a segment after it is free", a_segment_that_is_used_again_keeps_what_is_new);
}

#[test]
fn the_checker_finds_a_segment_that_is_freed_by_both() {
    finds("spill: free a segment by both who leave it", a_segment_that_all_leave_at_once_is_freed_once);
}

/// One order is all there is.
#[test]
fn a_test_of_failures_that_do_not_follow_each_other() {
    every_order(2, super::tests::faults::failures_that_do_not_follow_each_other_end_nothing);
}

#[test]
fn failures_that_are_counted_though_others_worked_between_are_noticed() {
    finds(
        "spill: count failures that do not follow each other",
        a_test_of_failures_that_do_not_follow_each_other,
    );
}

#[test]
fn a_test_of_what_says_that_it_was_stopped() {
    every_order(2, super::tests::stopping::what_says_that_it_was_stopped_is_whole);
}

#[test]
fn a_file_that_says_too_early_that_it_was_stopped_is_noticed() {
    finds("spill: say that it is stopped before the last flush", a_test_of_what_says_that_it_was_stopped);
}
