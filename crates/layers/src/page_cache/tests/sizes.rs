//! Folios of several sizes: how large they are, and that they lie beside each other.

use spillway_policy::dirty_regions::RegionNumber;

use super::*;

/// Folios of 4 KiB to a MiB.
fn mixed() -> Config {
    Config { page_cache_bytes_max: Some(12 << 20), folio_size: None, ..mebibyte() }
}

/// Sizes in KiB, and how many folios there are of each.
fn sizes(house: &House) -> Vec<(u64, u64)> {
    let Value::Rows(rows) = attributes(house.cache.clone()).get("folio_sizes").expect("it is an attribute")
    else {
        panic!("sizes are rows")
    };
    let number = |value: &Value| value.number().expect("a number");
    rows.iter().map(|row| (number(&row[0]) >> 10, number(&row[1]))).collect()
}

/// A block of its own in each of so many regions, in no order.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(|nth| nth * 739 % 8192)
}

#[test]
fn a_folio_is_as_large_as_what_is_written_or_read_at_once() {
    let house = House::new(&mixed());
    house.write(3, 1, 1);
    house.write(16, 2, 16);
    house.write(512, 3, 256);
    assert_eq!(sizes(&house), [(4, 1), (64, 1), (1024, 1)]);
    house.read(1024, 32);
    assert_eq!(sizes(&house), [(4, 1), (64, 1), (128, 1), (1024, 1)]);
    assert_eq!(house.number("folio_bytes"), 1220 << 10);
    house.write(2001, 4, 6);
    // From where it begins on, each as large as may begin there.
    assert_eq!(sizes(&house)[..2], [(4, 3), (8, 2)]);
}

#[test]
fn scattered_accesses_have_small_folios() {
    let house = House::new(&mixed());
    scattered(300).for_each(|block| house.write(block, 1, 1));
    scattered(300).for_each(|block| _ = house.read(block + 1, 1));
    assert_eq!(sizes(&house).iter().map(|size| size.0).collect::<Vec<_>>(), [4]);
    house.flush();
}

#[test]
fn folios_of_a_stream_of_small_writes_grow() {
    let house = House::new(&mixed());
    (0..512).for_each(|block| house.write(1024 + block, (block % 251) as u8, 1));
    let (sizes, folios) = (sizes(&house), house.number("folios_created"));
    assert!(folios < 40 && sizes.iter().any(|size| size.0 >= 64), "{folios} folios: {sizes:?}");
    assert!(house.number("folio_bytes") <= 3 << 20, "{} bytes for 2 MiB", house.number("folio_bytes"));
    house.flush();
    for block in (0..512).step_by(61) {
        assert_eq!(house.read(1024 + block, 1), [(block % 251) as u8]);
        assert_eq!(house.survivor(1024 + block), (block % 251) as u8);
    }
}

#[test]
fn what_is_read_ahead_is_in_large_folios() {
    let house = House::new(&mixed());
    for block in 0..256 {
        house.read(block, 1);
        (0..300).for_each(|_| _ = house.world.go_on());
    }
    let sizes = sizes(&house);
    assert!(sizes.iter().any(|size| size.0 >= 64), "{sizes:?}");
    assert_eq!(house.number("readahead_wasted"), 0);
}

/// What is there stays where it is: what comes in around it does not lie over it.
#[test]
fn a_large_access_finds_small_folios_in_its_way() {
    let house = House::new(&mixed());
    [5, 70, 200].into_iter().for_each(|block| house.write(block, 9, 1));
    let expected = |block| if [5, 70, 200].contains(&block) { 9 } else { 0 };
    assert_eq!(house.read(0, 256), (0..256).map(expected).collect::<Vec<u8>>());
    house.write(64, 3, 64);
    let expected = |block| if (64..128).contains(&block) { 3 } else { expected(block) };
    assert_eq!(house.read(0, 256), (0..256).map(expected).collect::<Vec<u8>>());
    assert!(house.number("folio_bytes") <= 1 << 20, "no block has memory twice");
    house.flush();
    assert_eq!([5, 64, 70, 127, 128, 200].map(|block| house.survivor(block)), [9, 3, 3, 3, 0, 9]);
}

/// Memory is full of small folios: large accesses get what comes free of it.
#[test]
fn where_memory_is_in_pieces_folios_are_smaller() {
    let house = House::new(&mixed());
    (0..4000).for_each(|nth| house.write(nth * 739 % 8192, (nth % 251) as u8, 1));
    house.flush();
    for start in (0..8192).step_by(256) {
        let read = house.read(start, 256);
        for (block, value) in (start..).zip(read).step_by(17) {
            // 739 and its inverse modulo 8192.
            let nth = block * INVERSE % 8192;
            assert_eq!(value, if nth < 4000 { (nth % 251) as u8 } else { 0 }, "block {block}");
        }
    }
    let sizes = sizes(&house);
    assert!(sizes.len() > 1, "{sizes:?}");
}

const INVERSE: usize = 4811;

/// A shard has a part of the memory: what that cannot hold leaves, and writers wait for it, however much the others have.
#[test]
fn a_shard_lives_in_its_own_memory() {
    let cut = Cut { region_bytes: 64 << 10, shards: 4 };
    let house = House::new(&Config {
        page_cache_bytes_max: Some(2 << 20),
        dirty_background_ratio: 100,
        dirty_ratio: 100,
        cut,
        ..mixed()
    });
    let part = house.number("folio_bytes_max") / 4;
    // Of sixteen blocks, all of them in one shard.
    let is_there = |region: &usize| house.cache.core.places.shard_of(RegionNumber(*region as u64)) == 2;
    let regions = || (0..512).filter(is_there).take(30);
    for region in regions() {
        house.write(region * 16, region as u8, 16);
        assert!(house.number("folio_bytes") <= part + 4096, "of {part} bytes");
    }
    assert!(house.number("writes_blocked") > 0);
    for region in regions() {
        assert_eq!(house.read(region * 16, 16), [region as u8; 16]);
    }
    assert!(house.number("folio_bytes") > part / 2, "it is in use");
}

#[test]
fn folios_take_little_beside_their_content() {
    let percent = |folio_size| {
        let bytes = 48 << 20;
        let house = House::new(&Config { page_cache_bytes_max: Some(bytes), folio_size, ..mixed() });
        let content = house.number("folio_bytes_max");
        // Without buffers of write-back and readahead, and what is read ahead with these.
        let tasks = house.cache.core.streams.bounds.bytes();
        let beside = house.budget.used() - content - bytes / 16 - bytes / 64 - tasks;
        beside as f64 * 100.0 / content as f64
    };
    let [mixed, small, large] = [None, Some(4096), Some(2 << 20)].map(percent);
    assert!(mixed <= 2.0 && small <= 2.0 && large <= 0.1, "{mixed}, {small} and {large} percent");
}
