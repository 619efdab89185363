//! Devices that share the memory of a server: each frees what it can for the others.

use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Waker};

use spillway_core::Suspend;
use spillway_sim::disk::{Call, Effect, Fault, Medium, Plan};

use super::super::on_disk::{Spilling, config, medium, spilling_by};
use super::*;

/// Pages that the first device holds in memory, none of which compresses.
const HELD: u64 = 300;

fn raw(slot: u64) -> Vec<u8> {
    page(&mut Random(slot), 100)
}

/// A device that spills where a request waits for memory and not before, and another one beside it. All memory but `left` bytes is in use,
/// most of it by pages of the first.
fn pair(medium: Medium, left: u64) -> (Spilling, Bench) {
    pair_by(Plan::default(), config(), medium, left)
}

/// The same, where the first is configured so, and spills to such a disk.
fn pair_by(plan: Plan, config: Config, medium: Medium, left: u64) -> (Spilling, Bench) {
    let config = Config {
        bring_back: Promotion::Never,
        spill_high_watermark: 100,
        spill_low_watermark: 100,
        ..config
    };
    let first = spilling_by(plan, config, medium);
    let second = beside(&first);
    (0..HELD).for_each(|slot| first.write(slot, &raw(slot)).unwrap());
    first.zram.core.pages.cool();
    first.budget.set_limit(first.budget.used() + left);
    (first, second)
}

/// A device without a spill file in the world and the budget of another.
fn beside(first: &Bench) -> Bench {
    let (world, budget) = (first.world.clone(), first.budget.clone());
    let regions = Arc::new(VecRegions::new(128 << 20));
    let zram = Zram::new(sized(1 << 30), world.clone(), regions, budget.clone()).unwrap();
    let (seam, table) = (Seam::new(zram.clone()), attributes(zram.clone()));
    Bench { world, budget, zram, seam, table }
}

/// Writes so many pages to `device`; those that were stored before one was refused.
fn fill(device: &Bench, pages: u64) -> u64 {
    (0..pages).take_while(|&slot| device.write(slot, &raw(1000 + slot)).is_ok()).count() as u64
}

fn check(device: &Bench, first: u64, pages: u64) {
    assert!((0..pages).all(|slot| device.read(slot, 1) == raw(first + slot)));
}

#[test]
fn a_write_waits_for_pages_that_another_device_can_spill() {
    let (first, second) = pair(medium(100), 64 << 10);
    assert_eq!(fill(&second, HELD - 100), HELD - 100, "{}", first.show("policy"));
    assert!(first.bd_stat()[0] > HELD / 2);
    check(&first, 0, HELD);
    check(&second, 1000, HELD - 100);
    first.settle();
}

/// The limits of both are near.
#[test]
fn a_device_with_a_limit_of_its_own_waits_for_those_of_whose_limit_it_is() {
    let (first, second) = pair(medium(100), 2 << 20);
    second.set("mem_limit", "1M");
    let stored = fill(&second, HELD);
    assert!((200..256).contains(&stored), "{stored} pages fit the device's own limit");
    assert_eq!(first.bd_stat()[0], 0, "no page of another device would help");
    first.budget.set_limit(first.budget.used());
    second.set("mem_limit", "32M");
    assert_eq!(second.write(stored, &raw(1000 + stored)), Ok(()));
    assert!(first.bd_stat()[0] > 0);
    check(&second, 1000, stored + 1);
    first.settle();
}

#[test]
fn a_write_is_refused_once_the_file_of_the_other_device_is_full() {
    let (first, second) = pair(medium(14), 64 << 10);
    let stored = fill(&second, HELD);
    assert!((50..HELD - 50).contains(&stored), "{stored} pages fit memory and file");
    assert!(first.show("policy").contains("the spill file is full"), "{}", first.show("policy"));
    check(&first, 0, HELD);
    check(&second, 1000, stored);
    first.settle();
}

#[test]
fn memory_that_another_device_keeps_warm_or_loose_is_no_reason_to_refuse() {
    let first = bench(sized(1 << 30));
    let second = beside(&first);
    // Of pages of half a page each every second one goes: no span does.
    (0..2000).for_each(|slot| first.write(slot, &page(&mut Random(slot), 45)).unwrap());
    (0..2000).filter(|slot| slot % 2 > 0).for_each(|slot| {
        let discard = Request::bare(Op::Discard, ByteRange::new(slot * PAGE as u64, PAGE as u64));
        assert!(matches!(first.seam.submit(discard), Answer::Done(_)));
    });
    first.zram.core.pages.cool();
    first.budget.set_limit(first.budget.used());
    assert_eq!(fill(&second, 100), 100);
    first.budget.set_limit(first.budget.used() + (2 << 20));
    (5000..5100).for_each(|slot| first.write(slot, &raw(slot)).unwrap());
    first.discard(5000 << 12, 100 << 12);
    first.budget.set_limit(first.budget.used());
    let write = second.seam.submit(Request::write(200 * PAGE as u64, IoBuf::copy_of(&raw(1))));
    assert_eq!(second.run(write).result, Ok(()), "there are warm spans");
    check(&second, 1000, 100);
}

#[test]
fn what_another_device_gives_back_at_once_is_tried() {
    let first = bench(sized(1 << 30));
    let second = beside(&first);
    (0..100).for_each(|slot| first.write(slot, &raw(slot)).unwrap());
    first.discard(0, 100 << 12);
    first.budget.set_limit(first.budget.used());
    // How much of a span is left over depends on the processors that the two filled from.
    let stored = fill(&second, 90);
    assert!(stored > 70, "{stored} pages: nothing is moved together, and nothing leaves");
}

/// A write of `second` that waits for memory.
fn waiting(second: &Bench, slot: u64) -> Submission {
    let mut write = second.seam.submit(Request::write(slot * PAGE as u64, IoBuf::copy_of(&raw(1000 + slot))));
    let mut context = Context::from_waker(Waker::noop());
    let Answer::Pending(pending) = &mut write else { panic!("it is not answered at once") };
    assert!(pending.as_mut().poll(&mut context).is_pending() && second.budget.is_waited_for());
    write
}

#[test]
fn a_write_is_answered_when_the_device_that_it_waits_for_is_reset_or_goes() {
    for reset in [true, false] {
        let (first, second) = pair(medium(100), 0);
        let write = waiting(&second, 0);
        if reset {
            first.set("reset", "1");
            assert_eq!(second.run(write).result, Ok(()));
            first.settle();
        } else {
            // Its file fails, so that nothing comes of what is on its way.
            first.disk.cut();
            drop(first);
            assert!(second.run(write).result.is_err() || second.read(0, 1) == raw(1000));
        }
    }
}

#[test]
fn a_write_that_is_withdrawn_leaves_a_device_at_rest() {
    let (first, second) = pair(medium(100), 0);
    drop(waiting(&second, 0));
    first.settle();
    assert!(!first.budget.is_waited_for() && !first.zram.core.pressure.is_waited_for());
    let away = first.bd_stat()[0];
    assert!(away <= HELD / 4, "{away} pages have left for nobody");
    assert_eq!(fill(&second, 20), 20);
    first.settle();
}

#[test]
fn a_write_is_refused_once_the_other_device_has_reached_its_limit_or_its_end() {
    let (first, second) = pair(medium(100), 64 << 10);
    first.set("writeback_limit_enable", "1");
    first.set("writeback_limit", "50");
    let stored = fill(&second, HELD);
    assert_eq!(first.bd_stat()[0], 50);
    assert!((40..70).contains(&stored), "{stored} pages fit what is left and what has left");
    check(&first, 0, HELD);
    check(&second, 1000, stored);
    first.set("writeback_limit_enable", "0");
    first.run(Answer::pending(first.zram.suspend())).unwrap();
    assert_eq!(second.write(stored, &raw(1)), Err(Kind::NoSpace));
    first.settle();
}

/// It waits for minutes, if nobody makes room, and frees nothing meanwhile.
#[test]
fn a_write_is_refused_while_the_stop_of_the_other_device_waits_for_room() {
    let full = Fault { call: Some(Call::Write), nth: 2, effect: Effect::Fail(Kind::NoSpace), sticky: true };
    let plan = Plan { faults: vec![full], ..Plan::default() };
    let (first, second) = pair_by(plan, Config { keep: true, ..config() }, medium(100), 0);
    let (stop, ended) = (first.zram.suspend(), Rc::new(Cell::new(false)));
    let told = ended.clone();
    first.world.spawn_here(Box::pin(async move {
        assert_eq!(stop.await.map_err(|error| error.kind), Err(Kind::NoSpace));
        told.set(true);
    }));
    let step = Duration::from_millis(100);
    let is_full = || first.disk.answers().has_error_since(Some(Call::Write), Duration::ZERO);
    first.world.turn_until(step, 1000, is_full);
    let begun = first.world.now();
    assert_eq!(second.write(0, &raw(1)), Err(Kind::NoSpace));
    assert!(first.world.now() - begun < Duration::from_secs(10) && !ended.get());
    first.world.turn_until(step, 10_000, || ended.get());
}
