//! Writes: what is absorbed, what is written back, when, and what a flush means.

use super::*;

#[test]
fn a_write_is_acknowledged_from_memory_and_read_from_there() {
    let house = House::new(&mebibyte());
    assert!(matches!(house.submit(filled(3, 7, 2)), Answer::Done(Reply { result: Ok(()), .. })));
    assert_eq!(house.read(3, 2), [7, 7]);
    assert!(house.below.seen.lock().is_empty(), "the disk knows nothing of it");
    assert_eq!((house.number("dirty_bytes"), house.number("write_bytes")), (8192, 8192));
}

#[test]
fn exactly_the_dirty_blocks_are_written_back_at_every_folio_size() {
    for folio_size in [4096, 16384, 65536, 2 << 20] {
        let house = House::new(&Config {
            folio_size: Some(folio_size),
            page_cache_bytes_max: Some(24 << 20),
            ..mebibyte()
        });
        house.read(0, 512);
        house.below.take(Op::Read);
        for block in [5, 77, 400] {
            house.write(block, 9, 1);
        }
        house.flush();
        let at = |block: u64| (block * BLOCK as u64, BLOCK as u64);
        assert_eq!(house.below.take(Op::Write), [at(5), at(77), at(400)], "folios of {folio_size}");
        assert_eq!(house.text("write_amplification"), "1");
    }
}

#[test]
fn a_write_reads_nothing() {
    let house = House::new(&Config { folio_size: Some(65536), ..mebibyte() });
    house.write(3, 1, 2);
    house.flush();
    assert_eq!(house.below.take(Op::Read), []);
    assert_eq!(house.read(2, 4), [0, 1, 1, 0], "what surrounds it is read when it is asked for");
}

#[test]
fn neighbours_are_one_write_across_folios_and_regions_go_up_the_device() {
    let house =
        House::new(&Config { folio_size: Some(4096), page_cache_bytes_max: Some(20 << 20), ..mebibyte() });
    for block in [700, 600, 9, 8, 7, 601] {
        house.write(block, 1, 1);
    }
    house.flush();
    let writes = house.below.take(Op::Write);
    let at = |block: u64, blocks: u64| (block * BLOCK as u64, blocks * BLOCK as u64);
    assert_eq!(writes, [at(7, 3), at(600, 2), at(700, 1)]);
}

#[test]
fn what_is_dirty_for_too_long_is_written_back_without_being_asked() {
    let house = House::new(&Config { dirty_expire: 5000, ..mebibyte() });
    house.write(3, 1, 1);
    house.until("write-back", || house.number("dirty_bytes") == 0);
    let waited = house.world.now();
    assert!((Duration::from_secs(4)..Duration::from_secs(6)).contains(&waited), "{waited:?}");
    house.until("the end", || house.number("unsaved_bytes") == 0);
    assert_eq!(house.below.take(Op::Write), [(3 * BLOCK as u64, BLOCK as u64)]);
}

#[test]
fn below_the_background_limit_nothing_is_written_and_above_it_no_more_than_has_to_be() {
    let house = House::new(&Config { page_cache_bytes_max: Some(9 << 20), ..mebibyte() });
    let limit = house.number("folio_bytes_max") / 10;
    let blocks = limit as usize / BLOCK;
    house.write(0, 1, blocks);
    while house.world.now() < Duration::from_secs(2) && house.world.go_on() {}
    assert_eq!(house.number("written_back_bytes"), 0);
    house.write(5000, 1, 8);
    house.until("write-back", || house.number("dirty_bytes") <= limit);
    house.until("the end of it", || house.number("unsaved_bytes") == house.number("dirty_bytes"));
    assert!(house.number("written_back_bytes") > 0);
}

#[test]
fn a_block_written_again_while_it_is_written_back_stays_dirty() {
    let house = House::new(&mebibyte());
    house.write(3, 1, 1);
    let flush = house.submit(Request::flush());
    let flushed = house.spawn(flush);
    house.until("a write below", || house.number("dirty_bytes") == 0);
    house.write(3, 2, 1);
    house.until("the flush", || flushed.get() == Some(Ok(())));
    assert_eq!(house.number("dirty_bytes"), BLOCK as u64);
    assert_eq!(house.below.take(Op::Write).len(), 1, "the flush waits for what was dirty before it");
    house.flush();
    assert_eq!(house.survivor(3), 2);
}

#[test]
fn a_flush_ends_while_clients_go_on_writing() {
    let house = House::new(&mebibyte());
    house.write(3, 1, 1);
    let flushed = house.spawn(house.submit(Request::flush()));
    for round in 0..10_000 {
        if flushed.get().is_some() {
            break;
        }
        house.write(3, round as u8, 1);
        house.world.go_on();
    }
    assert_eq!(flushed.get(), Some(Ok(())));
}

#[test]
fn what_was_flushed_or_written_with_fua_survives() {
    let house = House::new(&mebibyte());
    house.write(3, 1, 1);
    house.flush();
    assert_eq!(house.ask(filled(9, 2, 1).with_fua()).result, Ok(()));
    house.disk.cut();
    let again = House::over(&mebibyte(), Plan::default(), house.disk.survivors());
    assert_eq!((again.read(3, 1), again.read(9, 1)), (vec![1], vec![2]));
}

#[test]
fn writethrough_has_each_write_below_before_it_is_acknowledged() {
    let house = House::new(&Config { mode: Mode::Writethrough, ..mebibyte() });
    for block in 0..20 {
        house.write(block, 5, 1);
        assert_eq!(house.number("unsaved_bytes"), 0);
    }
    assert_eq!(house.below.take(Op::Write).len(), 20);
    assert_eq!(house.read(0, 20), [5; 20]);
    assert_eq!(house.below.take(Op::Read), [], "what was written is in memory");
}

#[test]
fn a_stop_makes_everything_durable() {
    let house = House::new(&mebibyte());
    house.write(3, 1, 1);
    let suspend = house.cache.suspend();
    let stopped = house.world.run(Answer::pending(async move {
        let result = suspend.await.map_err(|error| error.kind);
        Request::flush().answer(result)
    }));
    assert_eq!((stopped.result, house.survivor(3)), (Ok(()), 1));
}

#[test]
fn zeroes_and_discards_replace_what_was_dirty() {
    for op in [Op::WriteZeroes, Op::Discard] {
        let house = House::new(&mebibyte());
        house.write(0, 7, 10);
        let range = ByteRange::new(2 * BLOCK as u64, 3 * BLOCK as u64);
        assert_eq!(house.ask(Request::bare(op, range)).result, Ok(()));
        let expected = [7, 7, 0, 0, 0, 7, 7, 7, 7, 7];
        assert_eq!(house.read(0, 10), expected, "{op:?}");
        house.flush();
        assert_eq!(house.read(0, 10), expected, "{op:?}");
    }
}

#[test]
fn what_is_dirty_is_stored_and_the_rest_is_as_below() {
    let house = House::new(&mebibyte());
    house.write(2, 1, 3);
    let extents = house.extents(ByteRange::new(0, 10 * BLOCK as u64));
    let lens: Vec<(u64, bool)> =
        extents.iter().map(|extent| (extent.len / BLOCK as u64, extent.zero)).collect();
    assert_eq!(lens, [(2, true), (3, false), (5, true)]);
    house.flush();
    assert_eq!(house.extents(ByteRange::new(0, 10 * BLOCK as u64)), extents);
}

/// One client has this many requests in flight for ever: it sends another with each answer. How many were answered.
fn keep_in_flight(house: &House, count: usize, request: fn() -> Request) -> Rc<Cell<usize>> {
    let answered = Rc::<Cell<usize>>::default();
    for _ in 0..count {
        let (seam, answered) = (Seam::new(house.cache.clone()), answered.clone());
        house.world.spawn_here(Box::pin(async move {
            loop {
                assert_eq!(seam.submit(request()).await.result, Ok(()));
                answered.set(answered.get() + 1);
            }
        }));
    }
    answered
}

const ZEROINGS: usize = 16;

fn zero_a_mebibyte() -> Request {
    Request::bare(Op::WriteZeroes, ByteRange::new(0, 1 << 20))
}

/// How many zeroings of a MiB from the begin of a slow disk are answered while a write there waits for its answer, with
/// [`ZEROINGS`] always in flight.
fn zeroings_during_a_write(house: &House, request: Request) -> usize {
    let zeroed = keep_in_flight(house, ZEROINGS, zero_a_mebibyte);
    house.until("zeroings", || zeroed.get() > 2 * ZEROINGS);
    let before = zeroed.get();
    let written = house.spawn(house.submit(request));
    house.until("the write", || written.get().is_some() || zeroed.get() - before > 20 * ZEROINGS);
    let during = zeroed.get() - before;
    assert_eq!(written.get(), Some(Ok(())), "it still waits after {during} zeroings");
    house.until("more zeroings", || zeroed.get() - before > 40 * ZEROINGS);
    during
}

fn slow(config: &Config) -> House {
    House::with_plan(config, Plan { latency: Latency::UsbStick, ..Plan::default() })
}

#[test]
fn a_write_waits_for_zeroings_that_came_before_it_and_for_no_others() {
    for blocks in [1, 8, 64] {
        let during = zeroings_during_a_write(&slow(&mebibyte()), filled(1, 7, blocks));
        assert!(during <= ZEROINGS, "{blocks} blocks wait for {during} zeroings");
    }
}

/// Others write as well, more than may be unsaved: it waits for both.
#[test]
fn a_write_that_waits_for_room_keeps_its_turn() {
    let house = slow(&mebibyte());
    let written = keep_in_flight(&house, 8, || filled(1024, 1, 64));
    let during = zeroings_during_a_write(&house, filled(1, 7, 64));
    assert!(house.number("writes_blocked") > 0, "there is room for all");
    assert!(during <= 2 * ZEROINGS, "it waits for {during} zeroings and {} writes", written.get());
}
