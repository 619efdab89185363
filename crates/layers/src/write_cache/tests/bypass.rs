//! Writes that bypass the cache: what a flush covers of them, and how much of them may wait for one.

use super::*;

const BYPASSING: fn() -> Config = || Config { cleaner: true, ..config() };

#[test]
fn the_first_flush_covers_what_bypassed_the_cache_of_a_killed_server() {
    let house = House::new(4 << 20, 1 << 20);
    let cache = house.open(&BYPASSING()).unwrap();
    house.flush(&cache);
    (0..1000).for_each(|block| house.write(&cache, block, 7, 1));
    assert_eq!((show(&cache, "writes_around"), show(&cache, "dirty_blocks")), ("1000".into(), "0".into()));
    // The process dies: its disks keep their power, and what they have not written yet.
    house.world.power_off();
    drop(cache);
    let cache = house.open(&BYPASSING()).unwrap();
    house.flush(&cache);
    let house = house.again();
    let origin = house.read(house.device(0), 0, 1000 * BLOCK);
    assert_eq!(origin.iter().filter(|byte| **byte != 7).count(), 0, "bytes lost");
}

/// Write-back that has begun goes on to the low watermark, also where what was left was being bypassed for a moment.
#[test]
fn write_back_goes_on_once_a_bypass_is_out_of_its_way() {
    let house = House::new(4 << 20, 1 << 20);
    let marks = Config { high_watermark: 50, low_watermark: 10, pause_writeback: Some(0), ..config() };
    let cache = house.open(&marks).unwrap();
    let dirty = || number(&cache, "dirty_blocks");
    let busy = crate::write_cache::bypass::Busy::new(
        cache.core.clone(),
        crate::write_cache::index::block::OriginBlock(0),
        100,
    );
    house.write(&cache, 0, 1, 140);
    house.flush(&cache);
    house.wait_for("what nobody holds", || dirty() == 100 && show(&cache, "writeback_blocks") == "0");
    let begin = house.world.now();
    while house.world.now() < begin + Duration::from_millis(500) && house.world.go_on() {}
    assert_eq!(dirty(), 100, "what is held stays");
    drop(busy);
    house.wait_for("what was held", || dirty() <= 25);
}

/// All that clients write to other blocks bypasses the cache then, and is no reason to pause.
#[test]
fn the_cleaner_empties_the_cache_beside_writes_that_bypass_it() {
    let house = House::new(4 << 20, 1 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let cache = house.open(&still).unwrap();
    house.write(&cache, 0, 1, 100);
    house.flush(&cache);
    set(&cache, "metadata_only", "1").unwrap();
    house.write(&cache, 500, 2, 1);
    assert_eq!((show(&cache, "writes_around"), show(&cache, "dirty_blocks")), ("1".into(), "100".into()));
    set(&cache, "cleaner", "1").unwrap();
    // More often than once in the time that write-back pauses for otherwise.
    let is_emptied = (0..60).any(|_| {
        house.write(&cache, 500, 2, 1);
        house.world.run(Answer::pending(house.world.sleep(Duration::from_secs(1))));
        number(&cache, "dirty_blocks") == 0
    });
    assert!(is_emptied, "{} blocks stay", show(&cache, "dirty_blocks"));
}

/// An origin that counts bytes written since the last flush began. It can make zeroes only by writing them.
struct Counting {
    below: Arc<dyn BlockDevice>,
    unflushed: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
    all: Arc<AtomicU64>,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        Geometry { fast_zeroes: false, ..self.below.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        let Request { op, range, .. } = request;
        match op {
            Op::Write | Op::WriteZeroes => {
                let now = self.unflushed.fetch_add(range.len, Ordering::Relaxed) + range.len;
                self.most.fetch_max(now, Ordering::Relaxed);
                self.all.fetch_add(range.len, Ordering::Relaxed);
            }
            Op::Flush => self.unflushed.store(0, Ordering::Relaxed),
            _ => {}
        }
        if op != Op::WriteZeroes {
            return self.below.submit(request);
        }
        let write = Request::write(range.offset, IoBuf::new(range.len as usize));
        let answer = self.below.submit(write);
        Answer::pending(async move { request.answer(answer.await.result) })
    }
}

/// A cache over such an origin, and the most that was not flushed there.
fn counted(house: &House, config: &Config) -> (Arc<WriteCache>, Arc<AtomicU64>) {
    let (cache, most, _) = counted_in_all(house, config);
    (cache, most)
}

/// The same, and all that was written there.
fn counted_in_all(house: &House, config: &Config) -> (Arc<WriteCache>, Arc<AtomicU64>, Arc<AtomicU64>) {
    let (unflushed, most, all) = (Arc::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let origin = Counting { below: house.device(0), unflushed, most: most.clone(), all: all.clone() };
    let (cache, _) = house.open_over(config, Arc::new(origin), house.device(1)).unwrap();
    (cache, most, all)
}

/// Requests over 64 MiB, four at a time, to an origin that takes 43 MB/s then; returns the most that was not flushed.
fn most_unflushed(config: &Config, len: u64, request: fn(ByteRange) -> Request) -> u64 {
    let house = House::slow(64 << 20, 1 << 20);
    let (cache, most) = counted(&house, config);
    let places: Vec<u64> = (0..64 << 20).step_by(len as usize).collect();
    for four in places.chunks(4) {
        let submit = |&at: &u64| Seam::new(cache.clone()).submit(request(ByteRange::new(at, len)));
        let replies = house.world.run_all(four.iter().map(submit).collect());
        assert!(replies.iter().all(|reply| reply.result == Ok(())));
    }
    most.load(Ordering::Relaxed)
}

/// Half a second of the origin, 20.5 MiB, and four requests of 2 MiB in flight.
const MOST: u64 = 29 << 20;

fn write(range: ByteRange) -> Request {
    let mut bytes = IoBuf::new(range.len as usize);
    bytes.fill(3);
    Request::write(range.offset, bytes)
}

#[test]
fn what_bypasses_the_cache_is_flushed_in_time() {
    let bypassing = most_unflushed(&BYPASSING(), 256 << 10, write);
    assert!((2 << 20..MOST).contains(&bypassing), "cleaner: {bypassing} bytes");
    let full = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let full = most_unflushed(&full, 256 << 10, write);
    assert!(full < MOST, "a full cache: {full} bytes");
}

#[test]
fn zeroes_that_the_origin_has_to_write_are_flushed_in_time() {
    for len in [2 << 20, 16 << 20] {
        let zeroes = |range| Request::bare(Op::WriteZeroes, range);
        let unflushed = most_unflushed(&config(), len, zeroes);
        assert!((2 << 20..MOST).contains(&unflushed), "zeroes of {len} bytes each: {unflushed} bytes");
    }
}

/// What bypasses the cache goes in the order of arrival, a part at a time: small writes without end do not keep a large one.
#[test]
fn a_large_write_bypasses_beside_small_ones_without_end() {
    const SMALL: u64 = 64 << 10;
    for large in [write, |range| Request::bare(Op::WriteZeroes, range)] {
        let house = House::slow(64 << 20, 1 << 20);
        let (cache, _) = counted(&house, &BYPASSING());
        let (done, others) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |lane: u64| {
            let (seam, done, others) = (Seam::new(cache.clone()), done.clone(), others.clone());
            Answer::pending(async move {
                for nth in 0.. {
                    if done.load(Ordering::Relaxed) || others.load(Ordering::Relaxed) >= 512 << 20 {
                        break;
                    }
                    let at = (32 << 20) + (lane << 20) + nth % 16 * SMALL;
                    assert_eq!(seam.submit(write(ByteRange::new(at, SMALL))).await.result, Ok(()));
                    others.fetch_add(SMALL, Ordering::Relaxed);
                }
                0
            })
        };
        let one = {
            let (seam, done, others) = (Seam::new(cache.clone()), done.clone(), others.clone());
            let env = house.world.clone();
            Answer::pending(async move {
                // The others come first, and the origin's speed is known.
                env.sleep(Duration::from_secs(2)).await;
                let before = others.load(Ordering::Relaxed);
                assert_eq!(seam.submit(large(ByteRange::new(0, 32 << 20))).await.result, Ok(()));
                done.store(true, Ordering::Relaxed);
                others.load(Ordering::Relaxed) - before
            })
        };
        let beside = house.world.run_all((0..8).map(client).chain([one]).collect());
        let beside = beside.iter().max().unwrap();
        assert!(*beside <= 128 << 20, "{beside} bytes of the others went first");
        assert!(house.read(cache, 0, 4096).iter().all(|byte| [0, 3].contains(byte)));
    }
}

/// Zeroes are written in parts that end where blocks are being written back. What was not written is not counted, or the origin would seem
/// faster than it is.
#[test]
fn zeroes_beside_write_back_are_counted_as_they_are_written() {
    let house = House::slow(64 << 20, 8 << 20);
    let (cache, _, all) = counted_in_all(&house, &config());
    for at in (0..32 << 20).step_by(1 << 20) {
        // In the middle of a part.
        let bytes = write(ByteRange::new(at + (256 << 10), 64 << 10));
        assert_eq!(house.world.run(Seam::new(cache.clone()).submit(bytes)).result, Ok(()));
    }
    house.flush(&cache);
    cache.core.drain(false).unwrap();
    // Batches are in flight.
    house.world.run(Answer::pending(house.world.sleep(Duration::from_millis(30))));
    assert!(show(&cache, "writeback_blocks") != "0");
    let zeroes = Request::bare(Op::WriteZeroes, ByteRange::new(0, 32 << 20));
    assert_eq!(house.world.run(Seam::new(cache.clone()).submit(zeroes)).result, Ok(()));
    house
        .world
        .run(Answer::pending({
            let core = cache.core.clone();
            async move { core.drained().await }
        }))
        .unwrap();
    assert_eq!(cache.core.meter.written(), all.load(Ordering::Relaxed));
    assert_eq!(cache.core.bypass.window.lock().begin_flush(), 32 << 20, "bytes that have ended");
}
