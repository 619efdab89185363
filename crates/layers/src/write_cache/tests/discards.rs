//! Discards of cached blocks, over origins that can zero at no cost, that can only discard, and that can do neither.

use futures_util::future::{Either, select};
use spillway_core::Regions;
use spillway_sim::memory::VecRegions;

use super::*;
use crate::page_cache::{self, PageCache};
use crate::write_cache::index::block::OriginBlock;

/// An origin that notes zeroings and discards, and may be poorer than the disk below.
struct Poor {
    below: Arc<dyn BlockDevice>,
    discards: bool,
    fast_zeroes: bool,
    /// It says that it zeroes at no cost, and refuses when it is asked.
    refuses: bool,
    noted: Mutex<Vec<(Op, u64, u64)>>,
}

impl BlockDevice for Poor {
    fn geometry(&self) -> Geometry {
        Geometry { discards: self.discards, fast_zeroes: self.fast_zeroes, ..self.below.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        let Request { op, range, flags, .. } = request;
        assert!(!flags.no_hole, "room may be freed");
        assert_eq!(flags.free, op == Op::WriteZeroes, "zeroes have to be free");
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            self.noted.lock().push((op, range.offset / BLOCK as u64, range.len / BLOCK as u64));
        }
        if op == Op::WriteZeroes && self.refuses {
            return Answer::Done(request.answer(Err(Kind::NotSupported)));
        }
        self.below.submit(request)
    }
}

fn over(house: &House, [discards, fast_zeroes, refuses]: [bool; 3]) -> (Arc<WriteCache>, Arc<Poor>) {
    let (below, noted) = (house.device(0), Mutex::default());
    let origin = Arc::new(Poor { below, discards, fast_zeroes, refuses, noted });
    (house.open_over(&config(), origin.clone(), house.device(1)).unwrap().0, origin)
}

/// Writes everything back.
fn drain(house: &House, cache: &Arc<WriteCache>) {
    let cache = cache.clone();
    house.world.run(Answer::pending(async move {
        cache.core.drain(false).unwrap();
        cache.core.drained().await.unwrap();
    }));
}

/// Blocks 100 to 109 are 1 on the origin and 2 in the cache; then blocks 0 to 255 are discarded.
fn discarded(abilities: [bool; 3]) -> (House, Arc<WriteCache>, Vec<(Op, u64, u64)>) {
    let house = House::new(1 << 20, 1 << 20);
    let (cache, origin) = over(&house, abilities);
    house.write(&cache, 100, 1, 10);
    drain(&house, &cache);
    house.write(&cache, 100, 2, 10);
    let discard = Request::bare(Op::Discard, ByteRange::new(0, 1 << 20));
    assert_eq!(house.ask(cache.clone(), discard).result, Ok(()));
    let noted = std::mem::take(&mut *origin.noted.lock());
    (house, cache, noted)
}

fn block_100(house: &House, cache: &Arc<WriteCache>) -> u8 {
    let found = house.read(cache.clone(), 100 * BLOCK as u64, 10 * BLOCK);
    assert!(found.iter().all(|byte| *byte == found[0]));
    found[0]
}

#[test]
fn where_zeroes_cost_nothing_cached_blocks_are_dropped() {
    let (house, cache, noted) = discarded([true, true, false]);
    assert_eq!(noted, [(Op::WriteZeroes, 0, 256)]);
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (0, "0".into()));
}

#[test]
fn where_zeroes_would_be_written_cached_blocks_stay_and_the_rest_is_discarded() {
    let (house, cache, noted) = discarded([true, false, false]);
    assert_eq!(noted, [(Op::Discard, 0, 100), (Op::Discard, 110, 146)]);
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "10".into()));
    house.flush(&cache);
    let house = house.again();
    let cache = house.open(&config()).unwrap();
    assert_eq!(block_100(&house, &cache), 2);
}

/// As a server does that knows the flag for zeroes at no cost, over what cannot.
#[test]
fn where_zeroes_at_no_cost_are_refused_cached_blocks_stay_and_the_rest_is_discarded() {
    let (house, cache, noted) = discarded([true, true, true]);
    assert_eq!(noted, [(Op::WriteZeroes, 0, 256), (Op::Discard, 0, 100), (Op::Discard, 110, 146)]);
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "10".into()));
    drain(&house, &cache);
    assert_eq!(house.read(house.device(0), 100 * BLOCK as u64, 10 * BLOCK), [2; 10 * BLOCK]);
}

/// What is dirty in a page cache above, and what is in the cache: neither takes room.
#[test]
fn a_discard_through_a_page_cache_takes_no_room() {
    let house = House::new(1 << 20, 1 << 20);
    let (cache, origin) = over(&house, [true, true, false]);
    let regions: Arc<dyn Regions> = Arc::new(VecRegions::new(Budget::UNLIMITED));
    let paged = page_cache::Config { page_cache_bytes_max: Some(1 << 20), ..page_cache::Config::default() };
    let (env, works) = (house.world.clone(), Works::default());
    let (paged, _) = PageCache::open(&paged, cache.clone(), env, &regions, &house.budget, works).unwrap();
    let write = |value| {
        let mut buf = IoBuf::new(10 * BLOCK);
        buf.fill(value);
        house.ask(paged.clone(), Request::write(100 * BLOCK as u64, buf)).result.unwrap();
    };
    let flush = || house.ask(paged.clone(), Request::flush()).result.unwrap();
    write(1);
    flush();
    drain(&house, &cache);
    write(2);
    flush();
    assert_eq!(show(&cache, "dirty_blocks"), "10");
    write(3);
    let before = number(&cache, "writeback_ios");
    let range = ByteRange::new(100 * BLOCK as u64, 10 * BLOCK as u64);
    house.ask(paged.clone(), Request::bare(Op::Discard, range)).result.unwrap();
    assert_eq!(show(&cache, "dirty_blocks"), "0");
    flush();
    drain(&house, &cache);
    assert_eq!(number(&cache, "writeback_ios"), before, "nothing was written");
    assert_eq!(*origin.noted.lock(), [(Op::WriteZeroes, 100, 10)]);
    assert_eq!(house.read(house.device(0), range.offset, 10 * BLOCK), [0; 10 * BLOCK]);
}

#[test]
fn where_nothing_can_be_discarded_nothing_is_done_and_nothing_is_offered() {
    let (house, cache, noted) = discarded([false, true, false]);
    assert!(noted.is_empty() && !cache.geometry().discards, "{noted:?}");
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "10".into()));
}

#[test]
fn gaps_that_are_not_worth_a_call_are_left() {
    let house = House::new(1 << 20, 1 << 20);
    let (cache, origin) = over(&house, [true, false, false]);
    (0..256).step_by(10).for_each(|block| house.write(&cache, block, 3, 1));
    house.flush(&cache);
    let discard = |first: u64, blocks: u64| {
        let range = ByteRange::new(first * BLOCK as u64, blocks * BLOCK as u64);
        assert_eq!(house.ask(cache.clone(), Request::bare(Op::Discard, range)).result, Ok(()));
    };
    discard(0, 256);
    assert!(origin.noted.lock().is_empty(), "nine blocks each");
    discard(1, 9);
    assert_eq!(*origin.noted.lock(), [(Op::Discard, 1, 9)], "all that was asked for");
}

#[test]
fn it_keeps_the_contract_over_poor_origins() {
    for (discards, fast_zeroes) in [(true, false), (false, true), (false, false)] {
        let house = House::new(1 << 20, 128 << 10);
        let below = house.device(0);
        let geometry = Geometry { discards, fast_zeroes, ..below.geometry() };
        let origin = by_way_as(geometry, below, |below, request| below.submit(request));
        let (device, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
        let run = |submission: Submission| house.world.run(submission);
        contract::check(&Subject { device, run: &run, stores: true });
    }
}

/// Write-back looked while a discard had the only dirty blocks. Nothing else happens once the discard is withdrawn.
#[test]
fn a_drain_goes_on_once_a_discard_that_was_in_its_way_is_withdrawn() {
    let house = House::new(1 << 20, 1 << 20);
    // It never answers zeroes.
    let origin = by_way_of(house.device(0), |below, request| match request.op {
        Op::WriteZeroes => Answer::pending(std::future::pending()),
        _ => below.submit(request),
    });
    let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
    house.write(&cache, 100, 2, 10);
    house.flush(&cache);
    let (env, device) = (house.world.clone(), cache.clone());
    house.world.run(Answer::pending(async move {
        let range = ByteRange::new(100 * BLOCK as u64, 10 * BLOCK as u64);
        let mut discard =
            Box::pin(async { Seam::new(device.clone()).submit(Request::bare(Op::Discard, range)).await });
        let second = || env.sleep(Duration::from_secs(1));
        assert!(matches!(select(&mut discard, second()).await, Either::Right(_)), "its origin is stuck");
        device.core.drain(false).unwrap();
        assert!(matches!(select(&mut discard, second()).await, Either::Right(_)));
        assert_eq!(device.core.index.held(), 10, "the discard has them");
        drop(discard);
        device.core.drained().await.unwrap();
    }));
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "0".into()));
}

/// Write-back looked while a discard had as many blocks as may be on their way. Nothing else happens once the discard has ended.
#[test]
fn the_cleaner_goes_on_once_a_discard_that_was_in_its_way_has_ended() {
    let house = House::new(32 << 20, 32 << 20);
    let gate = Arc::new((AtomicBool::new(false), Changes::default()));
    let shut = gate.clone();
    let origin = by_way_of(house.device(0), move |below, request| {
        let (gate, waits) = (shut.clone(), request.op == Op::WriteZeroes);
        let answer = below.submit(request);
        Answer::pending(async move {
            if waits {
                gate.1.until(|| gate.0.load(Ordering::Relaxed).then_some(())).await;
            }
            answer.await
        })
    });
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (cache, _) = house.open_over(&still, origin, house.device(1)).unwrap();
    let discarded = cache.core.workspaces.batches.bytes() / BLOCK + 1;
    house.write(&cache, 0, 7, discarded);
    house.write(&cache, 4000, 8, 10);
    house.flush(&cache);
    let range = ByteRange::new(0, (discarded * BLOCK) as u64);
    let discard = Seam::new(cache.clone()).submit(Request::bare(Op::Discard, range));
    house.world.spawn_here(Box::pin(async move { assert_eq!(discard.await.result, Ok(())) }));
    house.wait_for("the discard", || number(&cache, "writeback_blocks") == discarded as u64);
    set(&cache, "cleaner", "1").unwrap();
    while house.world.go_on() {}
    assert_eq!(number(&cache, "dirty_blocks"), discarded as u64 + 10, "there is no room for others");
    gate.0.store(true, Ordering::Relaxed);
    gate.1.wake_all();
    house.wait_for("write-back", || number(&cache, "dirty_blocks") == 0);
    assert_eq!(house.read(house.device(0), 4000 * BLOCK as u64, 10 * BLOCK), [8; 10 * BLOCK]);
}

/// The end of a large request comes to them in slices, and others read and flush in between.
#[test]
fn zeroes_that_were_read_and_then_flushed_stay() {
    let (house, count) = (House::new(32 << 20, 32 << 20), 5000);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let cache = house.open(&still).unwrap();
    house.write(&cache, 0, 7, count);
    house.flush(&cache);
    let ended = || cache.core.bypass.ended.load(Ordering::Relaxed);
    let (before, mut context) = (ended(), std::task::Context::from_waker(std::task::Waker::noop()));
    let begin = |request| match Seam::new(cache.clone()).submit(request) {
        Answer::Pending(begun) => begun,
        _ => panic!("it waits"),
    };
    // It goes on when it is polled, and not when others wait.
    let mut zeroing = begin(Request::bare(Op::WriteZeroes, ByteRange::new(0, (count * BLOCK) as u64)));
    while ended() == before {
        assert!(zeroing.as_mut().poll(&mut context).is_pending(), "the origin has the zeroes");
        house.world.go_on();
    }
    let (mut flush, last) = (begin(Request::flush()), OriginBlock(count as u32 - 1));
    let mut flushed = false;
    while cache.core.index.presence(last, 1).0 {
        flushed |= flush.as_mut().poll(&mut context).is_ready();
        assert!(zeroing.as_mut().poll(&mut context).is_pending(), "it ends in slices");
        house.world.go_on();
    }
    while !flushed {
        flushed = flush.as_mut().poll(&mut context).is_ready();
        house.world.go_on();
    }
    assert!(cache.core.index.presence(OriginBlock(0), 1).0, "a first slice has ended");
    assert_eq!(house.read(cache.clone(), u64::from(last.0) * BLOCK as u64, BLOCK), [0; BLOCK]);
    house.flush(&cache);
    drop((zeroing, flush));
    let house = house.again();
    let cache = house.open(&still).unwrap();
    assert_eq!(house.read(cache, u64::from(last.0) * BLOCK as u64, BLOCK), [0; BLOCK]);
}
