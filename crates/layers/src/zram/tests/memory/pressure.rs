//! A device that spills by itself where memory is short.

use spillway_policy::spill::REST;
use spillway_policy::watermarks::Goal;
use spillway_sim::disk::{Call, Effect, Fault, Latency, Medium, Plan};

use super::super::on_disk::{Spilling, config, content, medium, spilling, spilling_by, spilling_to};
use super::*;
use crate::writeback::{Source, Take};
use crate::zram::pool::cell::Scratch;

/// A device that may hold 1 MiB of what it is written.
fn short_of_memory(medium: Medium) -> Spilling {
    let device = spilling(Config { bring_back: Promotion::Never, ..config() }, medium);
    device.set("mem_limit", "1M");
    device
}

fn raw(slot: u64, version: u64) -> Vec<u8> {
    page(&mut Random(slot << 20 | version), 100)
}

#[test]
fn a_device_at_its_limit_spills_by_itself() {
    let device = short_of_memory(medium(200));
    for version in 0..2 {
        for slot in 0..1000 {
            device.write(slot, &raw(slot, version)).unwrap();
            assert!(device.number("mem_used_total") <= 1 << 20);
        }
    }
    let away = device.bd_stat()[0];
    assert!((745..1000).contains(&away), "{away} of 1000 pages, of which 256 fit memory");
    assert!((0..1000).all(|slot| device.read(slot, 1) == raw(slot, 1)));
    assert!(device.show("policy").contains("of pages spilled by"), "{}", device.show("policy"));
    device.settle();
}

#[test]
fn it_begins_at_the_high_watermark_and_ends_at_the_low_one() {
    let device = short_of_memory(medium(100));
    let until = |pages: u64| {
        (0..pages).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
        device.settle();
        device.settle();
        device.bd_stat()[0]
    };
    assert_eq!(until(220), 0, "86 %");
    assert!(device.show("policy").contains("nothing is spilled below 90 %"), "{}", device.show("policy"));
    let away = until(240);
    assert!((36..60).contains(&away), "{away} pages have left from 94 % down to 80 %");
    device.set("spill_high_watermark", "50");
    assert!((111..135).contains(&until(1)), "the low one is above: {}", device.show("policy"));
}

#[test]
fn what_is_read_again_and_again_stays_in_memory() {
    let device = short_of_memory(medium(300));
    (0..50).for_each(|slot| device.write(slot, &content(slot, 1)).unwrap());
    for slot in 100..1000 {
        device.write(slot, &content(slot, 1)).unwrap();
        device.check([slot % 50], 1);
    }
    let [away, read, _] = device.bd_stat();
    assert!(away > 300 && read < 100, "{read} of 900 reads of 50 hot pages came from the {away} pages away");
}

#[test]
fn where_nothing_can_leave_a_write_is_refused_and_changes_nothing() {
    let fill = |device: &Spilling| {
        let stored = (0..1000).take_while(|&slot| device.write(slot, &raw(slot, 1)).is_ok()).count() as u64;
        assert!((0..stored).all(|slot| device.read(slot, 1) == raw(slot, 1)));
        assert!(device.read(stored, 1).iter().all(|&byte| byte == 0), "what was refused is not there");
        device.settle();
        stored
    };
    let device = short_of_memory(medium(14));
    let stored = fill(&device);
    assert!((300..500).contains(&stored), "{stored} pages fit memory and file");
    assert!(device.show("policy").contains("the spill file is full"), "{}", device.show("policy"));
    // What comes free there is room again.
    device.discard(0, 128 << 12);
    (0..80).for_each(|slot| device.write(slot, &raw(slot, 2)).unwrap());
    assert!((0..80).all(|slot| device.read(slot, 1) == raw(slot, 2)));
    let limited = short_of_memory(medium(100));
    limited.set("writeback_limit_enable", "1");
    limited.set("writeback_limit", "50");
    let stored = fill(&limited);
    assert_eq!(limited.bd_stat(), [50, 50, 50]);
    assert!((280..310).contains(&stored), "{stored} pages");
    assert!(limited.show("policy").contains("writeback_limit is used up"), "{}", limited.show("policy"));
}

/// Writes that a disk makes for a spill file before a page leaves: two superblocks.
const OPENED: u64 = 2;

#[test]
fn after_repeated_write_errors_nothing_leaves_any_more_and_policy_says_so() {
    let failing = |faults: Vec<Fault>| {
        let config = Config { bring_back: Promotion::Never, ..config() };
        let device = spilling_by(Plan { faults, ..Plan::default() }, config, medium(100));
        device.set("mem_limit", "1M");
        let stored = (0..400).take_while(|&slot| device.write(slot, &raw(slot, 1)).is_ok()).count() as u64;
        assert!((0..stored).all(|slot| device.read(slot, 1) == raw(slot, 1)));
        device.settle();
        (device, stored)
    };
    let fault = |nth, sticky| Fault { call: Some(Call::Write), nth, effect: Effect::Fail(Kind::Io), sticky };
    let (device, stored) = failing((OPENED..OPENED + 7).map(|nth| fault(nth, false)).collect());
    assert_eq!(stored, 400, "{}", device.show("policy"));
    assert!(!device.show("policy").contains("failed"), "{}", device.show("policy"));
    let (device, stored) = failing(vec![fault(OPENED, true)]);
    let policy = device.show("policy");
    assert!(policy.contains("failed too often, and none is tried before the next start"), "{policy}");
    assert!(policy.ends_with("was spilled yet") && (200..256).contains(&stored), "{stored}: {policy}");
    assert_eq!((device.bd_stat(), device.refuse("writeback", "huge")), ([0; 3], Kind::Io));
    device.discard(0, 100 << 12);
    (0..90).for_each(|slot| device.write(slot, &raw(slot, 2)).expect("there is room again"));
}

const WRITERS: u64 = 16;
const WRITES_EACH: u64 = 200;
const SLOTS_EACH: u64 = 400;

/// So many writers at a time that never rest write pages of their own, in any order, `share` percent of each noise; the mean and the
/// longest time that a write took.
fn write_without_rest(device: &Spilling, share: usize, version: u64) -> (Duration, Duration) {
    let writer = |number: u64| {
        let (world, seam) = (device.world.clone(), device.seam.clone());
        let mut random = Random(version << 8 | number);
        Answer::pending(async move {
            let mut took = Vec::new();
            for _ in 0..WRITES_EACH {
                let slot = number * SLOTS_EACH + random.below(SLOTS_EACH);
                let begun = world.now();
                let write = Request::write(slot * PAGE as u64, IoBuf::copy_of(&page(&mut random, share)));
                assert_eq!(seam.submit(write).await.result, Ok(()));
                took.push(world.now() - begun);
            }
            took
        })
    };
    let took: Vec<Duration> = device.world.run_all((0..WRITERS).map(writer).collect()).concat();
    (took.iter().sum::<Duration>() / took.len() as u32, took.into_iter().max().expect("some"))
}

#[test]
fn writers_faster_than_the_spill_file_are_slowed_down_and_never_stopped() {
    for share in [100, 50] {
        for latency in [Latency::UsbStick, Latency::SataSsd, Latency::Network] {
            let config = Config { bring_back: Promotion::Never, disksize: 32 << 20, ..config() };
            let device = spilling_to(latency, config, medium(1000));
            device.set("mem_limit", "6M");
            // The first pages fill memory, and the next show how fast the disk is.
            (1..4).for_each(|version| _ = write_without_rest(&device, share, version));
            for version in 4..7 {
                let (mean, longest) = write_without_rest(&device, share, version);
                let context = format!("{latency:?}, {share} %: {longest:?}, on average {mean:?}");
                assert!(
                    mean > Duration::ZERO && longest <= mean * 3 + Duration::from_millis(10),
                    "{context}"
                );
            }
            assert!(device.show("policy").contains("writers are slowed down"), "{}", device.show("policy"));
            assert!(device.number("throttled_time") > 0 && device.number("throttled_writes") > 0);
            device.settle();
        }
    }
}

#[test]
fn writers_run_free_while_there_is_room_and_over_what_is_in_memory() {
    let device = spilling_to(Latency::UsbStick, config(), medium(200));
    device.set("mem_limit", "1M");
    for version in 0..20 {
        (0..225).for_each(|slot| device.write(slot, &raw(slot, version)).unwrap());
    }
    assert_eq!(device.number("throttled_writes"), 0, "{}", device.show("policy"));
}

/// Lets seconds go by, in which the device does what it does by itself.
fn pass_time(device: &Spilling, seconds: u64) {
    for _ in 0..seconds * 10 {
        device.world.turn();
        device.world.advance(Duration::from_millis(100));
    }
}

#[test]
fn pages_that_are_old_enough_leave_without_pressure_and_others_stay() {
    let device = spilling(Config { bring_back: Promotion::Never, spill_age: 20, ..config() }, medium(100));
    (0..100).for_each(|slot| device.write(slot, &content(slot, 1)).unwrap());
    for _ in 0..4 {
        pass_time(&device, 4);
        device.check(0..10, 1);
    }
    assert_eq!(device.bd_stat()[0], 0, "16 s are not old");
    assert!(device.show("policy").contains("not accessed for 20 s"), "{}", device.show("policy"));
    for _ in 0..4 {
        pass_time(&device, 4);
        device.check(0..10, 1);
    }
    assert_eq!(device.bd_stat(), [90, 0, 90], "10 pages were read all the time");
    assert!(
        device.show("policy").contains("spill_age: pages were not accessed for 20 s"),
        "{}",
        device.show("policy")
    );
    device.set("spill_age", "0");
    pass_time(&device, 100);
    assert_eq!(device.bd_stat()[0], 90, "it is off");
    device.check(0..100, 1);
    device.settle();
}

#[test]
fn a_days_bytes_hold_back_what_leaves_by_itself_and_are_not_spent_at_once() {
    // An hour's share is 128 KiB, a minute's 2 KiB.
    let daily = 3 << 20;
    let device = spilling(
        Config { bring_back: Promotion::Never, spill_age: 1, spill_daily_bytes: daily, ..config() },
        medium(200),
    );
    (0..500).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    let written = || device.number("spill_written_bytes");
    pass_time(&device, 60);
    let first = written();
    assert!((64 << 10..256 << 10).contains(&first), "{first} bytes in the first minute");
    assert!(device.show("policy").contains("spill_daily_bytes is used up"), "{}", device.show("policy"));
    pass_time(&device, 3600);
    let hour = written();
    assert!(hour > first + (64 << 10) && hour < 384 << 10, "{hour} bytes in the first hour");
    // A command is an order, and what it writes is owed.
    device.write_back_all();
    assert_eq!(device.bd_stat()[0], 500);
    (0..500).for_each(|slot| device.write(slot, &raw(slot, 2)).unwrap());
    pass_time(&device, 3600);
    assert_eq!(device.bd_stat()[0], 0);
    device.set("spill_daily_bytes", "0");
    pass_time(&device, 10);
    assert_eq!(device.bd_stat()[0], 500);
    assert!((0..500).all(|slot| device.read(slot, 1) == raw(slot, 2)));
    device.settle();
}

/// Fills memory up to the high watermark and returns which of the first 200 pages left for that.
fn first_to_leave(prepare: impl Fn(&Spilling), share: impl Fn(u64) -> usize) -> Vec<u64> {
    let device = short_of_memory(medium(100));
    (0..200).for_each(|slot| device.write(slot, &page(&mut Random(slot), share(slot))).unwrap());
    prepare(&device);
    let fill = (500..1000).find(|&slot| {
        device.write(slot, &raw(slot, 1)).unwrap();
        device.bd_stat()[0] > 0
    });
    assert!(fill.is_some(), "{}", device.show("policy"));
    device.settle();
    let away = |slot: &u64| device.zram.core.table.away(SlotIndex::new(*slot)).is_some();
    (0..200).filter(away).collect()
}

#[test]
fn pages_marked_idle_leave_first_wherever_the_hand_is() {
    let gone = first_to_leave(
        |device| {
            device.set("idle", "all");
            (0..100).for_each(|slot| _ = device.read(slot, 1));
        },
        |_| 50,
    );
    assert!(gone.len() > 20 && gone.iter().all(|&slot| slot >= 100), "{gone:?}");
}

#[test]
fn pages_that_do_not_compress_leave_before_others_that_were_read_as_lately() {
    let gone = first_to_leave(
        |device| {
            (0..200).for_each(|slot| _ = device.read(slot, 1));
            pass_time(device, 2);
        },
        |slot| if slot < 100 { 50 } else { 100 },
    );
    assert!(gone.len() > 10 && gone.iter().all(|&slot| slot >= 100), "{gone:?}");
}

/// Nobody waits for memory.
#[test]
pub(in crate::zram) fn pages_leave_at_the_watermark_of_the_limit_that_is_nearer() {
    for (mem_limit, others) in [("700K", 0), ("0", 1), ("32M", 1)] {
        let device = spilling(Config { bring_back: Promotion::Never, ..config() }, medium(100));
        device.set("mem_limit", mem_limit);
        (0..200).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
        device.settle();
        let before = device.bd_stat()[0];
        let _others = device.budget.hold(others * device.budget.room()).unwrap();
        assert_eq!(before > 0, others == 0, "mem_limit {mem_limit}: {}", device.show("policy"));
        pass_time(&device, 5);
        assert!(device.bd_stat()[0] > 30, "mem_limit {mem_limit}: {}", device.show("policy"));
        device.settle();
    }
}

/// What is in memory is more than its watermarks allow, and the first write-back finds no room on the host, which has some later.
#[test]
fn a_file_that_was_full_is_tried_again_after_a_while() {
    let once = Fault { call: Some(Call::Write), nth: 2, effect: Effect::Fail(Kind::NoSpace), sticky: false };
    let plan = Plan { faults: vec![once], ..Plan::default() };
    let device = spilling_by(plan, Config { bring_back: Promotion::Never, ..config() }, medium(100));
    device.set("mem_limit", "1M");
    let refused = (0..1000).find(|&slot| device.write(slot, &raw(slot, 1)) == Err(Kind::NoSpace));
    let refused = refused.expect("the file was full");
    assert!(device.show("policy").contains("the spill file is full"), "{}", device.show("policy"));
    device.world.advance(Duration::from_secs(2));
    (refused..1000).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    assert!((0..1000).all(|slot| device.read(slot, 1) == raw(slot, 1)));
    assert!(!device.show("policy").contains("is full"), "{}", device.show("policy"));
    device.settle();
}

/// A command that writes back shows that there is room, too.
#[test]
fn a_file_that_takes_pages_is_not_full() {
    let device = short_of_memory(medium(100));
    device.fill(0..100, 1);
    device.zram.core.pressure.filled(device.world.now() + Duration::from_secs(1000));
    assert!(device.show("policy").contains("the spill file is full"), "{}", device.show("policy"));
    device.write_back_all();
    assert!(!device.show("policy").contains("is full"), "{}", device.show("policy"));
    device.settle();
}

/// They looked at the end of a batch, when it was not yet known that the file is full, or before a limit was used up.
#[test]
fn who_waits_looks_again_when_nothing_more_leaves() {
    let device = short_of_memory(medium(100));
    let (core, pressure) = (&device.zram.core, &device.zram.core.pressure);
    let attempt = pressure.attempts.ask();
    core.failed(Kind::NoSpace);
    assert!(attempt.is_made(), "the file is full");
    device.world.advance(Duration::from_secs(2));
    device.set("writeback_limit_enable", "1");
    let attempt = pressure.attempts.ask();
    assert!(matches!(core.goal(), Goal::Rest));
    assert!(attempt.is_made(), "the limit is used up");
    device.settle();
}

/// All that it has chosen is picked by others before it is written, and others wait or do not.
#[test]
fn after_attempts_in_vain_the_device_rests() {
    let device = short_of_memory(medium(100));
    (0..220).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    let (core, asks) = (&device.zram.core, &device.zram.core.pressure.attempts);
    let take = || core.take(Goal::ToLow, 64 << 10);
    let in_vain = |batch| {
        let Take::Batch(victims, _) = batch else { panic!("there are pages") };
        let mut scratch: Vec<_> = (0..220).map(|_| Scratch::new()).collect();
        let picks = scratch.iter_mut().zip(0..);
        let picks: Vec<_> = picks
            .filter_map(|(scratch, slot)| Some(core.pick(SlotIndex::new(slot), |_, _| true, scratch)?.0))
            .collect();
        assert_eq!((picks.len(), device.run(Answer::Pending(core.write(victims)))), (220, Ok(())));
    };
    in_vain(take());
    assert!(matches!(take(), Take::After(_)), "nobody waits");
    drop(asks.ask());
    in_vain(take());
    drop(asks.ask());
    assert!(matches!(take(), Take::After(_)), "not even what is warm could leave");
    device.world.advance(REST);
    assert!(matches!(take(), Take::Batch(..)));
    device.settle();
}

/// Readers who touch every page, over and over, take no writer's turn: where none is cold, any leaves.
#[test]
pub(in crate::zram) fn a_writer_gets_room_beside_readers_who_leave_no_page_cold() {
    let device =
        spilling_to(Latency::Network, Config { bring_back: Promotion::Never, ..config() }, medium(300));
    device.set("mem_limit", "1M");
    (0..200).for_each(|slot| device.write(slot, &raw(slot, 1)).unwrap());
    let more: Vec<u8> = (200..300).flat_map(|slot| raw(slot, 1)).collect();
    let mut write = Box::pin(device.seam.submit(Request::write(200 * PAGE as u64, IoBuf::copy_of(&more))));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let mut turns = 0;
    let reply = loop {
        if let std::task::Poll::Ready(reply) = write.as_mut().poll(&mut context) {
            break reply;
        }
        turns += 1;
        assert!(turns < 20_000, "no room: {}", device.show("policy"));
        // What is away is asked for and not waited for.
        (0..300)
            .for_each(|slot| drop(device.seam.submit(Request::read(slot * PAGE as u64, IoBuf::new(PAGE)))));
        device.world.turn();
        device.world.advance(Duration::from_micros(100));
    };
    assert_eq!(reply.result, Ok(()));
    assert!((0..300).all(|slot| device.read(slot, 1) == raw(slot, 1)));
    device.settle();
}
