//! A disk that fails: what is dirty stays, flushes fail, nobody waits for ever. And a thread that ends meanwhile.

use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

/// Writes fail from the first on, or the first does.
pub(super) fn failing(sticky: bool) -> Plan {
    let fault = Fault { call: Some(Call::Write), nth: 0, effect: Effect::Fail(Kind::Io), sticky };
    Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() }
}

/// Writers beside a drain.
const WRITERS: usize = 4;

fn bare(op: Op, block: usize) -> Request {
    Request::bare(op, ByteRange::new((block * BLOCK) as u64, BLOCK as u64))
}

#[test]
fn the_first_failure_sticks_and_what_is_dirty_stays() {
    let house = House::with_plan(&mebibyte(), failing(false));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!((house.text("error"), house.read(3, 1)), ("EIO".into(), vec![7]));
    assert_eq!((house.number("nr_redirtied"), house.number("dirtied_bytes")), (1, 4096));
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io), "a later flush promises nothing either");
    assert_eq!(house.ask(filled(4, 1, 1).with_fua()).result, Err(Kind::Io));
    house.write(5, 1, 1);
    house.until("another try", || house.number("unsaved_bytes") == 0);
    assert_eq!(house.below.below.geometry().size, 32 << 20);
    assert_eq!(house.read(3, 3), [7, 1, 1]);
}

#[test]
fn a_disk_that_is_gone_ends_every_wait_and_reads_of_memory_go_on() {
    let house = House::with_plan(&mebibyte(), failing(true));
    let writes: Vec<_> = (0..200).map(|write| house.spawn(house.submit(filled(write * 8, 3, 8)))).collect();
    house.until("an answer to each", || writes.iter().all(|write| write.get().is_some()));
    let failed = writes.iter().filter(|write| write.get() == Some(Err(Kind::Io))).count();
    assert!(failed > 0 && failed < 200, "{failed} of 200 found no room");
    assert_eq!(house.read(0, 8), [3; 8]);
    assert!(house.number("dirty_bytes") > 0);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!(house.read(4000, 200).len(), 200, "what finds no memory is read all the same");
}

#[test]
fn a_failed_flush_below_sticks_too() {
    let fault = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Fail(Kind::Io), sticky: false };
    let plan = Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() };
    let house = House::with_plan(&mebibyte(), plan);
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
}

#[test]
fn a_write_through_that_fails_is_answered_so_and_read_as_it_was_asked_for() {
    let house = House::with_plan(&Config { mode: Mode::Writethrough, ..mebibyte() }, failing(false));
    assert_eq!(house.ask(filled(3, 7, 1)).result, Err(Kind::Io));
    house.write(4, 8, 1);
    assert_eq!(house.read(3, 2), [7, 8]);
}

/// Whatever became of it before: the last attempt is the one that counts, and what has healed is no loss.
#[test]
fn a_stop_tries_again_what_failed_before() {
    let house = House::with_plan(&mebibyte(), failing(false));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    house.write(9, 8, 1);
    assert_eq!((house.stop(), house.number("dirty_bytes")), (Ok(()), 0));
    house.flush();
    assert_eq!((house.survivor(3), house.text("error")), (7, "EIO".into()));
}

#[test]
fn a_stop_that_meets_a_passing_error_tries_again() {
    let house = House::with_plan(&mebibyte(), failing(false));
    house.write(3, 7, 1);
    assert_eq!((house.stop(), house.survivor(3)), (Ok(()), 7));
}

/// What a flush waits for comes first otherwise, and would be tried again in place of all others.
#[test]
fn a_stop_loses_what_cannot_be_written_alone_and_names_it() {
    let house = House::new(&mebibyte());
    *house.below.full.lock() = Some(ByteRange::new(3 * BLOCK as u64, 1));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::NoSpace));
    (1..4).for_each(|region| house.write(region * 512, 8, 2));
    let error = house.stop().expect_err("there is no room");
    assert!(error.kind == Kind::NoSpace && error.message().contains("4096 bytes"), "{error}");
    assert!(error.message().contains("(1 blocks)") && error.message().contains("ENOSPC"), "{error}");
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::NoSpace));
    house.disk.cut();
    let after = House::over(&mebibyte(), Plan::default(), house.disk.survivors());
    let read: Vec<_> = (1..4).map(|region| after.read(region * 512, 2)).collect();
    assert_eq!((read, after.read(3, 1)), (vec![vec![8; 2]; 3], vec![0]));
}

/// A flush waits for what cannot be written, which is tried again and again. The rest is not due for a day.
#[test]
fn what_fails_at_once_keeps_nothing_else_from_being_written_back() {
    let house = House::new(&Config { dirty_expire: 86_400_000, ..mebibyte() });
    *house.below.full.lock() = Some(ByteRange::new(3 * BLOCK as u64, 1));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::NoSpace));
    (1..12).for_each(|region| house.write(region * 512, 8, 2));
    let begun = house.world.now();
    house.set("dirty_background_ratio", "0");
    let background = house.number("nr_dirty_background_threshold") * BLOCK as u64;
    assert!(house.number("unsaved_bytes") > 2 * background, "most of it is above the limit");
    house.until("the background limit", || house.number("unsaved_bytes") <= background);
    let took = house.world.now() - begun;
    assert!(took < Duration::from_secs(3600), "it was written back after {took:?}");
}

/// What lies beside it is written with it, as far as it can be.
#[test]
fn a_block_that_cannot_be_written_takes_no_neighbour_with_it() {
    let bad = 300;
    let house = House::new(&Config { page_cache_bytes_max: Some(12 << 20), ..mebibyte() });
    *house.below.full.lock() = Some(ByteRange::new((bad * BLOCK) as u64, 1));
    (0..700).for_each(|block| house.write(block, 8, 1));
    let error = house.stop().expect_err("there is no room");
    assert!(error.message().contains("(1 blocks)"), "{error}");
    house.disk.cut();
    let after = House::over(&mebibyte(), Plan::default(), house.disk.survivors());
    for block in 0..700 {
        assert_eq!(after.read(block, 1), [if block == bad { 0 } else { 8 }], "block {block}");
    }
}

#[test]
fn who_asks_for_a_block_below_hears_of_no_other() {
    for mode in [Mode::Writethrough, Mode::Writeback] {
        let house = House::new(&Config { mode, ..mebibyte() });
        *house.below.full.lock() = Some(ByteRange::new(100 * BLOCK as u64, 1));
        let write = |block| match mode {
            Mode::Writethrough => house.ask(filled(block, 7, 1)).result,
            _ => {
                house.write(block, 7, 1);
                house.ask(bare(Op::WriteZeroes, block)).result
            }
        };
        assert_eq!(write(100), Err(Kind::NoSpace));
        for block in [99, 101, 116, 200, 511, 512] {
            assert_eq!(write(block), Ok(()), "block {block}");
        }
    }
}

/// Zeroes and discards promise no more than writes.
#[test]
fn what_is_asked_for_with_fua_fails_once_something_has() {
    let house = House::with_plan(&mebibyte(), failing(false));
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    for request in [bare(Op::WriteZeroes, 9), bare(Op::Discard, 9)] {
        assert_eq!(house.ask(request.with_fua()).result, Err(Kind::Io));
    }
    assert_eq!(house.ask(bare(Op::WriteZeroes, 9)).result, Ok(()));
}

/// What is dirty could not be written, or came too late: nothing writes it any more.
#[test]
fn a_flush_beside_the_end_of_write_back_or_after_it_is_answered() {
    let house = House::new(&mebibyte());
    house.write(3, 7, 1);
    let close = house.cache.close();
    let beside = house.spawn(house.submit(Request::flush()));
    assert_eq!(house.world.run(Answer::pending(close)), Ok(()));
    house.write(4, 7, 1);
    let after = house.spawn(house.submit(Request::flush()));
    house.until("an answer to both", || beside.get().is_some() && after.get().is_some());
    assert_eq!(after.get(), Some(Err(Kind::ShuttingDown)));
    house.until("the end of all who hold the cache", || Arc::strong_count(&house.cache.core) == 1);
}

#[test]
fn a_stop_does_not_vouch_for_what_was_there_before_a_flush_that_failed() {
    let fault = Fault { call: Some(Call::Sync), nth: 0, effect: Effect::Fail(Kind::Io), sticky: false };
    let plan = Plan { faults: vec![fault], latency: Latency::Nvme, ..Plan::default() };
    let house = House::with_plan(&mebibyte(), plan);
    house.write(3, 7, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    let error = house.stop().expect_err("it may be lost");
    assert!(error.message().contains("a flush below the page cache failed (EIO)"), "{error}");
}

#[test]
fn a_thread_may_end_while_blocks_are_on_their_way() {
    let thread = std::thread::spawn(|| {
        let house = House::new(&mebibyte());
        (0..8).for_each(|block| house.write(block * 8, 1, 1));
        house.spawn(house.submit(Request::flush()));
        let is_written = || house.below.seen.lock().iter().any(|(op, _)| *op == Op::Write);
        house.until("a write of the disk", is_written);
        assert!(house.number("unsaved_bytes") > 0);
        // Without the power cut that a house ends with.
        std::mem::forget(house);
    });
    thread.join().expect("it ends in order");
}

#[test]
fn a_drain_fails_after_one_attempt_and_can_be_tried_again() {
    let house = House::new(&mebibyte());
    *house.below.full.lock() = Some(ByteRange::new(3 * BLOCK as u64, 1));
    [3, 512, 1024].into_iter().for_each(|block| house.write(block, 7, 1));
    let drain = || house.world.run(attributes(house.cache.clone()).set("drain", Value::U64(1)));
    let error = drain().expect_err("there is no room");
    assert!(error.kind == Kind::NoSpace && error.message().contains("4096 bytes"), "{error}");
    assert!(error.message().contains("they stay in memory"), "{error}");
    assert_eq!(house.number("dirty_bytes"), BLOCK as u64, "the others are below");
    *house.below.full.lock() = None;
    assert_eq!((drain(), house.number("dirty_bytes")), (Ok(()), 0));
    assert_eq!(house.survivor(3), 7);
}

#[test]
fn a_drain_ends_while_clients_write() {
    let house = House::new(&mebibyte());
    (0..6).for_each(|region| house.write(region * 512, 7, 2));
    let drain = attributes(house.cache.clone()).set("drain", Value::U64(1));
    let drained = Rc::new(Cell::new(false));
    let (told, ended) = (drained.clone(), drained.clone());
    house.world.spawn_here(Box::pin(async move {
        assert_eq!(drain.await, Ok(()));
        told.set(true);
    }));
    // Some write is always under way and some region always dirty, each of them again before its turn in a lap.
    for writer in 0..WRITERS {
        let (world, cache, ended) = (house.world.clone(), Seam::new(house.cache.clone()), ended.clone());
        house.world.spawn_here(Box::pin(async move {
            for write in (writer..).take_while(|_| !ended.get()) {
                assert_eq!(cache.submit(filled(write % 6 * 512, 8, 2)).await.result, Ok(()));
                world.sleep(Duration::from_micros(1)).await;
            }
        }));
    }
    house.until("the end of the drain", || drained.get());
}
