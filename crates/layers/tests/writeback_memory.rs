//! What a page cache takes to write back: no more than it has charged, however small and many the writes are, over a device that
//! answers none of them.
//!
//! Alone in its process: the allocator is the whole process's.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use spillway_core::{
    Answer, BlockDevice, BlockSize, Budget, Env, Geometry, IoBuf, Op, Regions, Request, Submission, Works,
};
use spillway_counting::{Bytes, Counting};
use spillway_layers::page_cache::{Config, PageCache};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

#[global_allocator]
static MEMORY: Counting<Bytes> = Counting(Bytes::new());

const BLOCK: u64 = 512;

/// Copies of what a cache of this size writes back, and what it takes beside them.
const WORKSPACE: i64 = 16 << 20;

/// What of that a write takes in the cache: the file and the driver below took 1330 bytes for one.
const OWN: i64 = WRITE - 1330;

/// What a write is charged for beside its copy.
const WRITE: i64 = 2048;

struct Stuck {
    world: Arc<World>,
    stuck: AtomicBool,
    /// Writes that have no answer, and their bytes.
    writes: AtomicI64,
    bytes: AtomicI64,
}

impl BlockDevice for Stuck {
    fn geometry(&self) -> Geometry {
        let block_size = BlockSize::new(BLOCK as u32).expect("a power of two");
        Geometry { volatile: false, block_size, ..Geometry::in_memory(1 << 30) }
    }

    fn submit(&self, request: Request) -> Submission {
        if request.op != Op::Write {
            return Answer::Done(request.answer(Ok(())));
        }
        if !self.stuck.load(Ordering::Relaxed) {
            let world = self.world.clone();
            return Answer::pending(async move {
                world.sleep(Duration::from_millis(10)).await;
                request.answer(Ok(()))
            });
        }
        self.writes.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(request.range.len as i64, Ordering::Relaxed);
        Answer::pending(async move {
            let _kept = request;
            pending().await
        })
    }
}

#[test]
fn writing_back_takes_what_is_charged_for_it() {
    let (world, budget) = (World::new(1), Budget::new(1 << 30));
    let below = Arc::new(Stuck {
        world: world.clone(),
        stuck: AtomicBool::new(false),
        writes: AtomicI64::new(0),
        bytes: AtomicI64::new(0),
    });
    let config = Config {
        page_cache_bytes_max: Some(256 << 20),
        block_size: Some(BLOCK),
        dirty_ratio: 100,
        dirty_background_ratio: 100,
        ..Config::default()
    };
    let regions: Arc<dyn Regions> = Arc::new(VecRegions::new(1 << 30));
    let (cache, _) =
        PageCache::open(&config, below.clone(), world.clone(), &regions, &budget, Works::default())
            .expect("it opens");
    // It is known to be fast.
    for at in 0..64 {
        assert_eq!(world.run(cache.submit(Request::write(at << 20, IoBuf::zeroed(1 << 20)))).result, Ok(()));
    }
    assert_eq!(world.run(cache.submit(Request::flush())).result, Ok(()));
    for nth in 0..(64 << 10) {
        let write = Request::write(nth * 2 * BLOCK, IoBuf::zeroed(BLOCK as usize));
        assert_eq!(world.run(cache.submit(write)).result, Ok(()));
    }
    below.stuck.store(true, Ordering::Relaxed);
    let before = MEMORY.0.live() as i64;
    let flush = cache.submit(Request::flush());
    world.spawn_here(Box::pin(async move { drop(flush.await) }));
    (0..100_000).for_each(|_| _ = world.step());
    let held = MEMORY.0.live() as i64 - before;
    let (writes, bytes) = (below.writes.load(Ordering::Relaxed), below.bytes.load(Ordering::Relaxed));
    assert!(writes > 400, "{writes} at a time");
    assert!(bytes + writes * WRITE <= WORKSPACE, "{writes} writes of {bytes} bytes are under way");
    assert!(held <= WORKSPACE + writes * OWN, "{held} bytes are held for {writes} writes");
}
