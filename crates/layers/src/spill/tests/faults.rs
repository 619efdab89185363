//! Disks that fail, lie and run out of room: what is read is right or an error, and a full stop is said.

use spillway_core::sync::{AtomicBool, Ordering};
use spillway_core::{BlockDevice, ByteRange, Geometry, IoBuf, Op, Request, Submission};
use spillway_sim::disk::{Call, Effect, Fault};

use super::*;
use crate::spill::format::UNIT;
use crate::spill::segments::SegmentState;

fn house(faults: Vec<Fault>, seed: u64) -> House {
    let plan = Plan { faults, ..Plan::default() };
    open(medium(), &settings(), plan, seed).expect("it fails later").0
}

fn fault(call: Call, nth: u64, effect: Effect) -> Fault {
    Fault { call: Some(call), nth, effect, sticky: false }
}

/// Writes of a file that was opened: two superblocks.
const OPENED: u64 = 2;

/// More reads than opening makes.
const OPENED_READS: u64 = 8;

#[test]
fn a_failed_write_leaves_its_slots_alone_and_the_next_one_works() {
    let house = house(vec![fault(Call::Write, OPENED + 1, Effect::Fail(Kind::Io))], 1);
    house.spill_pages(0..4, 0);
    let pages =
        |version: u64| (0..4).map(|slot| (slot, bytes(u64::from(slot) << 32 | version, 4096))).collect();
    assert_eq!(house.spill(pages(1)), (0, Err(Kind::Io)));
    assert!((0..4).all(|slot| house.check(slot).is_ok()), "the old content is named");
    assert_eq!(house.spill(pages(2)), (4, Ok(())));
    assert!((0..4).all(|slot| house.check(slot).is_ok()));
    assert_eq!((house.store.count(Count::WriteErrors), house.store.has_failed()), (1, false));
    house.verify();
    house.stop().expect("the disk works again");
}

#[test]
fn after_failures_in_a_row_nothing_is_written_and_all_is_read() {
    let sticky = Fault { sticky: true, ..fault(Call::Write, OPENED + 2, Effect::Fail(Kind::Io)) };
    let house = house(vec![sticky], 1);
    house.spill_pages(0..8, 0);
    for _ in 0..8 {
        assert!(!house.store.has_failed());
        assert_eq!(house.spill(vec![(9, bytes(9, 100))]), (0, Err(Kind::Io)));
    }
    assert!(house.store.has_failed());
    // What is under way behind the batches ends.
    while house.world.go_on() {}
    let calls = house.disk.calls();
    assert_eq!(house.spill(vec![(9, bytes(9, 100))]), (0, Err(Kind::Io)));
    while house.world.go_on() {}
    assert_eq!(house.disk.calls(), calls, "it is not tried again");
    assert!((0..8).all(|slot| house.check(slot).is_ok()));
    assert!(house.stop().is_err_and(|error| error.message().contains("ram0")));
}

/// Every third write fails, and the one after it works.
#[test]
pub(in crate::spill) fn failures_that_do_not_follow_each_other_end_nothing() {
    let faults = (OPENED..100).step_by(3).map(|nth| fault(Call::Write, nth, Effect::Fail(Kind::Io)));
    let house = house(faults.collect(), 1);
    let spill = || house.spill(vec![(9, bytes(9, 3000))]).1;
    let failed = (0..40).filter(|_| spill().is_err()).count();
    assert!(failed > 8 && house.store.count(Count::WriteErrors) > 8, "{failed} failed");
    assert!(!house.store.has_failed());
    assert!(spill().is_ok() || spill().is_ok(), "it is tried");
    house.verify();
}

/// A host without room is a full file, not a broken one.
#[test]
fn a_full_host_is_counted_as_full_and_asked_again() {
    // Twenty batches, and the end of the segment that they use up.
    let faults = (OPENED + 1..OPENED + 22).map(|nth| fault(Call::Write, nth, Effect::Fail(Kind::NoSpace)));
    let house = house(faults.collect(), 1);
    house.spill_pages(0..4, 0);
    for _ in 0..20 {
        assert_eq!(house.spill(vec![(9, bytes(9, 100))]), (0, Err(Kind::NoSpace)));
    }
    assert_eq!((house.store.count(Count::Full), house.store.count(Count::WriteErrors)), (20, 0));
    house.spill_pages(4..8, 0);
    assert!((0..8).all(|slot| house.check(slot).is_ok()));
    house.verify();
}

#[test]
fn a_bad_sector_is_an_error_of_its_page_and_stops_no_cleaning() {
    let house = house(vec![fault(Call::Read, 20, Effect::GoBad)], 1);
    house.spill_pages(0..28, 0);
    let bad = (0..28).cycle().find(|&slot| house.check(slot).is_err()).expect("one goes bad");
    let errors: Vec<u32> = (0..28).filter(|&slot| house.check(slot) == Err(Kind::Io)).collect();
    assert_eq!(errors, [bad]);
    (0..28).filter(|&slot| slot != bad).for_each(|slot| house.release(slot));
    let before = house.store.count(Count::ReadErrors);
    churn(&house, 5);
    assert!(house.store.count(Count::ReadErrors) > before, "the cleaner met it");
    assert_eq!(house.store.count(Count::SetAside), 1);
    let readable = house.slots().into_iter().filter(|&slot| house.check(slot).is_ok()).count();
    assert_eq!(readable, house.slots().len() - 1, "all others are where they were, or moved");
    house.verify();
}

/// A page is stored wrong; the cleaner meets it, and takes the rest of its segment with it.
#[test]
fn a_rotten_page_is_lost_when_its_segment_is_cleaned() {
    let house = house(vec![fault(Call::Write, OPENED, Effect::Rot)], 1);
    house.spill_pages(0..28, 0);
    (2..28).for_each(|slot| house.release(slot));
    assert_eq!(house.check(1), Ok(()));
    assert_eq!(house.check(0), Err(Kind::Corrupt));
    churn(&house, 30);
    assert_eq!(*house.slots.lost.lock(), [0]);
    assert_eq!(house.store.count(Count::SetAside), 0);
    assert_eq!(house.check(1), Ok(()));
    house.verify();
}

/// Nothing is punched, so that what was there stays; but not a footer that is no longer true.
#[test]
fn a_segment_that_is_used_again_has_no_footer_until_it_is_closed() {
    let sticky = Fault { sticky: true, ..fault(Call::Zero, 0, Effect::Fail(Kind::Io)) };
    let house = house(vec![sticky], 1);
    (0..20).for_each(|version| house.spill_pages(0..40, version));
    house.verify();
    let states = |segment| house.store.segments.look(segment).state;
    let stale = |segment: u32| house.store.stale.has(segment.into());
    let free = (0..SEGMENTS as u32).filter(|&segment| states(segment) == SegmentState::Free);
    assert!(free.clone().count() > 2 && !free.clone().any(stale), "who takes one waits for no footer");
    let open =
        (0..SEGMENTS as u32).find(|&segment| states(segment) == SegmentState::Open).expect("one is open");
    assert!(house.store.segments.seq(open) > SEGMENTS, "it was used before");
    let (store, at) = (house.store.clone(), (1 << SHIFT) - UNIT);
    let last = house.run(async move { store.read_at(open, at, IoBuf::new(UNIT)).await });
    assert!(last.expect("it can be read").iter().all(|&byte| byte == 0));
    (0..40).for_each(|slot| assert_eq!(house.check(slot), Ok(())));
}

/// A file whose first segment ends in a place that cannot be written any more.
struct Worn {
    file: File,
    is_worn: AtomicBool,
}

impl BlockDevice for Worn {
    fn geometry(&self) -> Geometry {
        Geometry { fast_zeroes: false, ..self.file.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        let place = ByteRange::new((2 << SHIFT) - UNIT as u64, UNIT as u64);
        if request.op == Op::Write && request.range.overlaps(place) && self.is_worn.load(Ordering::Relaxed) {
            return Answer::Done(request.answer(Err(Kind::Io)));
        }
        self.file.submit(request)
    }
}

/// A segment is free whose end cannot be written: others are used in its place, also by the checkpoint.
#[test]
fn a_segment_that_cannot_be_ended_is_taken_last() {
    let house = House::new(1);
    let (world, disk) = (house.world.clone(), house.disk.clone());
    let worn = Arc::new(Worn { file: File::new(disk, world.clone()), is_worn: AtomicBool::new(false) });
    let force = Settings { force: true, ..settings() };
    let (device, env, budget) = (worn.clone(), world.clone(), house.budget.clone());
    let open = async move { Store::open(device, &force, env, &budget, &mut |_| Err(Kind::Corrupt)).await };
    let house = House { store: run(&world, open).expect("it is taken by force").0, ..house };
    house.spill_pages(0..40, 0);
    worn.is_worn.store(true, Ordering::Relaxed);
    (1..20).for_each(|version| house.spill_pages(0..40, version));
    house.verify();
    assert!(house.store.segments.look(0).state == SegmentState::Free && house.store.set_aside.has(0));
    (0..40).for_each(|slot| assert_eq!(house.check(slot), Ok(())));
    house.stop_whole().expect("the checkpoint is elsewhere");
}

/// A file whose disk fails each read for a while.
struct Mute {
    file: File,
    is_mute: AtomicBool,
}

impl BlockDevice for Mute {
    fn geometry(&self) -> Geometry {
        self.file.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        if request.op == Op::Read && self.is_mute.load(Ordering::Relaxed) {
            return Answer::Done(request.answer(Err(Kind::Io)));
        }
        self.file.submit(request)
    }
}

/// No segment of a full file can be read when it is to be cleaned. It is cleaned once they can.
#[test]
fn what_cannot_be_read_for_a_while_is_cleaned_later() {
    let house = House::new(1);
    let (world, disk) = (house.world.clone(), house.disk.clone());
    let mute = Arc::new(Mute { file: File::new(disk, world.clone()), is_mute: AtomicBool::new(false) });
    let force = Settings { force: true, ..settings() };
    let (device, env, budget) = (mute.clone(), world.clone(), house.budget.clone());
    let open = async move { Store::open(device, &force, env, &budget, &mut |_| Err(Kind::Corrupt)).await };
    let house = House { store: run(&world, open).expect("it is taken by force").0, ..house };
    let next = (0..1000).find(|&slot| house.spill(vec![(slot, bytes(slot.into(), 4096))]).1.is_err());
    let next = next.expect("it has an end");
    (0..next).filter(|slot| slot % 3 != 0).for_each(|slot| house.release(slot));
    mute.is_mute.store(true, Ordering::Relaxed);
    for _ in 0..2 {
        assert_eq!(house.spill(vec![(next, bytes(1, 4096))]), (0, Err(Kind::NoSpace)));
    }
    assert!(house.store.count(Count::SetAside) > 0 && house.store.count(Count::SegmentsCleaned) == 0);
    mute.is_mute.store(false, Ordering::Relaxed);
    house.spill_pages(next..next + next / 5, 7);
    assert!(house.store.count(Count::SegmentsCleaned) > 0);
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
    house.verify();
}

/// Overwrites and releases slots from 100 on until the cleaner has run so often.
fn churn(house: &House, cleaned: u64) {
    let mut next = 100;
    while house.store.count(Count::SegmentsCleaned) < cleaned {
        house.spill_pages(next..next + 5, 0);
        (next..next + 5).filter(|slot| slot % 5 != 0).for_each(|slot| house.release(slot));
        if next >= 250 {
            house.release(next - 150);
        }
        next += 5;
        assert!(next < 20_000, "it is never cleaned");
    }
}

/// Stories of random batches, reads and releases on a disk with faults.
#[test]
fn whatever_the_disk_does_a_page_is_right_or_an_error() {
    let effects = [
        Effect::Fail(Kind::Io),
        Effect::Fail(Kind::NoSpace),
        Effect::Short,
        Effect::Rot,
        Effect::Misdirect,
        Effect::GoBad,
    ];
    let mut seen = [0; 3];
    for seed in 0..300 {
        let mut random = Random(seed);
        let faults = (0..random.below(6)).map(|_| {
            let effect = effects[random.below(6) as usize];
            match effect {
                Effect::GoBad => fault(Call::Read, OPENED_READS + random.below(80), effect),
                _ => fault(Call::Write, OPENED + random.below(80), effect),
            }
        });
        let house = house(faults.collect(), seed);
        for _ in 0..40 {
            step(&house, &mut random, &mut seen);
        }
        house.verify();
        // A checkpoint may fail to be written.
        let _ = house.stop();
    }
    assert!(seen.iter().all(|&count| count > 50), "{seen:?}");
}

fn step(house: &House, random: &mut Random, seen: &mut [u64; 3]) {
    let batch = |random: &mut Random| {
        let first = random.below(150) as u32;
        let pages: Vec<_> = (first..first + 1 + random.below(4) as u32)
            .map(|slot| (slot, bytes(random.draw(), 1 + random.below(4096) as usize)))
            .collect();
        Answer::pending(spill(house.store.clone(), house.slots.clone(), pages))
    };
    let batches = (0..1 + random.below(4)).map(|_| batch(random)).collect();
    for (_, result) in house.world.run_all(batches) {
        assert!(matches!(result, Ok(()) | Err(Kind::NoSpace | Kind::Io)), "{result:?}");
    }
    for slot in house.slots() {
        match random.below(8) {
            0 => house.release(slot),
            1 | 2 => match house.check(slot) {
                Ok(()) => seen[0] += 1,
                Err(Kind::Corrupt) => seen[1] += 1,
                Err(Kind::Io) => seen[2] += 1,
                Err(kind) => panic!("{kind:?}"),
            },
            _ => {}
        }
    }
}
