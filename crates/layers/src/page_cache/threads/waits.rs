//! Models of waits that end by nothing but what they wait for: the end of a read, and the end of a timer.

use spillway_core::models::Passing;

use super::*;

/// The discard comes while the folio is read in, and nothing else ever ends.
#[test]
fn a_discard_waits_for_a_read_and_no_longer() {
    every_order(3000, || {
        let house = House::new();
        house.disk.0.lock()[..BLOCK].fill(1);
        let read: fn(&House) = |house| assert!(house.read(0, 1)[0] <= 1);
        let discard: fn(&House) = |house| {
            house.ask(Request::bare(Op::Discard, ByteRange::new(0, BLOCK as u64)));
            assert_eq!(house.below(0), 0);
        };
        together(&house, &[read, discard]);
        assert_eq!(house.read(0, 1), [0]);
    });
}

/// Two of the same, of which the second waits for the first.
#[test]
fn a_read_waits_for_another_and_no_longer() {
    every_order(3000, || {
        let house = House::new();
        let read: fn(&House) = |house| assert_eq!(house.read(0, 2), [0, 0]);
        together(&house, &[read, read]);
    });
}

/// The write back is that of a client: the engine has no reason to.
#[test]
fn a_discard_waits_for_write_back_and_no_longer() {
    every_order(3000, || {
        let house = House::new();
        let write: fn(&House) = |house| {
            house.ask(Request::write(0, IoBuf::copy_of(&[5; BLOCK])).with_fua());
        };
        let discard: fn(&House) = |house| {
            house.ask(Request::bare(Op::Discard, ByteRange::new(0, BLOCK as u64)));
        };
        together(&house, &[write, discard]);
        assert_eq!(house.read(0, 1), [house.below(0)]);
    });
}

#[test]
fn the_checker_finds_waits_for_what_has_been() {
    let mutant = "changes: read the number after the look";
    finds(mutant, a_discard_waits_for_a_read_and_no_longer);
    finds(mutant, a_read_waits_for_another_and_no_longer);
    finds(mutant, a_discard_waits_for_write_back_and_no_longer);
}

/// Nobody asks for it: it ages, though the timer has just found nothing to wait for.
#[test]
fn what_becomes_dirty_as_the_timer_ends_is_written_back() {
    every_order(20_000, || {
        let folio = FOLIO * BLOCK as u64;
        let config = Config {
            page_cache_bytes_max: Some(87 << 9),
            block_size: Some(BLOCK as u64),
            folio_size: Some(folio),
            dirty_background_ratio: 100,
            dirty_ratio: 100,
            dirty_expire: 1600,
            cut: Cut { region_bytes: folio, shards: 2 },
            ..Config::default()
        };
        let house = House::within(Arc::new(Passing::default()), 8, &config);
        let core = &house.cache.core;
        // What it was begun for is below.
        core.aging.timer.start();
        house.write(0, 2);
        block_on(core.changes.until(|| (house.below(0) == 2).then_some(())));
    });
}

#[test]
fn the_checker_finds_a_timer_that_ends_too_soon() {
    finds("timer: look before it ends", what_becomes_dirty_as_the_timer_ends_is_written_back);
}

#[test]
fn the_checker_finds_a_batch_without_what_others_wait_for() {
    finds("page_cache: take for all who wait what one of them needs", what_is_forced_below_is_there);
}
