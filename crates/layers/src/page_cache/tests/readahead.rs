//! What is read before it is asked for, and what must not come of it.

use futures_util::future::join_all;
use spillway_policy::readahead::{STREAMS, WINDOWS_MAX};
use spillway_sim::disk::{Call, Effect, Fault};

use super::*;

fn mebibytes() -> Config {
    Config { page_cache_bytes_max: Some(12 << 20), ..mebibyte() }
}

/// A cache over a disk of which block `n` holds `n % 251`.
fn numbered(config: &Config, plan: Plan) -> House {
    let house = House::new(&mebibytes());
    for block in 0..4096 {
        house.write(block, (block % 251) as u8, 1);
    }
    house.flush();
    house.disk.cut();
    House::over(config, plan, house.disk.survivors())
}

fn slow() -> Plan {
    Plan { latency: Latency::Nvme, ..Plan::default() }
}

impl House {
    /// Reads a block, and lets the cache do what it then does.
    fn read_and_rest(&self, block: usize) {
        assert_eq!(self.read(block, 1), [(block % 251) as u8], "block {block}");
        while self.world.go_on() {}
    }

    /// The same, where something dirty would go below if the cache could do everything.
    fn read_and_pause(&self, block: usize) {
        assert_eq!(self.read(block, 1), [(block % 251) as u8], "block {block}");
        (0..10).for_each(|_| _ = self.world.go_on());
    }

    fn is_in_memory(&self, block: usize) -> bool {
        matches!(self.submit(Request::read((block * BLOCK) as u64, IoBuf::new(BLOCK))), Answer::Done(_))
    }
}

/// Blocks of no pattern, above the first thousand.
fn scattered(count: usize) -> impl Iterator<Item = usize> {
    let next =
        |state: &u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    std::iter::successors(Some(7), move |state| Some(next(state)))
        .map(|state| 1000 + (state >> 33) as usize % 3000)
        .take(count)
}

#[test]
fn readers_up_down_and_in_steps_find_in_memory_what_they_ask_for() {
    for (step, misses) in [(1, 3), (3, 4), (-1, 4), (-20, 4)] {
        let house = numbered(&mebibytes(), slow());
        let block = |nth: i64| (2048 + step * nth) as usize;
        (0..misses).for_each(|nth| house.read_and_rest(block(nth)));
        for nth in misses..80 {
            assert!(house.is_in_memory(block(nth)), "steps of {step}: the read {nth}");
            house.read_and_rest(block(nth));
        }
        assert!(house.number("readahead_used") > 10 && house.number("readahead_wasted") == 0, "{step}");
        let reads = house.below.take(Op::Read);
        let bytes: u64 = reads.iter().map(|(_, len)| len).sum();
        assert_eq!(bytes - misses as u64 * BLOCK as u64, house.number("readahead_bytes"), "{step}");
    }
}

#[test]
fn the_read_that_causes_it_is_below_first() {
    let house = numbered(&mebibytes(), slow());
    house.read_and_rest(100);
    house.read_and_rest(101);
    house.below.take(Op::Read);
    assert_eq!(house.read(102, 1), [102]);
    while house.world.go_on() {}
    let starts: Vec<u64> = house.below.take(Op::Read).iter().map(|(at, _)| at / BLOCK as u64).collect();
    assert_eq!(starts, [102, 103]);
}

#[test]
fn random_reads_cause_nothing_and_0_switches_it_off() {
    let house = numbered(&mebibytes(), slow());
    scattered(300).for_each(|block| house.read_and_rest(block));
    assert_eq!(house.number("readahead_bytes"), 0);
    let off = numbered(&Config { readahead_bytes_max: Some(0), ..mebibytes() }, slow());
    (0..300).for_each(|block| off.read_and_rest(block));
    assert_eq!((off.number("readahead_bytes"), off.below.take(Op::Read).len()), (0, 300));
}

#[test]
fn an_error_is_not_the_clients_and_ends_it() {
    let fault = Fault { call: Some(Call::Read), nth: 3, effect: Effect::Fail(Kind::Io), sticky: false };
    let house = numbered(&mebibytes(), Plan { faults: vec![fault], ..slow() });
    (200..203).for_each(|block| house.read_and_rest(block));
    assert!(!house.is_in_memory(203), "what was to be read ahead failed");
    house.below.take(Op::Read);
    (203..206).for_each(|block| house.read_and_rest(block));
    assert_eq!(house.below.take(Op::Read).len(), 3 + 1, "it is proven again by three reads");
    house.flush();
}

#[test]
fn what_leaves_unread_is_counted() {
    let house = numbered(&mebibyte(), slow());
    (200..203).for_each(|block| house.read_and_rest(block));
    assert!(house.number("readahead_bytes") > 0);
    scattered(300).for_each(|block| house.read_and_rest(block));
    assert_eq!((house.number("readahead_used"), house.number("readahead_wasted")), (0, 1));
}

#[test]
fn what_is_dirty_or_hot_stays_whatever_is_read_ahead() {
    let long = Config { dirty_expire: 86_400_000, dirty_ratio: 100, ..mebibyte() };
    let all = Config { folio_size: Some(4096), dirty_background_ratio: 100, ..long };
    let house = numbered(&all, slow());
    (0..60).for_each(|block| house.write(4000 + block, 255, 1));
    for _ in 0..4 {
        (0..60).rev().step_by(2).for_each(|block| _ = house.read(block, 1));
    }
    (1000..3500).for_each(|block| house.read_and_pause(block));
    assert!(house.number("readahead_used") > 1500);
    assert_eq!(house.number("dirty_bytes"), 60 * BLOCK as u64);
    let hot = (0..60).rev().step_by(2).filter(|block| house.is_in_memory(*block)).count();
    assert!(hot >= 28, "{hot} of 30");
}

#[test]
fn what_is_written_or_discarded_while_it_is_read_ahead_keeps_its_newer_content() {
    let house = numbered(&mebibytes(), slow());
    (100..103).for_each(|block| _ = house.read(block, 1));
    house.until("a read ahead", || {
        house.below.seen.lock().iter().any(|seen| seen.1.offset == 103 * BLOCK as u64)
    });
    house.write(105, 255, 1);
    let range = ByteRange::new(107 * BLOCK as u64, BLOCK as u64);
    assert_eq!(house.ask(Request::bare(Op::WriteZeroes, range)).result, Ok(()));
    while house.world.go_on() {}
    assert_eq!(house.read(103, 6), [103, 104, 255, 106, 0, 108]);
}

const M: u64 = 1 << 20;

/// Prefers requests of so many bytes.
struct Preferring(Arc<Recorder>, u32);

impl BlockDevice for Preferring {
    fn geometry(&self) -> Geometry {
        Geometry { optimal_io: self.1, ..self.0.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        self.0.submit(request)
    }
}

/// A cache of so many bytes over such a disk.
fn preferring(optimal_io: u32, bytes: u64, readahead_bytes_max: Option<u64>) -> House {
    let mut house = numbered(&mebibytes(), slow());
    let config = Config { page_cache_bytes_max: Some(bytes), readahead_bytes_max, ..mebibyte() };
    let below = Arc::new(Preferring(house.below.clone(), optimal_io));
    let regions: Arc<dyn Regions> = house.regions.clone();
    house.budget = Budget::new(512 * M);
    let opened =
        PageCache::open(&config, below, house.world.clone(), &regions, &house.budget, Works::default());
    house.cache = opened.expect("it opens").0;
    house
}

#[test]
fn windows_reach_up_to_what_the_device_below_prefers_where_memory_allows() {
    for (optimal_io, bytes, given, shown, reach) in [
        (4 << 20, 256 * M, None, 4 * M, 4 * M..8 * M),
        (32 << 20, 256 * M, None, 4 * M, 4 * M..8 * M),
        (4 << 20, 256 * M, Some(M), M, M..2 * M),
        (4096, 256 * M, None, M, M..2 * M),
        (4 << 20, 12 * M, None, 4 * M, M / 4..M * 3 / 4),
    ] {
        let house = preferring(optimal_io, bytes, given);
        assert_eq!(house.number("readahead_bytes_max"), shown);
        let (mut end, mut ahead) = (0, 0);
        for block in (0..2048).step_by(32) {
            assert_eq!(house.read(block, 32)[31], ((block + 31) % 251) as u8);
            while house.world.go_on() {}
            end = house.below.take(Op::Read).iter().map(|(at, len)| at + len).fold(end, u64::max);
            ahead = ahead.max(end - ((block + 32) * BLOCK) as u64);
        }
        assert!(reach.contains(&ahead), "{ahead} bytes ahead, not {reach:?}");
    }
}

/// Tasks that are no windows, at most: those of reclaim and of the file below.
const OTHER_TASKS: usize = 8;

impl House {
    /// Submits three reads that follow each other at each of these blocks, all at once, and goes on until they are answered; the most tasks that
    /// there were beside these clients.
    fn storm(&self, places: impl Iterator<Item = usize>) -> usize {
        let read = |block: usize| self.submit(Request::read((block * BLOCK) as u64, IoBuf::new(BLOCK)));
        let left = Rc::new(Cell::new(0));
        for place in places {
            let (reads, answered) = (join_all([0, 1, 2].map(|nth| read(place + nth))), left.clone());
            left.set(left.get() + 1);
            self.world.spawn_here(Box::pin(async move {
                assert!(reads.await.iter().all(|reply| reply.result.is_ok()));
                answered.set(answered.get() - 1);
            }));
        }
        let mut tasks = 0;
        while left.get() > 0 {
            tasks = tasks.max(self.world.turn().saturating_sub(left.get()));
            self.world.go_on();
        }
        tasks
    }
}

fn places() -> impl Iterator<Item = usize> {
    (0..100).map(|nth| nth * 37 % 100 * 40)
}

fn jumping() -> Plan {
    Plan { latency: Latency::Disk, ..Plan::default() }
}

#[test]
fn many_short_streams_have_few_windows_under_way() {
    let house = numbered(&mebibytes(), jumping());
    let tasks = house.storm(places());
    assert!(tasks <= WINDOWS_MAX + OTHER_TASKS, "{tasks} tasks");
}

#[test]
fn what_is_left_of_streams_that_are_gone_is_not_read() {
    let house = numbered(&mebibytes(), jumping());
    house.storm(places());
    house.below.take(Op::Read);
    while house.world.go_on() {}
    // A first window is of four folios; what is on its way when the clients end has buffers.
    let most = STREAMS * 4 * 16384 + house.cache.core.streams.buffers.bytes();
    let bytes: u64 = house.below.take(Op::Read).iter().map(|(_, len)| len).sum();
    assert!(bytes <= most as u64, "{bytes} bytes after the clients, not {most}");
}

#[test]
fn a_stream_after_many_short_ones_is_read_ahead() {
    let house = numbered(&mebibytes(), jumping());
    house.storm(places());
    (4050..4053).for_each(|block| _ = house.read(block, 1));
    while house.world.go_on() {}
    for block in 4053..4090 {
        assert!(house.is_in_memory(block), "the block {block}");
        house.read_and_rest(block);
    }
}

/// Its window has two pieces, of which the first has all of the buffers, and takes longer than the read that causes it.
#[test]
fn a_cache_that_is_closed_reads_nothing_ahead_and_is_held_by_nobody() {
    let house = numbered(&mebibytes(), Plan { latency: Latency::UsbStick, ..Plan::default() });
    (0..3).for_each(|nth| _ = house.read(1000 + 32 * nth, 32));
    assert_eq!(house.cache.core.streams.found.lock().under_way(), 1, "a piece is on its way");
    let reads = house.below.take(Op::Read);
    assert_eq!(reads.len(), 3 + 1, "the other waits for a buffer: {reads:?}");
    assert_eq!(house.world.run(Answer::pending(house.cache.close())), Ok(()));
    assert_eq!(Arc::strong_count(&house.cache.core), 1, "something holds it, and the disk below");
    while house.world.go_on() {}
    let reads = house.below.take(Op::Read);
    assert!(reads.is_empty(), "begun after the close: {reads:?}");
}

#[test]
fn a_cache_is_closed_though_what_is_read_ahead_never_comes() {
    let fault = Fault { call: Some(Call::Read), nth: 3, effect: Effect::Hang(None), sticky: false };
    let house = numbered(&mebibytes(), Plan { faults: vec![fault], ..slow() });
    (100..103).for_each(|block| _ = house.read(block, 1));
    let before = house.world.now();
    assert_eq!(house.world.run(Answer::pending(house.cache.close())), Ok(()));
    assert!(house.world.now() - before < Duration::from_secs(5));
    assert_eq!(house.disk.hung().len(), 1, "it was on its way");
}
