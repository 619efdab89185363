//! Ages: the origin is never further behind than `max_age`.

use super::*;

const AGE_MS: u64 = 800;

/// What a block holds after so many writes.
fn value(writes: usize) -> u8 {
    if writes == 0 { 0 } else { 1 + (writes % 255) as u8 }
}

/// A cache that writes back what is too old, and nothing else.
fn aging(house: &House, max_age: u64) -> Arc<WriteCache> {
    let lazy = Config { high_watermark: 100, low_watermark: 100, autocommit_time: 10, ..config() };
    house.open(&Config { max_age: Some(max_age), ..lazy }).unwrap()
}

/// Each block of a cache that is written over again and again leaves in its time: also where its newest version is never committed when
/// it is looked at, and no more often than its age asks for.
#[test]
fn a_block_that_is_written_over_for_ever_is_on_the_origin_in_time() {
    for every_ms in [4, 25] {
        let house = House::new(1 << 20, 1 << 20);
        let cache = aging(&house, AGE_MS);
        let (begin, every) = (house.world.now(), Duration::from_millis(every_ms));
        let mut begun = vec![begin];
        while house.world.now() < begin + 5 * Duration::from_millis(AGE_MS) {
            let now = house.world.now();
            begun.push(now);
            house.write(&cache, 9, value(begun.len() - 1), 1);
            while house.world.now() < now + every {
                assert!(house.world.go_on());
            }
            let below = house.read(house.device(0), 9 * BLOCK as u64, BLOCK)[0];
            let there =
                (0..begun.len()).rev().find(|&writes| value(writes) == below).expect("it was written");
            let behind = begun.get(there + 1).map_or(Duration::ZERO, |&first| house.world.now() - first);
            assert!(
                behind <= Duration::from_millis(AGE_MS + 100),
                "{behind:?} behind, writes each {every:?}"
            );
        }
        let times = number(&cache, "writeback_ios");
        assert!((4..=8).contains(&times), "{times} times in five times max_age");
    }
}

/// A lap for what is too old passes over blocks that are being bypassed. They are written back all the same, though nothing else is
/// ever committed.
#[test]
fn what_could_not_leave_when_it_was_too_old_leaves_later() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = aging(&house, 3200);
    house.write(&cache, 9, 1, 2);
    let core = &cache.core;
    let busy = crate::write_cache::bypass::Busy::new(
        core.clone(),
        crate::write_cache::index::block::OriginBlock(9),
        1,
    );
    house.wait_for("the other block", || show(&cache, "dirty_blocks") == "1");
    let begin = house.world.now();
    while house.world.now() < begin + Duration::from_secs(10) {
        assert!(house.world.go_on(), "the age timer runs as long as something is left");
    }
    assert_eq!(show(&cache, "dirty_blocks"), "1", "it is in nobody's way yet");
    drop(busy);
    house.wait_for("write-back", || show(&cache, "dirty_blocks") == "0");
}

#[test]
fn old_blocks_leave() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = aging(&house, 3200);
    house.write(&cache, 9, 1, 2);
    let begin = house.world.now();
    house.wait_for("the copy", || show(&cache, "dirty_blocks") == "0");
    let waited = (house.world.now() - begin).as_millis();
    assert!((2800..=3500).contains(&waited), "{waited} ms");
}
