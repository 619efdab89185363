//! Zones of memory: who gets a folio of which, and what reclaim does where a zone is dirty.

use super::*;

/// A MiB in zones of which the first is a fifth; two fifths may be unsaved, and are before anything is written back, a folio at a time.
pub(super) fn small_and_large() -> Config {
    let division = Division { zones: vec![1, 4], ..Division::default() };
    let cut = Cut { region_bytes: 16384, shards: 1 };
    Config {
        division,
        cut,
        dirty_background_ratio: 40,
        dirty_ratio: 40,
        dirty_expire: 86_400_000,
        ..mebibyte()
    }
}

/// Blocks of a zone, and those of them that are free, clean, dirty, and being written back.
pub(super) fn zone(house: &House, number: usize) -> [u64; 5] {
    row(house, number)[..5].try_into().expect("five columns")
}

/// What is shown of a zone, behind its number.
pub(super) fn row(house: &House, number: usize) -> [u64; 16] {
    let Value::Rows(zones) = attributes(house.cache.clone()).get("zones").expect("it is an attribute") else {
        panic!("zones are rows")
    };
    let row: Vec<u64> = zones[number].iter().map(|value| value.number().expect("a number")).collect();
    assert_eq!(row[0], number as u64);
    row[1..].try_into().expect("seventeen columns")
}

/// Writes whole folios up the device, one after the other.
pub(super) fn write_folios(house: &House, folios: std::ops::Range<usize>) {
    folios.for_each(|folio| house.write(folio * 4, folio as u8 | 1, 4));
}

#[test]
fn a_folio_is_dirtied_in_a_zone_below_its_share() {
    let house = House::new(&small_and_large());
    let folios = house.number("unsaved_bytes_max") as usize / 16384;
    write_folios(&house, 0..folios);
    let [all, free, clean, dirty, moving] = zone(&house, 0);
    assert_eq!((all, moving), (free + clean + dirty + moving, 0));
    assert_eq!(dirty + zone(&house, 1)[3], house.number("dirty_bytes") / 4096);
    assert!(dirty > 0 && dirty <= all * 2 / 5 + 4, "{dirty} of {all}");
}

#[test]
fn reclaim_finds_what_is_clean_in_each_zone_and_writes_nothing() {
    let house = House::new(&small_and_large());
    for folio in 0..400 {
        write_folios(&house, folio..folio + 1);
        let [all, _, _, dirty, moving] = zone(&house, 0);
        assert!(dirty + moving <= all * 2 / 5 + 4, "{} of {all}", dirty + moving);
    }
    assert!(house.number("folios_evicted") > 300);
    assert_eq!(house.read(4 * 399, 4), [143; 4]);
    house.flush();
    let [first, second] = [0, 1].map(|number| row(&house, number));
    assert_eq!((first[5] + second[5]) * 4096, house.number("dirtied_bytes"));
    assert_eq!((first[6] + second[6]) * 4096, house.number("written_back_bytes"));
    assert_eq!((first[7] + second[7], first[8] + second[8]), (400, 0), "all of them by writes");
    assert_eq!(first[10] + second[10], house.number("folios_evicted"));
}

#[test]
fn by_default_zones_are_as_large_in_proportion_as_the_nodes_and_are_aged_alike() {
    let division = Division { nodes: vec![3 << 30, 1 << 30], ..Division::default() };
    let house = House::new(&Config { folio_size: Some(4096), division, ..mebibyte() });
    let [first, second] = [0, 1].map(|number| zone(&house, number)[0]);
    assert_eq!(first + second, house.number("folio_bytes_max") / 4096);
    assert!(first.abs_diff(3 * second) <= 5, "{first} and {second}");
    let used = |number| {
        let [all, free, ..] = zone(&house, number);
        (all - free) * 100 / all
    };
    (0..120).for_each(|block| _ = house.read(block, 1));
    assert!(used(0).abs_diff(used(1)) <= 20, "{} and {} percent", used(0), used(1));
    (200..2000).for_each(|block| _ = house.read(block, 1));
    house.below.take(Op::Read);
    // The last that were read are there, wherever they are.
    (1950..2000).for_each(|block| _ = house.read(block, 1));
    assert_eq!(house.below.take(Op::Read), []);
}

/// What readers and writers met in a zone: bytes read, those of them that were in memory, folios read ahead that were used and wasted,
/// and milliseconds of pauses; before it, the folios that reads and writes brought in, and those that readahead did.
pub(super) fn met(house: &House, number: usize) -> [u64; 7] {
    let row = row(house, number);
    [row[7], row[8], row[11], row[12], row[13], row[14], row[15]]
}

#[test]
fn reads_count_where_their_folio_is() {
    let config = Config { readahead_bytes_max: Some(0), ..small_and_large() };
    let house = House::new(&config);
    let block = BLOCK as u64;
    let mut used = [false; 2];
    for folio in 0..40 {
        let before = [0, 1].map(|number| met(&house, number));
        _ = house.read(folio * 4, 1);
        _ = house.read(folio * 4, 1);
        let now = [0, 1].map(|number| met(&house, number));
        let [created, read, hit] =
            [0, 2, 3].map(|what| [0, 1].map(|zone| now[zone][what] - before[zone][what]));
        let its = created.map(|created| created * block);
        assert_eq!(
            (created[0] + created[1], read, hit),
            (1, its.map(|bytes| 2 * bytes), its),
            "folio {folio}"
        );
        used = [0, 1].map(|zone| used[zone] || created[zone] > 0);
    }
    assert_eq!(used, [true; 2]);
}

#[test]
fn what_was_read_ahead_counts_where_its_folio_is() {
    let house = House::new(&Config { folio_size: Some(4096), ..small_and_large() });
    for block in 0..2000 {
        _ = house.read(block, 1);
        while house.world.go_on() {}
    }
    let [first, second] = [0, 1].map(|number| met(&house, number));
    assert_eq!(first[4] + second[4], house.number("readahead_used"));
    assert_eq!(first[5] + second[5], house.number("readahead_wasted"));
    for [_, ahead, .., used, wasted, _] in [first, second] {
        assert!(used > 100 && used + wasted <= ahead, "{used} used and {wasted} wasted of {ahead}");
    }
}
