//! Zones of memory: who gets a folio of which, and what reclaim does where a zone is dirty.

use spillway_policy::zones::{Reserve, Scope, Tail};

use super::*;

/// A MiB in zones of which the first is a fifth; two fifths may be unsaved, and are before anything is written back, a folio at a time.
fn small_and_large(scope: Scope, tail: Tail) -> Config {
    let division = Division { zones: vec![1, 4], scope, tail, ..Division::default() };
    let cut = Cut { region_bytes: 16384, shards: 1, ..Cut::default() };
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
fn zone(house: &House, number: usize) -> [u64; 5] {
    row(house, number)[..5].try_into().expect("five columns")
}

/// What is shown of a zone, behind its number.
pub(super) fn row(house: &House, number: usize) -> [u64; 17] {
    let Value::Rows(zones) = attributes(house.cache.clone()).get("zones").expect("it is an attribute") else {
        panic!("zones are rows")
    };
    let row: Vec<u64> = zones[number].iter().map(|value| value.number().expect("a number")).collect();
    assert_eq!(row[0], number as u64);
    row[1..].try_into().expect("eighteen columns")
}

/// Writes whole folios up the device, one after the other.
fn write_folios(house: &House, folios: std::ops::Range<usize>) {
    folios.for_each(|folio| house.write(folio * 4, folio as u8 | 1, 4));
}

#[test]
fn a_folio_is_dirtied_in_a_zone_below_its_share() {
    let unsaved = |scope| {
        let house = House::new(&small_and_large(scope, Tail::Rotate));
        let folios = house.number("unsaved_bytes_max") as usize / 16384;
        write_folios(&house, 0..folios);
        let [all, free, clean, dirty, moving] = zone(&house, 0);
        assert_eq!((all, moving), (free + clean + dirty + moving, 0));
        assert_eq!(dirty + zone(&house, 1)[3], house.number("dirty_bytes") / 4096);
        (all, dirty)
    };
    let (all, dirty) = unsaved(Scope::Zone);
    assert!(dirty > 0 && dirty <= all * 2 / 5 + 4, "{dirty} of {all}");
    let (all, dirty) = unsaved(Scope::Global);
    assert_eq!(dirty, all, "with one limit for all memory the first zone is dirty altogether");
}

#[test]
fn reclaim_finds_what_is_clean_in_each_zone_and_writes_nothing() {
    let house = House::new(&small_and_large(Scope::Zone, Tail::Rotate));
    for folio in 0..400 {
        write_folios(&house, folio..folio + 1);
        let [all, _, _, dirty, moving] = zone(&house, 0);
        assert!(dirty + moving <= all * 2 / 5 + 4, "{} of {all}", dirty + moving);
    }
    assert_eq!(house.number("reclaim_writes"), 0);
    assert!(house.number("folios_evicted") > 300);
    assert_eq!(house.read(4 * 399, 4), [143; 4]);
    house.flush();
    let [first, second] = [0, 1].map(|number| row(&house, number));
    assert_eq!((first[5] + second[5]) * 4096, house.number("dirtied_bytes"));
    assert_eq!((first[6] + second[6]) * 4096, house.number("written_back_bytes"));
    assert_eq!([first[7], second[7]], [0, 0], "reclaim wrote nothing");
    assert_eq!((first[8] + second[8], first[9] + second[9]), (400, 0), "all of them by writes");
    assert_eq!(first[11] + second[11], house.number("folios_evicted"));
}

/// As in 2011: the small zone is dirty altogether, and what reclaim meets there it writes.
#[test]
fn with_one_limit_for_all_reclaim_meets_dirty_folios_and_writes_them_where_it_is_to() {
    let writes = |tail| {
        let house = House::new(&small_and_large(Scope::Global, tail));
        // All of memory is clean; then the small zone becomes dirty, long before the limit.
        write_folios(&house, 0..100);
        house.flush();
        write_folios(&house, 100..118);
        let writes = house.number("reclaim_writes");
        house.flush();
        assert_eq!(house.number("unsaved_bytes"), 0);
        assert_eq!(house.number("written_back_bytes"), house.number("dirtied_bytes"), "each block once");
        for folio in (0..118).step_by(7) {
            assert_eq!(house.read(folio * 4, 4), [folio as u8 | 1; 4], "folio {folio}");
        }
        assert_eq!(house.survivor(117 * 4 + 3), 117, "a flush makes all durable");
        writes
    };
    assert_eq!(writes(Tail::Rotate), 0);
    assert!(writes(Tail::Write) > 0);
}

/// As in 2011: requests leave reclaim to the background, and find memory once it has some.
#[test]
fn with_little_kept_free_nobody_reclaims_but_the_background() {
    let mut config = small_and_large(Scope::Global, Tail::Write);
    config.division.reserve = Reserve::Little;
    let house = House::new(&config);
    write_folios(&house, 0..400);
    assert_eq!((house.read(4 * 399, 4), house.read(4 * 2000, 4)), ([143; 4].into(), [0; 4].into()));
    assert!(house.number("folios_evicted") > 300);
    assert_eq!(house.number("folios_evicted_directly"), 0);
    house.flush();
    assert_eq!(house.number("unsaved_bytes"), 0);
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
    [row[8], row[9], row[12], row[13], row[14], row[15], row[16]]
}

#[test]
fn reads_count_where_their_folio_is() {
    let config = Config { readahead_bytes_max: 0, ..small_and_large(Scope::Zone, Tail::Rotate) };
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
    let house = House::new(&Config { folio_size: Some(4096), ..small_and_large(Scope::Zone, Tail::Rotate) });
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
