//! Writes around the cache: what a flush covers of them, and how much of them may wait for one.

use super::*;

const BYPASSING: fn() -> Config = || Config { cleaner: true, ..config() };

#[test]
fn the_first_flush_covers_what_a_killed_server_wrote_around_the_cache() {
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

/// An origin that counts bytes written since the last flush began.
struct Counting {
    below: Arc<dyn BlockDevice>,
    unflushed: Arc<AtomicU64>,
    most: Arc<AtomicU64>,
}

impl BlockDevice for Counting {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::Write => {
                let now = self.unflushed.fetch_add(request.range.len, Ordering::Relaxed) + request.range.len;
                self.most.fetch_max(now, Ordering::Relaxed);
            }
            Op::Flush => self.unflushed.store(0, Ordering::Relaxed),
            _ => {}
        }
        self.below.submit(request)
    }
}

/// 64 MiB in writes of 256 KiB, four at a time, to an origin that takes 43 MB/s then; returns the most that was not flushed.
fn most_unflushed(config: &Config) -> u64 {
    const LEN: usize = 256 << 10;
    let house = House::slow(64 << 20, 1 << 20);
    let (unflushed, most) = (Arc::default(), Arc::<AtomicU64>::default());
    let origin = Arc::new(Counting { below: house.device(0), unflushed, most: most.clone() });
    let (env, budget) = (house.world.clone(), house.budget.clone());
    let cache = WriteCache::new(config, origin, house.device(1), env, budget).unwrap();
    let writes: Vec<u64> = (0..64 << 20).step_by(LEN).collect();
    for four in writes.chunks(4) {
        let submit =
            |&at: &u64| Seam::new(cache.clone()).submit(Request::write(at, IoBuf::copy_of(&[3; LEN])));
        let replies = house.world.run_all(four.iter().map(submit).collect());
        assert!(replies.iter().all(|reply| reply.result == Ok(())));
    }
    most.load(Ordering::Relaxed)
}

#[test]
fn what_goes_around_is_flushed_in_time() {
    // Half a second of the origin, and what is in flight.
    const MOST: u64 = 24 << 20;
    let around = most_unflushed(&BYPASSING());
    assert!((2 << 20..MOST).contains(&around), "cleaner: {around} bytes");
    let full = most_unflushed(&Config { high_watermark: 100, low_watermark: 100, ..config() });
    assert!(full < MOST, "a full cache: {full} bytes");
}
