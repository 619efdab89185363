//! Files that are full: cleaned, refused with a count, and usable again once something is released.

use std::time::Duration;

use spillway_core::IoBuf;
use spillway_sim::disk::{Call, Effect, Fault};

use super::*;
use crate::spill::segments::SegmentState;

#[test]
fn segments_of_which_nothing_is_left_are_punched_and_used_again() {
    let house = House::new(1);
    for version in 0..20 {
        house.spill_pages(0..40, version);
        (0..40).for_each(|slot| assert_eq!(house.check(slot), Ok(())));
    }
    house.verify();
    assert_eq!(house.store.count(Count::Full), 0);
    (0..40).for_each(|slot| house.release(slot));
    house.verify();
    assert_eq!(
        house.store.free_segments() as u64,
        SEGMENTS - 2 - 1 - 1,
        "all but the reserve and the open one"
    );
    let free = |segment: &u32| house.store.segments.look(*segment).state == SegmentState::Free;
    for segment in (0..SEGMENTS as u32).filter(free) {
        let store = house.store.clone();
        let all = house.run(async move { store.read_at(segment, 0, IoBuf::new(1 << SHIFT)).await });
        assert!(all.expect("it can be read").iter().all(|&byte| byte == 0), "segment {segment}");
    }
}

/// Slots that were written meanwhile are not to name their records: these take no room.
#[test]
fn records_that_are_not_published_take_no_room() {
    let house = House::new(1);
    for round in 0..100 {
        let (store, slots) = (house.store.clone(), house.slots.clone());
        let (written, result) = house.run(async move {
            let mut batch = store.batch().await;
            for slot in 0..4 {
                let bytes = bytes(round, 4000);
                assert!(batch.push(slot, RecordCodec::RAW, &bytes));
            }
            batch.write(&*slots, |_, _| false).await
        });
        assert_eq!((written, result), (4, Ok(())), "round {round}");
        house.verify();
    }
}

/// A fifth of each segment is live, in turn: only cleaning makes room, without a segment that frees itself.
#[test]
fn a_file_is_cleaned_when_it_is_full() {
    let house = House::new(1);
    let mut next = 0;
    while house.store.count(Count::SegmentsCleaned) < 20 {
        house.spill_pages(next..next + 5, 0);
        (next..next + 5).filter(|slot| slot % 5 != 0).for_each(|slot| house.release(slot));
        if next >= 200 {
            house.release(next - 200);
        }
        next += 5;
        assert!(next < 20_000, "it is never cleaned");
    }
    for slot in house.slots() {
        assert_eq!(house.check(slot), Ok(()));
    }
    house.verify();
    assert_eq!(house.store.count(Count::Full), 0);
}

#[test]
fn a_full_file_refuses_and_goes_on_when_something_is_released() {
    let house = House::new(3);
    let mut next = 0;
    let refused = loop {
        let pages = (next..next + 4).map(|slot| (slot, bytes(slot.into(), 4096))).collect();
        let (written, result) = house.spill(pages);
        next += written as u32;
        if let Err(kind) = result {
            break kind;
        }
        assert!(next < 1000, "it is never full");
    };
    assert_eq!((refused, house.store.count(Count::Full)), (Kind::NoSpace, 1));
    let segments = SEGMENTS - 3;
    assert!(u64::from(next) >= segments * 14, "{next} pages in {segments} segments");
    assert_eq!(house.spill(vec![(next, bytes(1, 4096))]), (0, Err(Kind::NoSpace)));
    // Most of each segment, but none whole: only cleaning brings it back.
    (0..next).filter(|slot| slot % 3 != 0).for_each(|slot| house.release(slot));
    house.spill_pages(next..next + next / 5, 7);
    assert!(house.store.count(Count::SegmentsCleaned) > 0);
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
    house.verify();
}

/// A stop waits for room on the host, also where it is wanted for what has to be copied before there is room in the file.
#[test]
fn cleaning_waits_for_room_on_the_host_as_other_writes_do() {
    for first in (2..200).step_by(9) {
        let fault =
            |nth| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::NoSpace), sticky: false };
        let plan = Plan { faults: (first..first + 20).map(fault).collect(), ..Plan::default() };
        let Ok((house, _)) = open(medium(), &settings(), plan, 3) else { continue };
        house.store.wait_for_room(Duration::from_secs(300), || ());
        let mut next = 0;
        while house.spill(vec![(next, bytes(next.into(), 4096))]).1.is_ok() {
            next += 1;
        }
        (0..next).filter(|slot| slot % 3 != 0).for_each(|slot| house.release(slot));
        house.spill_pages(next..next + next / 5, 7);
        assert!(house.store.count(Count::SegmentsCleaned) > 0);
        assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()), "from write {first} on");
        house.verify();
    }
}

/// Segments that are full of pages, or of short records in units of their own, are not copied again and again.
#[test]
fn a_file_that_cannot_be_cleaned_any_further_refuses() {
    let house = House::new(1);
    let mut next = 0;
    for len in [4096, 3000, 100] {
        loop {
            let (_, result) = house.spill(vec![(next, bytes(next.into(), len))]);
            next += 1;
            if result == Err(Kind::NoSpace) {
                break;
            }
            assert!(result == Ok(()) && next < 10_000, "{result:?}");
        }
    }
    let cleaned = house.store.count(Count::SegmentsCleaned);
    assert_eq!(house.spill(vec![(next, bytes(1, 4096))]), (0, Err(Kind::NoSpace)));
    assert_eq!(house.store.count(Count::SegmentsCleaned), cleaned);
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
    house.verify();
}

/// Several batches find the file full at the same time; some are refused, and none waits for ever.
#[test]
fn batches_that_meet_at_a_full_file_all_end() {
    for seed in 0..40 {
        let house = House::new(seed);
        let mut random = Random(seed);
        for round in 0..30 {
            let batch = |first: u32| {
                let pages = (first..first + 4).map(|slot| (slot, bytes(slot.into(), 4096))).collect();
                Answer::pending(spill(house.store.clone(), house.slots.clone(), pages))
            };
            let ends = house.world.run_all((0..6).map(|task| batch(round * 24 + task * 4)).collect());
            assert!(ends.iter().all(|end| matches!(end.1, Ok(()) | Err(Kind::NoSpace))), "{ends:?}");
            let held = house.slots();
            let release = held.into_iter().filter(|_| random.below(3) == 0);
            release.for_each(|slot| house.release(slot));
        }
        assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
        house.verify();
    }
}

/// Records so short that a segment is full of records before it is full of bytes.
#[test]
fn short_records_fill_and_are_cleaned_too() {
    let house = House::new(1);
    let mut next = 0;
    while house.store.count(Count::SegmentsCleaned) < 5 {
        let pages =
            (next..next + 20).map(|slot| (slot, bytes(slot.into(), 1 + slot as usize % 90))).collect();
        let (_, result) = house.spill(pages);
        assert_eq!(result, Ok(()));
        (next..next + 20).filter(|slot| slot % 4 != 0).for_each(|slot| house.release(slot));
        if next >= 6000 {
            (next - 6000..next - 5980).filter(|slot| slot % 4 == 0).for_each(|slot| house.release(slot));
        }
        next += 20;
        assert!(next < 100_000, "it is never cleaned");
    }
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
    house.verify();
}

/// A checkpoint takes several segments, and there is one buffer for batches.
#[test]
fn a_long_checkpoint_is_written_with_one_buffer() {
    let shift = 14;
    let settings = Settings { segment_shift: shift, batches: 1, ..settings() };
    let medium = Medium::new(2000 << shift);
    let (house, _) = open(medium, &settings, Plan::default(), 1).expect("it is blank");
    for slot in 0..1500 * 3 {
        assert_eq!(house.spill(vec![(slot, bytes(slot.into(), 4096))]), (1, Ok(())));
    }
    house.stop().expect("the disk is sound");
    let again = open(house.cut(), &settings, Plan::default(), 2).expect("it was stopped");
    assert!(again.1.is_some_and(|note| note.contains("gone")));
}

/// A segment whose room was given back is zeroes: the next write to it is content.
#[test]
fn only_segments_in_use_may_have_footers() {
    let house = House::new(1);
    (0..20).for_each(|version| house.spill_pages(0..40, version));
    house.verify();
    let state = |segment| house.store.segments.look(segment).state;
    for segment in 0..SEGMENTS as u32 {
        assert_eq!(
            house.store.stale.has(segment.into()),
            state(segment) != SegmentState::Free,
            "segment {segment}"
        );
    }
}

/// The host has room for one write in five, and most of what lands is released again. Once there is room, the whole file is of use.
#[test]
fn room_on_the_host_that_comes_and_goes_uses_up_no_segment() {
    let fault =
        |nth| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::NoSpace), sticky: false };
    let faults = (2..150).filter(|nth| nth % 5 > 0).map(fault).collect();
    let (house, _) = open(medium(), &settings(), Plan { faults, ..Plan::default() }, 1).expect("it is blank");
    for first in (0..600).step_by(4) {
        let pages = (first..first + 4).map(|slot| (slot, bytes(slot.into(), 4096))).collect();
        let (_, result) = house.spill(pages);
        assert!(matches!(result, Ok(()) | Err(Kind::NoSpace)), "{result:?}");
        // One record keeps each segment.
        let held: Vec<_> =
            house.slots.held.lock().iter().map(|(slot, held)| (held.spilled.at, *slot)).collect();
        let mut kept = std::collections::BTreeSet::new();
        let rest = held.into_iter().filter(|(at, _)| !kept.insert(at.segment));
        rest.for_each(|(_, slot)| house.release(slot));
        house.verify();
    }
    assert!(!house.slots().is_empty(), "something has landed");
    house.spill_pages(1000..1000 + 14 * (SEGMENTS as u32 - 4), 0);
    assert!(house.slots().into_iter().all(|slot| house.check(slot).is_ok()));
    house.verify();
}
