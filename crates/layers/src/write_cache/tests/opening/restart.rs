//! A cache that is opened with content goes on with what it should do, without a client that writes.

use super::*;

/// Blocks of the origin in a [`filled`] cache.
const FILLED: u64 = 200;

/// A cache of 254 blocks that holds [`FILLED`] committed ones, after a power cut.
fn filled() -> House {
    let house = House::new(1 << 20, 1 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let cache = house.open(&still).unwrap();
    (0..FILLED).for_each(|block| house.write(&cache, block, block as u8 + 1, 1));
    house.flush(&cache);
    assert_eq!(show(&cache, "dirty_blocks"), FILLED.to_string());
    house.again()
}

fn dirty_blocks(cache: &Arc<WriteCache>) -> u64 {
    number(cache, "dirty_blocks")
}

#[test]
fn the_watermarks_hold() {
    let house = filled();
    let cache = house.open(&config()).unwrap();
    house.wait_for("write-back", || dirty_blocks(&cache) <= 254 * 45 / 100 + 1);
    house.wait_for("their end", || show(&cache, "writeback_blocks") == "0");
    assert!(dirty_blocks(&cache) > 0, "only what is above the low watermark leaves");
    assert_eq!(show(&cache, "uncommitted_blocks"), "0");
}

#[test]
fn the_cleaner_empties_the_cache() {
    let house = filled();
    let cache = house.open(&Config { cleaner: true, ..config() }).unwrap();
    house.wait_for("write-back", || dirty_blocks(&cache) == 0);
    let house = house.again();
    for block in 0..FILLED {
        assert_eq!(house.read(house.device(0), block * 4096, 1 << 12), [block as u8 + 1; 4096]);
    }
}

#[test]
fn blocks_become_too_old() {
    let house = filled();
    let lazy = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let cache = house.open(&Config { max_age: Some(3200), ..lazy }).unwrap();
    let begin = house.world.now();
    house.wait_for("write-back", || dirty_blocks(&cache) == 0);
    let waited = (house.world.now() - begin).as_millis();
    assert!((2800..=3500).contains(&waited), "ages begin again when a cache is opened: {waited} ms");
}

#[test]
fn a_drain_ends() {
    let house = filled();
    let cache = house.open(&config()).unwrap();
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    assert_eq!(dirty_blocks(&cache), 0);
}

/// Below its watermarks a cache rests: nothing is written back, and no timer keeps the server awake.
#[test]
fn a_cache_with_nothing_to_do_does_nothing() {
    let house = filled();
    let cache = house.open(&Config { high_watermark: 100, low_watermark: 90, ..config() }).unwrap();
    while house.world.go_on() {}
    assert_eq!(dirty_blocks(&cache), FILLED);
}
