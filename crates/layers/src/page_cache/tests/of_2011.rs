//! The cache as the kernel had it in 2011.

use spillway_sim::disk::{Call, Effect, Fault};

use super::zones::{small_and_large, write_folios, zone};
use super::*;
use crate::page_cache::Of2011;

fn as_in_2011(mut config: Config) -> Config {
    config.division.of_2011 = Of2011::ALL;
    config
}

#[test]
fn with_one_limit_for_all_memory_the_first_zone_is_dirty_altogether() {
    let house = House::new(&as_in_2011(small_and_large()));
    write_folios(&house, 0..house.number("unsaved_bytes_max") as usize / 16384);
    let [all, .., dirty, _] = zone(&house, 0);
    assert_eq!(dirty, all);
}

/// The source's change alone: all else is as it was.
#[test]
fn with_a_limit_for_each_zone_alone_the_first_zone_keeps_clean_memory() {
    let mut config = small_and_large();
    config.division.of_2011 = Of2011 { scope: false, ..Of2011::ALL };
    let house = House::new(&config);
    write_folios(&house, 0..house.number("unsaved_bytes_max") as usize / 16384);
    let [all, .., dirty, _] = zone(&house, 0);
    assert!(dirty > 0 && dirty <= all * 2 / 5 + 4, "{dirty} of {all}");
}

/// Of what differed only the scope of the limit: memory is had at once.
#[test]
fn a_part_of_2011_leaves_the_others_as_they_are() {
    let mut config = small_and_large();
    config.division.of_2011 = Of2011 { scope: true, ..Of2011::default() };
    let house = House::new(&config);
    write_folios(&house, 0..house.number("unsaved_bytes_max") as usize / 16384);
    let [all, .., dirty, _] = zone(&house, 0);
    assert_eq!(dirty, all);
    write_folios(&house, 100..500);
    assert_eq!(house.cache.reclaim_writes(), 0);
}

/// Requests leave reclaim to the background, and find memory once it has some.
#[test]
fn reclaim_meets_dirty_folios_and_writes_them() {
    let house = House::new(&as_in_2011(small_and_large()));
    write_folios(&house, 0..400);
    assert!(house.cache.reclaim_writes() > 0);
    assert_eq!((house.read(4 * 399, 4), house.read(4 * 2000, 4)), ([143; 4].into(), [0; 4].into()));
    assert!(house.number("folios_evicted") > 300);
    assert_eq!(house.number("folios_evicted_directly"), 0);
    house.flush();
    assert_eq!(house.number("unsaved_bytes"), 0);
    assert_eq!(house.number("written_back_bytes"), house.number("dirtied_bytes"), "each block once");
    for folio in (0..400).step_by(7) {
        assert_eq!(house.read(folio * 4, 4), [folio as u8 | 1; 4], "folio {folio}");
    }
    assert_eq!(house.survivor(399 * 4 + 3), 143, "a flush makes all durable");
}

#[test]
fn writers_run_freely_up_to_the_limit_and_stop_there() {
    let house = super::throttle::slow(&as_in_2011(super::throttle::roomy()), Latency::UsbStick);
    let limit = house.number("nr_dirty_threshold") as usize / 8 * 8;
    for block in (0..limit).step_by(8) {
        assert!(matches!(house.submit(filled(block, 1, 8)), Answer::Done(_)), "block {block} of {limit}");
    }
    let stopped = house.submit(filled(limit, 1, 8));
    assert!(matches!(stopped, Answer::Pending(_)));
    assert_eq!(house.world.run(stopped).result, Ok(()));
    assert_eq!((house.number("throttled_writes"), house.number("writes_blocked")), (0, 1));
    house.flush();
}

/// All memory is dirty, and what is written fails at once: the end of each attempt wakes reclaim.
#[test]
fn reclaim_pauses_while_the_device_below_is_away() {
    let effect = Effect::Fail(Kind::Unreachable);
    let faults = vec![Fault { call: Some(Call::Write), nth: 0, effect, sticky: true }];
    let config = Config { dirty_background_ratio: 100, dirty_ratio: 100, ..small_and_large() };
    let plan = Plan { faults, latency: Latency::Nvme, ..Plan::default() };
    let house = House::with_plan(&as_in_2011(config), plan);
    let writes: Vec<_> = (0..100).map(|folio| house.spawn(house.submit(filled(folio * 4, 1, 4)))).collect();
    house.until("an answer to each", || writes.iter().all(|write| write.get().is_some()));
    assert!(writes.iter().any(|write| write.get() == Some(Err(Kind::Unreachable))), "there was room");
    house.below.take(Op::Write);
    let (world, end) = (house.world.clone(), house.world.now() + Duration::from_secs(60));
    house.world.spawn_here(Box::pin(async move { world.sleep(Duration::from_secs(60)).await }));
    house.until("the end of a minute", || house.world.now() >= end);
    let tries = house.below.take(Op::Write).len();
    assert!((1..4000).contains(&tries), "{tries} writes of 64 folios in a minute");
}
