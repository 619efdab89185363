//! Discards of what is dirty: they make room, and need none.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

const B: u64 = BLOCK as u64;

fn discard(block: u64, blocks: u64) -> Request {
    Request::bare(Op::Discard, ByteRange::new(block * B, blocks * B))
}

/// What has reached the device below since the last call: operation, first block, blocks.
fn seen(house: &House) -> Vec<(Op, u64, u64)> {
    let seen = std::mem::take(&mut *house.below.seen.lock());
    seen.into_iter().map(|(op, range)| (op, range.offset / B, range.len / B)).collect()
}

/// It is as full as a disk can be: nothing that is dirty can leave.
#[test]
fn what_is_dirty_is_dropped_and_never_written() {
    let house = House::new(&mebibyte());
    house.write(0, 7, 8);
    *house.below.full.lock() = Some(ByteRange::new(0, 32 << 20));
    assert_eq!(house.ask(discard(2, 4)).result, Ok(()));
    assert_eq!(seen(&house), [(Op::WriteZeroes, 2, 4)]);
    let numbers = ["nr_dirty", "nr_writeback", "unsaved_bytes", "zones"].map(|name| house.text(name));
    assert_eq!(numbers[..3], ["4", "0", "16384"], "{}", numbers[3]);
    assert_eq!(house.number("written_back_bytes"), 0);
    *house.below.full.lock() = None;
    house.flush();
    assert_eq!(seen(&house)[..2], [(Op::Write, 0, 2), (Op::Write, 6, 2)]);
    assert_eq!(house.read(0, 8), [7, 7, 0, 0, 0, 0, 7, 7]);
}

#[test]
fn a_discard_with_fua_of_what_is_dirty_is_durable() {
    let house = House::new(&mebibyte());
    house.write(0, 7, 4);
    house.flush();
    house.write(1, 8, 1);
    assert_eq!(house.ask(discard(0, 4).with_fua()).result, Ok(()));
    assert_eq!(house.survivor(1), 0);
}

/// Over several regions and shards, of which some are clean.
#[test]
fn what_is_clean_is_discarded_and_what_was_there_before_never_shows() {
    let house = House::new(&Config { page_cache_bytes_max: Some(4 << 20), ..mebibyte() });
    (0..5).for_each(|region| house.write(region * 512, 1, 1));
    house.flush();
    let regions = house.number("nr_dirty");
    (1..5).step_by(2).for_each(|region| house.write(region * 512, 2, 2));
    seen(&house);
    assert_eq!((regions, house.ask(discard(512, 4 * 512)).result), (0, Ok(())));
    // What is zeroed may take room.
    assert_eq!(
        seen(&house),
        [(Op::Discard, 512, 4 * 512), (Op::WriteZeroes, 512, 2), (Op::WriteZeroes, 1536, 2)]
    );
    house.write(512, 3, 1);
    assert_eq!(house.ask(discard(1024, 512)).result, Ok(()));
    assert_eq!(seen(&house), [(Op::Discard, 1024, 512)], "nothing of it is dirty");
    let first: Vec<u8> = (0..5).flat_map(|region| house.read(region * 512, 1)).collect();
    assert_eq!(first, [1, 3, 0, 0, 0]);
    house.flush();
    assert_eq!(house.survivor(3 * 512), 0);
}

/// Nothing of it was promised, and what was acknowledged before is.
#[test]
fn where_a_discard_fails_what_is_dirty_stays() {
    // That of the range, and the zeroes where it is dirty.
    for nth in [0, 1] {
        let fault = Fault { call: Some(Call::Zero), nth, effect: Effect::Fail(Kind::Io), sticky: false };
        let plan = Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() };
        let house = House::with_plan(&mebibyte(), plan);
        house.write(0, 6, 4);
        house.flush();
        house.write(1, 7, 1);
        assert_eq!(house.ask(discard(0, 4)).result, Err(Kind::Io));
        assert_eq!((house.number("nr_dirty"), house.read(1, 1)), (1, vec![7]));
        house.flush();
        assert_eq!(house.survivor(1), 7);
    }
}

#[test]
fn a_discard_that_is_withdrawn_leaves_what_is_dirty() {
    let house = House::new(&mebibyte());
    house.write(0, 7, 4);
    let mut submission = house.submit(discard(0, 2));
    let Answer::Pending(asked) = &mut submission else { panic!("it is answered at once") };
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asked.as_mut().poll(&mut context).is_pending());
    assert_eq!(house.number("nr_writeback"), 2, "nobody else may write it back meanwhile");
    drop(submission);
    house.cache.verify();
    assert_eq!((house.number("nr_dirty"), house.number("nr_writeback")), (4, 0));
    house.flush();
    assert_eq!(house.survivor(1), 7);
}

/// Zeroes would take room instead of making it, and a discard alone may leave what was there before.
#[test]
fn where_zeroes_cost_room_what_is_dirty_is_written_first() {
    let house = House::new(&mebibyte());
    house.below.slow_zeroes.store(true, Ordering::Relaxed);
    house.write(0, 7, 4);
    assert_eq!(house.ask(discard(1, 2)).result, Ok(()));
    assert_eq!(seen(&house), [(Op::Write, 1, 2), (Op::Discard, 1, 2)]);
}

#[test]
fn where_zeroes_at_no_cost_are_refused_what_is_dirty_is_written_first() {
    let house = House::new(&mebibyte());
    house.below.refuses_zeroes.store(true, Ordering::Relaxed);
    house.write(0, 7, 4);
    assert_eq!(house.ask(discard(1, 2)).result, Ok(()));
    assert_eq!(seen(&house), [(Op::WriteZeroes, 1, 2), (Op::Write, 1, 2), (Op::Discard, 1, 2)]);
}

/// The engine never finds the region free: the first of them takes what the flush waits for, when its own is dropped.
#[test]
fn discards_that_follow_each_other_keep_no_flush_waiting() {
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    (0..64).for_each(|block| house.write(2 * block, 1, 1));
    [201, 301].into_iter().for_each(|block| house.write(block, 2, 1));
    let first = house.spawn(house.submit(discard(201, 1)));
    house.until("the first below", || !house.below.seen.lock().is_empty());
    let flush = house.spawn(house.submit(Request::flush()));
    house.until("the flush", || house.cache.core.wanted.load(Ordering::Relaxed) > 0);
    assert_eq!((first.get(), house.number("nr_writeback")), (None, 1));
    let mut second = house.submit(discard(301, 1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let zeroes = || house.below.seen.lock().iter().filter(|(op, _)| *op == Op::WriteZeroes).count();
    while zeroes() < 2 && house.number("nr_writeback") < 2 {
        let Answer::Pending(asked) = &mut second else { panic!("it is answered at once") };
        assert!(asked.as_mut().poll(&mut context).is_pending() && house.world.go_on());
    }
    assert_eq!(house.number("nr_writeback"), 65, "what the flush waits for, and what the second is about");
    let second = house.spawn(second);
    house.until("all", || [&first, &flush, &second].iter().all(|one| one.get() == Some(Ok(()))));
    assert_eq!((house.read(201, 1), house.read(301, 1), house.survivor(126)), (vec![0], vec![0], 1));
}

/// It asks for no room: what cannot be written of its region is for the flush that waits for that.
#[test]
fn a_discard_does_not_fail_where_the_rest_of_its_region_cannot_be_written() {
    let house = House::new(&mebibyte());
    house.write(0, 7, 8);
    *house.below.full.lock() = Some(ByteRange::new(0, 32 << 20));
    let dropped = house.spawn(house.submit(discard(2, 4)));
    house.until("it below", || !house.below.seen.lock().is_empty());
    let flush = house.spawn(house.submit(Request::flush()));
    house.until("both", || dropped.get().is_some() && flush.get().is_some());
    assert_eq!((dropped.get(), flush.get()), (Some(Ok(())), Some(Err(Kind::NoSpace))));
    assert_eq!(house.read(0, 8), [7, 7, 0, 0, 0, 0, 7, 7]);
}

/// Scattered over many regions: what is kept of each has a bound too.
#[test]
fn a_discard_takes_few_regions_at_a_time() {
    let cut = Cut { region_bytes: 16384, shards: 1 };
    let house = House::new(&Config { page_cache_bytes_max: Some(20 << 20), cut, ..mebibyte() });
    (0..64).for_each(|region| house.write(4 * region, 7, 1));
    let discarded = house.spawn(house.submit(discard(0, 4 * 64)));
    house.until("it below", || !house.below.seen.lock().is_empty());
    let taken = house.number("nr_writeback");
    assert!((2..=16).contains(&taken), "{taken} regions are taken");
    house.until("all of it", || discarded.get() == Some(Ok(())));
    assert_eq!((house.number("unsaved_bytes"), house.read(4 * 63, 1)), (0, vec![0]));
}
