//! What readers see of a drain, of recovery and of formatting.

use super::*;
use crate::watched::Watched;
use spillway_core::WorkKind;
use spillway_core::sync::{AtomicBool, AtomicU64};
use spillway_sim::disk::{Call, Effect, Fault};

/// Blocks of a cache whose metadata is several pieces.
const CACHE_BYTES: u64 = 1 << 30;

#[test]
fn a_drain_counts_up_to_its_total() {
    let house = House::slow(1 << 26, 1 << 26);
    let cache = house.open(&config()).unwrap();
    (0..40).for_each(|run| house.write(&cache, 100 * run, 1, 50));
    let watched = Watched::new(&house.world, &house.registry);
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    watched.ended(WorkKind::Drain, 2000 * BLOCK as u64);
}

#[test]
fn a_drain_that_fails_is_over() {
    let house = House::new(1 << 20, 1 << 20);
    let fault = Fault { call: Some(Call::Write), nth: 0, effect: Effect::Fail(Kind::Io), sticky: true };
    let plan = Plan { faults: vec![fault], ..Plan::default() };
    let dead = Arc::new(Disk::new(house.world.clone(), Medium::new(1 << 20), BlockSize::SECTOR, plan, 7));
    let origin = Arc::new(File::new(dead, house.world.clone()));
    let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
    house.write(&cache, 0, 1, 50);
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "failed");
    assert_eq!(house.registry.progress(), []);
}

/// A stop writes back what a drain before it has tried in vain.
#[test]
fn a_stop_beside_a_drain_that_has_failed_tries_again() {
    let house = House::slow(1 << 26, 1 << 26);
    let (is_full, refused) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicU64::new(0)));
    let (full, count) = (is_full.clone(), refused.clone());
    let origin = by_way_of(house.device(0), move |below, request| {
        if request.op == Op::Write && full.load(Ordering::Relaxed) {
            count.fetch_add(1, Ordering::Relaxed);
            return Answer::Done(request.answer(Err(Kind::Exhausted)));
        }
        below.submit(request)
    });
    let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
    (0..40).for_each(|run| house.write(&cache, 100 * run, 1, 50));
    cache.core.drain(false).unwrap();
    house.wait_for("a refusal", || refused.load(Ordering::Relaxed) > 0);
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(show(&cache, "drain_state"), "running", "the rest of it takes time");
    set(&cache, "message", "flush_on_suspend").unwrap();
    let stopped = Answer::pending({
        let cache = cache.clone();
        async move { cache.suspend().await }
    });
    house.world.run(stopped).unwrap();
    assert_eq!(show(&cache, "dirty_blocks"), "0");
}

#[test]
fn formatting_and_recovery_count_metadata() {
    let house = House::slow(1 << 20, CACHE_BYTES);
    let watched = Watched::new(&house.world, &house.registry);
    let cache = house.open(&config()).unwrap();
    let metadata = cache.core.layout.metadata_bytes();
    assert!(metadata > 2 << 20, "{metadata} bytes are several pieces");
    watched.ended(WorkKind::Format, metadata);
    drop(cache);
    let _again = house.open(&config()).unwrap();
    watched.ended(WorkKind::Recover, metadata);
}
