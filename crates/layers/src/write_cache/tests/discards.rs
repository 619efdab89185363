//! Discards of cached blocks, over origins that can zero at no cost, that can only discard, and that can do neither.

use futures_util::future::{Either, select};

use super::*;

/// An origin that notes zeroings and discards, and may be poorer than the disk below.
struct Poor {
    below: Arc<dyn BlockDevice>,
    discards: bool,
    fast_zeroes: bool,
    noted: Mutex<Vec<(Op, u64, u64)>>,
}

impl BlockDevice for Poor {
    fn geometry(&self) -> Geometry {
        Geometry { discards: self.discards, fast_zeroes: self.fast_zeroes, ..self.below.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        let Request { op, range, flags, .. } = request;
        assert!(!flags.no_hole, "room may be freed");
        if matches!(op, Op::Discard | Op::WriteZeroes) {
            self.noted.lock().push((op, range.offset / BLOCK as u64, range.len / BLOCK as u64));
        }
        self.below.submit(request)
    }
}

fn over(house: &House, discards: bool, fast_zeroes: bool) -> (Arc<WriteCache>, Arc<Poor>) {
    let origin = Arc::new(Poor { below: house.device(0), discards, fast_zeroes, noted: Mutex::default() });
    (house.open_over(&config(), origin.clone(), house.device(1)).unwrap().0, origin)
}

/// Blocks 100 to 109 are 1 on the origin and 2 in the cache; then blocks 0 to 255 are discarded.
fn discarded(discards: bool, fast_zeroes: bool) -> (House, Arc<WriteCache>, Vec<(Op, u64, u64)>) {
    let house = House::new(1 << 20, 1 << 20);
    let (cache, origin) = over(&house, discards, fast_zeroes);
    house.write(&cache, 100, 1, 10);
    house.world.run(Answer::pending({
        let cache = cache.clone();
        async move {
            cache.core.drain(false).unwrap();
            cache.core.drained().await.unwrap();
        }
    }));
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
    let (house, cache, noted) = discarded(true, true);
    assert_eq!(noted, [(Op::WriteZeroes, 0, 256)]);
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (0, "0".into()));
}

#[test]
fn where_zeroes_would_be_written_cached_blocks_stay_and_the_rest_is_discarded() {
    let (house, cache, noted) = discarded(true, false);
    assert_eq!(noted, [(Op::Discard, 0, 100), (Op::Discard, 110, 146)]);
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "10".into()));
    house.flush(&cache);
    let house = house.again();
    let cache = house.open(&config()).unwrap();
    assert_eq!(block_100(&house, &cache), 2);
}

#[test]
fn where_nothing_can_be_discarded_nothing_is_done_and_nothing_is_offered() {
    let (house, cache, noted) = discarded(false, true);
    assert!(noted.is_empty() && !cache.geometry().discards, "{noted:?}");
    assert_eq!((block_100(&house, &cache), show(&cache, "dirty_blocks")), (2, "10".into()));
}

#[test]
fn gaps_that_are_not_worth_a_call_are_left() {
    let house = House::new(1 << 20, 1 << 20);
    let (cache, origin) = over(&house, true, false);
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
        let origin = Arc::new(Plain { below, discards, fast_zeroes });
        let (device, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
        let run = |submission: Submission| house.world.run(submission);
        contract::check(&Subject { device, run: &run, stores: true });
    }
}

/// The same without notes.
struct Plain {
    below: Arc<dyn BlockDevice>,
    discards: bool,
    fast_zeroes: bool,
}

impl BlockDevice for Plain {
    fn geometry(&self) -> Geometry {
        Geometry { discards: self.discards, fast_zeroes: self.fast_zeroes, ..self.below.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        self.below.submit(request)
    }
}

/// An origin that never answers zeroes.
struct Stuck(Arc<dyn BlockDevice>);

impl BlockDevice for Stuck {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::WriteZeroes => Answer::pending(std::future::pending()),
            _ => self.0.submit(request),
        }
    }
}

/// Write-back looked while a discard had the only dirty blocks. Nothing else happens once the discard is withdrawn.
#[test]
fn a_drain_goes_on_once_a_discard_that_was_in_its_way_is_withdrawn() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open_over(&config(), Arc::new(Stuck(house.device(0))), house.device(1)).unwrap().0;
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
