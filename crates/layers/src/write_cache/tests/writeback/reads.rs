//! Clients' reads beside writing back.

use spillway_core::sync::{AtomicBool, AtomicUsize};
use spillway_policy::depth::{DEPTH_BESIDE_READS, DEPTH_MAX};

use super::*;

/// Requests in flight at an origin.
#[derive(Default)]
struct InFlight {
    reads: AtomicUsize,
    writes: AtomicUsize,
    /// Most writes in flight, the one that begins included, beside no read; and beside one that came before the write.
    most: [AtomicUsize; 2],
}

fn watched(below: Arc<dyn BlockDevice>, counts: Arc<InFlight>) -> Arc<dyn BlockDevice> {
    by_way_of(below, move |below, request| {
        let (counts, op) = (counts.clone(), request.op);
        let answer = below.submit(request);
        let count = move |counts: &InFlight, by: fn(&AtomicUsize) -> usize| match op {
            Op::Read => by(&counts.reads),
            Op::Write => by(&counts.writes),
            _ => 0,
        };
        let before = count(&counts, |count| count.fetch_add(1, Ordering::Relaxed));
        if op == Op::Write {
            let beside = usize::from(counts.reads.load(Ordering::Relaxed) > 0);
            counts.most[beside].fetch_max(before + 1, Ordering::Relaxed);
        }
        Answer::pending(async move {
            let reply = answer.await;
            count(&counts, |count| count.fetch_sub(1, Ordering::Relaxed));
            reply
        })
    })
}

/// Every other block is dirty, so that each is a write of its own to the origin.
#[test]
fn writing_back_leaves_the_origin_to_reads() {
    let house = House::slow(32 << 20, 16 << 20);
    let counts = Arc::new(InFlight::default());
    let origin = watched(house.device(0), counts.clone());
    let (cache, _) = house.open_over(&config(), origin, house.device(1)).unwrap();
    let dirty = || number(&cache, "dirty_blocks");
    (0..1500).for_each(|block| house.write(&cache, 2 * block, 1, 1));
    house.flush(&cache);
    set(&cache, "message", "flush").unwrap();
    house.wait_for("full depth", || counts.writes.load(Ordering::Relaxed) == DEPTH_MAX);
    // Two clients, so that one reads while the other has its answer.
    let reading = Arc::new(AtomicBool::new(true));
    for client in 0..2 {
        let (reading, device) = (reading.clone(), Seam::new(cache.clone()));
        let read = move || Request::read((4000 + client) * BLOCK as u64, IoBuf::new(BLOCK));
        house.world.spawn_here(Box::pin(async move {
            while reading.load(Ordering::Relaxed) {
                assert_eq!(device.submit(read()).await.result, Ok(()));
            }
        }));
    }
    house.wait_for("reads", || counts.reads.load(Ordering::Relaxed) > 0);
    house.wait_for("the end of what was in flight", || {
        counts.writes.load(Ordering::Relaxed) <= DEPTH_BESIDE_READS
    });
    counts.most[1].store(0, Ordering::Relaxed);
    let before = dirty();
    house.wait_for("writing back beside reads", || dirty() + 100 < before);
    let beside = counts.most[1].load(Ordering::Relaxed);
    assert_eq!(beside, DEPTH_BESIDE_READS, "writes in flight beside reads");
    reading.store(false, Ordering::Relaxed);
    counts.most[0].store(0, Ordering::Relaxed);
    house.wait_for("the end", || dirty() == 0);
    assert!(counts.most[0].load(Ordering::Relaxed) > DEPTH_BESIDE_READS, "alone again");
}

/// Its server is away, perhaps for hours.
#[test]
fn reads_that_wait_for_the_origin_keep_nobody_from_a_commit() {
    let house = House::new(4 << 20, 4 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, ..config() };
    // It answers no read from some time on.
    let is_mute = Arc::new(AtomicBool::new(false));
    let mute = is_mute.clone();
    let origin = by_way_of(house.device(0), move |below, request| match request.op {
        Op::Read if mute.load(Ordering::Relaxed) => Answer::pending(std::future::pending()),
        _ => below.submit(request),
    });
    let (cache, _) = house.open_over(&still, origin, house.device(1)).unwrap();
    (0..8).for_each(|run| house.write(&cache, 64 * run, 1, 1));
    house.flush(&cache);
    is_mute.store(true, Ordering::Relaxed);
    // Each of two hits, and of two stretches that the origin has.
    for nth in 0..4 {
        let read = Request::read(nth * (512 << 10), IoBuf::new(512 << 10));
        let answer = Seam::new(cache.clone()).submit(read);
        house.world.spawn_here(Box::pin(async move { drop(answer.await) }));
    }
    (0..1000).for_each(|_| _ = house.world.go_on());
    house.write(&cache, 7, 2, 1);
    house.flush(&cache);
    assert_eq!(show(&cache, "uncommitted_blocks"), "0");
}

/// An origin of blocks of 4 KiB, each fifth of which is stored, that tells of nine at a time, as devices do that stop after a slice.
struct Brief(Arc<dyn BlockDevice>);

impl BlockDevice for Brief {
    fn geometry(&self) -> Geometry {
        self.0.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        self.0.submit(request)
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let (first, mut list) = (range.offset / 4096, Vec::new());
        for block in first..first + 9 {
            let extent = if block % 5 == 4 { Extent::stored(4096) } else { Extent::hole(4096) };
            extent.append_to(&mut list);
        }
        list.truncate(count_max);
        Answer::Done(Ok(list))
    }
}

/// Who asks, asks on from where the last one ends: that is no place inside a block.
#[test]
fn extents_of_an_origin_with_smaller_blocks_are_told_in_blocks_of_the_cache() {
    let house = House::new(1 << 20, 16 << 20);
    let origin = Arc::new(Brief(house.device(0)));
    let config = Config { block_size: 16 << 10, ..config() };
    let (cache, _) = house.open_over(&config, origin, house.device(1)).unwrap();
    house.write(&cache, 4, 1, 4);
    let seam = Seam::new(cache);
    let extents = |count| house.world.run(seam.extents(ByteRange::new(0, 128 << 10), count)).unwrap();
    // Of those of 16 KiB, nothing is stored of 0 and 5, and 1 is cached.
    let hole = Extent::hole(16 << 10);
    let expected = [hole, Extent::stored(64 << 10), hole, Extent::stored(32 << 10)];
    assert_eq!(extents(8), expected);
    assert_eq!(extents(3), expected[..3]);
}
