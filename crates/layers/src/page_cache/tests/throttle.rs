//! Writers that are faster than the disk.

use spillway_core::random::Random;

use super::*;

/// A cache of 32 MiB of which 18 may be unsaved; writers run free up to 12.
pub(super) fn roomy() -> Config {
    Config {
        page_cache_bytes_max: Some(32 << 20),
        dirty_background_ratio: 20,
        dirty_ratio: 60,
        folio_size: Some(16384),
        cut: Cut { region_bytes: 256 << 10, shards: 4 },
        ..Config::default()
    }
}

pub(super) fn slow(config: &Config, latency: Latency) -> House {
    House::over(config, Plan { latency, ..Plan::default() }, Medium::new(128 << 20))
}

const WRITERS: u64 = 8;

/// Bytes of the device in which a writer writes, and of a write.
const PART: u64 = (128 << 20) / WRITERS;
const WRITE: u64 = 32 << 10;

/// So many writers that never rest, each of which writes `count` times up its part of the device; how long each write took.
fn write_without_rest(house: &House, round: u64, count: u64) -> Vec<Duration> {
    let writer = |number: u64| {
        let (world, seam) = (house.world.clone(), Seam::new(house.cache.clone()));
        let mut random = Random(round << 8 | number);
        Answer::pending(async move {
            let (mut took, first) = (Vec::new(), random.below(PART / WRITE));
            for write in first..first + count {
                let begun = world.now();
                let offset = number * PART + write * WRITE % PART;
                let request = Request::write(offset, IoBuf::new(WRITE as usize));
                assert_eq!(seam.submit(request).await.result, Ok(()));
                took.push(world.now() - begun);
            }
            took
        })
    };
    house.world.run_all((0..WRITERS).map(writer).collect()).concat()
}

#[test]
fn writers_faster_than_the_disk_are_slowed_down_to_its_speed_before_the_limit() {
    for latency in [Latency::UsbStick, Latency::Disk, Latency::SataSsd] {
        let house = slow(&roomy(), latency);
        // The first writes fill what may be unsaved, and show how fast the disk is.
        (0..3).for_each(|round| _ = write_without_rest(&house, round, 200));
        let (blocked, begun) = (house.number("writes_blocked"), house.world.now());
        let before = house.number("written_back_bytes");
        let took = (3..6).flat_map(|round| write_without_rest(&house, round, 200)).collect::<Vec<_>>();
        let longest = took.iter().max().expect("some");
        let mean = took.iter().sum::<Duration>() / took.len() as u32;
        let bytes = took.len() as u64 * WRITE;
        let context = format!("{latency:?}: {longest:?}, on average {mean:?}");
        assert_eq!(house.number("writes_blocked"), blocked, "none reaches the limit; {context}");
        assert!(*longest <= mean * 3 + Duration::from_millis(10), "{context}");
        let below = house.number("written_back_bytes") - before;
        let seconds = (house.world.now() - begun).as_secs_f64();
        assert!(below.abs_diff(bytes) < bytes / 10, "{below} bytes for {bytes} in {seconds} s; {context}");
        assert!(house.number("throttled_writes") > 0 && house.number("throttled_time") > 0, "{context}");
        house.flush();
    }
}

#[test]
fn pauses_count_where_the_folio_that_was_dirtied_is() {
    let house = slow(
        &Config { division: Division { zones: vec![1, 4], ..Division::default() }, ..roomy() },
        Latency::Disk,
    );
    (0..6).for_each(|round| _ = write_without_rest(&house, round, 200));
    let paused = [0, 1].map(|zone| super::zones::met(&house, zone)[6]);
    let sum = house.number("throttled_time");
    assert!(paused[0] > 0 && paused[1] > paused[0], "{paused:?} ms");
    assert!(sum - (paused[0] + paused[1]) <= 1, "{paused:?} of {sum} ms, each rounded down");
    house.flush();
}

#[test]
fn a_cache_full_of_clean_data_throttles_nobody() {
    let house = slow(&roomy(), Latency::UsbStick);
    (0..(64 << 20) / BLOCK).step_by(1024).for_each(|block| _ = house.read(block, 1024));
    assert!(house.number("folio_bytes") + (2 << 20) > house.number("folio_bytes_max"), "it is full");
    let free = house.number("nr_dirty_background_threshold") as usize;
    for block in (0..free).step_by(8) {
        let answer = house.submit(filled(block, 1, 8));
        assert!(matches!(answer, Answer::Done(Reply { result: Ok(()), .. })), "block {block} of {free}");
    }
    assert_eq!((house.number("throttled_writes"), house.number("writes_blocked")), (0, 0));
}

/// A block in each folio is dirty: all folios, and hardly any memory.
#[test]
fn dirty_blocks_count_not_the_folios_that_they_lie_in() {
    let cut = Cut { shards: 1, ..Cut::default() };
    let house = slow(&Config { folio_size: Some(2 << 20), cut, ..roomy() }, Latency::UsbStick);
    let folios = house.number("folio_bytes_max") >> 21;
    // One is left free: else reclaim would have to make room.
    let folios = folios - 1;
    for folio in 0..folios as usize {
        assert!(matches!(house.submit(filled(folio * 512, 1, 1)), Answer::Done(_)), "folio {folio}");
    }
    assert_eq!((house.number("nr_dirty"), house.number("throttled_writes")), (folios, 0));
    while house.world.now() < Duration::from_secs(2) && house.world.go_on() {}
    assert_eq!(house.number("nr_writeback") + house.number("written_back_bytes"), 0);
}

#[test]
fn who_writes_over_what_is_dirty_adds_nothing_and_waits_for_nothing() {
    let house = slow(&roomy(), Latency::UsbStick);
    let mut block = 0;
    let paused = loop {
        match house.submit(filled(block, 1, 8)) {
            Answer::Done(_) => block += 8,
            Answer::Pending(pause) => break pause,
        }
    };
    let freerun = house.number("nr_dirty_background_threshold").midpoint(house.number("nr_dirty_threshold"));
    assert!((block as u64 + 8).abs_diff(freerun) <= 8, "it is the first above {freerun}, not block {block}");
    for block in (0..block / 256).map(|part| part * 256) {
        assert!(matches!(house.submit(filled(block, 2, 256)), Answer::Done(_)), "block {block}");
    }
    assert_eq!(house.world.run(Answer::Pending(paused)).result, Ok(()));
    house.flush();
}

/// Nothing may leave any more: pauses would be for nothing.
#[test]
fn what_fails_to_be_written_back_makes_nobody_pause() {
    let house = House::over(
        &roomy(),
        Plan { faults: super::failures::failing(true).faults, ..Plan::default() },
        Medium::new(32 << 20),
    );
    house.write(0, 1, 1);
    assert_eq!(house.ask(Request::flush()).result, Err(Kind::Io));
    let limit = house.number("nr_dirty_threshold") as usize;
    (1..limit / 8).for_each(|write| house.write(write * 8, 1, 8));
    assert_eq!(house.number("throttled_time"), 0);
}
