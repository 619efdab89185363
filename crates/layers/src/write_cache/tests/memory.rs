//! Memory beside that of requests: workspaces that are charged when the cache is opened, and nothing else.

use spillway_core::buffer::Buffers;

use super::*;

/// A cache over two disks, and how much memory the buffers of their requests under way have, at most.
fn weighed(house: &House, config: &Config) -> (Arc<WriteCache>, Arc<AtomicU64>) {
    let (now, most): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
    let [origin, cache] = [0, 1].map(|disk| {
        let (now, most) = (now.clone(), most.clone());
        by_way_of(house.device(disk), move |below, request| {
            let (bytes, now) = (request.buf.capacity() as u64, now.clone());
            most.fetch_max(now.fetch_add(bytes, Ordering::Relaxed) + bytes, Ordering::Relaxed);
            let answer = below.submit(request);
            Answer::pending(async move {
                let reply = answer.await;
                now.fetch_sub(bytes, Ordering::Relaxed);
                reply
            })
        })
    });
    (house.open_over(config, origin, cache).unwrap().0, most)
}

/// Leaves free blocks in runs of one.
fn fragment(house: &House, cache: &Arc<WriteCache>, blocks: u64) {
    (0..blocks).for_each(|block| house.write(cache, block, 1, 1));
    house.flush(cache);
    for block in (0..blocks).step_by(2) {
        house.write(cache, block, 2, 1);
        house.flush(cache);
    }
    house.wait_for("the clearing", || cache.core.journal.stale() == 0);
}

#[test]
fn zeroes_take_no_memory_however_many_there_are() {
    let house = House::new(64 << 20, 96 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (cache, most) = weighed(&house, &still);
    fragment(&house, &cache, 512);
    most.store(0, Ordering::Relaxed);
    let zero = |mib: u64| {
        let range = ByteRange::new(mib << 20, 1 << 20);
        Seam::new(cache.clone()).submit(Request::bare(Op::WriteZeroes, range))
    };
    let replies = house.world.run_all((0..64).map(zero).collect());
    assert!(replies.iter().all(|reply| reply.result == Ok(())));
    house.flush(&cache);
    let (most, least) = (most.load(Ordering::Relaxed), cache.core.workspaces.bytes());
    assert!(most <= least, "{most} bytes, only metadata takes some of {least}");
    assert!(house.read(cache, 0, 4 << 20).iter().all(|byte| *byte == 0));
}

#[test]
fn a_write_in_pieces_is_written_from_where_it_is() {
    let house = House::new(64 << 20, 96 << 20);
    let still = Config {
        autocommit_blocks: Some(1 << 20),
        placement: Placement(|free, _| free.take_fit(1)),
        ..config()
    };
    let (cache, most) = weighed(&house, &still);
    house.write(&cache, 0, 1, 4);
    most.store(0, Ordering::Relaxed);
    set(&cache, "message", "clear_stats").unwrap();
    house.write(&cache, 8, 2, 1500);
    assert_eq!(show(&cache, "ios_per_write"), "1500");
    assert_eq!(most.load(Ordering::Relaxed), 0, "views take no memory, and nothing was committed");
    assert!(house.read(cache, 8 * BLOCK as u64, 1500 * BLOCK).iter().all(|byte| *byte == 2));
}

#[test]
fn batches_stay_in_their_workspace() {
    let house = House::new(64 << 20, 96 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (cache, most) = weighed(&house, &still);
    (0..16384).step_by(256).for_each(|block| house.write(&cache, block, 7, 256));
    house.flush(&cache);
    most.store(0, Ordering::Relaxed);
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    let (most, limit) = (most.load(Ordering::Relaxed), cache.core.workspaces.bytes());
    assert!((1 << 20..=limit).contains(&most), "{most} bytes of {limit}");
    assert!(house.read(house.device(0), 0, 32 << 20).iter().all(|byte| *byte == 7));
}

/// What lies in many pieces is read and written right, whatever groups they are moved in.
#[test]
fn pieces_of_any_length_find_their_places() {
    let house = House::new(64 << 20, 16 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    let (cache, _) = weighed(&house, &still);
    fragment(&house, &cache, 1024);
    let bytes = |seed: u64, len: usize| {
        let mut random = spillway_core::random::Random(seed);
        let mut buf = IoBuf::new(len);
        buf.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
        buf
    };
    let mut expected = house.read(cache.clone(), 0, 8 << 20);
    for (seed, block, blocks) in [(1, 3, 1500), (2, 700, 90), (3, 1, 1), (4, 400, 300)] {
        let written = bytes(seed, blocks * BLOCK);
        expected[block * BLOCK..][..blocks * BLOCK].copy_from_slice(&written);
        let request = Request::write((block * BLOCK) as u64, written);
        assert_eq!(house.ask(cache.clone(), request).result, Ok(()));
    }
    assert!(house.read(cache.clone(), 0, 8 << 20) == expected, "before a drain");
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    assert!(house.read(house.device(0), 0, 8 << 20) == expected, "on the origin");
}

/// A disk below a cache that looks whether the buffers of this thread are from workspaces.
struct Witness {
    below: Arc<dyn BlockDevice>,
    before: u64,
    seen: AtomicU64,
}

impl BlockDevice for Witness {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        if request.buf.capacity() > 0 {
            let held = Buffers::here().bytes_held();
            assert_eq!(
                held, self.before,
                "{:?} at {} in a buffer of its own",
                request.op, request.range.offset
            );
            self.seen.fetch_add(1, Ordering::Relaxed);
        }
        self.below.submit(request)
    }
}

/// What is read to see whether a device is blank is charged, as all that an open takes.
#[test]
fn an_open_takes_its_buffers_from_a_workspace() {
    let house = House::new(4 << 20, 16 << 20);
    let before = Buffers::here().bytes_held();
    let disks =
        [0, 1].map(|disk| Arc::new(Witness { below: house.device(disk), before, seen: AtomicU64::new(0) }));
    house.open_over(&config(), disks[0].clone(), disks[1].clone()).unwrap();
    assert!(disks.iter().all(|disk| disk.seen.load(Ordering::Relaxed) > 0));
}

#[test]
fn a_budget_without_room_for_the_buffers_is_refused_in_words() {
    let mut house = House::new(1 << 20, 1 << 20);
    house.budget = Budget::new(5 << 20);
    let words = house.refusal(&config());
    assert!(words.contains("write cache") && words.contains("--memory"), "{words}");
}
