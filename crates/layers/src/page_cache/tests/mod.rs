//! The page cache over a simulated disk: what it writes below, what it keeps in memory, and what it says of itself.

mod discards;
mod failures;
mod memory;
#[cfg(feature = "of-2011")]
mod of_2011;
mod pressure;
mod readahead;
mod reads;
mod saving;
mod sizes;
mod slices;
mod storm;
mod throttle;
mod writes;
mod zones;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicBool, AtomicU64, Mutex, Ordering, Words};
use spillway_core::{
    Attributes, BlockSize, Budget, Env, IoBuf, Region, Regions, Reply, Seam, Slab, Value, Works,
};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};
use spillway_sim::memory::VecRegions;
use spillway_sim::world::World;

use super::*;
use crate::file::File;

const BLOCK: usize = 4096;

/// Keeps what reaches the device below.
struct Recorder {
    below: Arc<dyn BlockDevice>,
    seen: Mutex<Vec<(Op, ByteRange)>>,
    /// There is no room for what is written there.
    full: Mutex<Option<ByteRange>>,
    /// Zeroes are written as data.
    slow_zeroes: AtomicBool,
    /// They are, but the device does not say so before it is asked.
    refuses_zeroes: AtomicBool,
}

impl Recorder {
    /// What has reached it since the last call, of that operation.
    fn take(&self, op: Op) -> Vec<(u64, u64)> {
        let seen = std::mem::take(&mut *self.seen.lock());
        seen.into_iter().filter(|seen| seen.0 == op).map(|(_, range)| (range.offset, range.len)).collect()
    }
}

impl BlockDevice for Recorder {
    fn geometry(&self) -> Geometry {
        let below = self.below.geometry();
        Geometry { fast_zeroes: below.fast_zeroes && !self.slow_zeroes.load(Ordering::Relaxed), ..below }
    }

    fn submit(&self, request: Request) -> Submission {
        self.seen.lock().push((request.op, request.range));
        if request.op == Op::WriteZeroes && self.refuses_zeroes.load(Ordering::Relaxed) {
            return Answer::Done(request.answer(Err(Kind::NotSupported)));
        }
        let full = self.full.lock().is_some_and(|full| request.range.overlaps(full));
        if full && request.op == Op::Write {
            return Answer::Done(request.answer(Err(Kind::NoSpace)));
        }
        self.below.submit(request)
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.below.extents(range, count_max)
    }
}

/// A system that gives so many slabs, and refuses more.
pub(crate) struct Scarce {
    regions: VecRegions,
    left: AtomicU64,
}

impl Scarce {
    pub(crate) fn of(slabs: u64) -> Arc<Self> {
        Arc::new(Self { regions: VecRegions::new(Budget::UNLIMITED), left: AtomicU64::new(slabs) })
    }

    pub(crate) fn plenty() -> Arc<Self> {
        Self::of(u64::MAX)
    }

    /// Gives so many from now on.
    pub(crate) fn give(&self, slabs: u64) {
        self.left.store(slabs, Ordering::Relaxed);
    }
}

impl Regions for Scarce {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        self.regions.map(bytes)
    }

    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind> {
        let left = |left: u64| left.checked_sub(1);
        let given = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        given.map_err(|_| Kind::OutOfMemory).and_then(|_| self.regions.map_slab(bytes))
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        self.regions.map_words(count)
    }
}

/// A disk, and a cache of a MiB in folios of 16 KiB over it unless something else is asked for.
struct House {
    world: Arc<World>,
    disk: Arc<Disk>,
    below: Arc<Recorder>,
    regions: Arc<Scarce>,
    budget: Arc<Budget>,
    cache: Arc<PageCache>,
}

fn mebibyte() -> Config {
    Config { page_cache_bytes_max: Some(1 << 20), folio_size: Some(16384), ..Config::default() }
}

impl House {
    fn new(config: &Config) -> Self {
        Self::with_plan(config, Plan { latency: Latency::Nvme, ..Plan::default() })
    }

    fn with_plan(config: &Config, plan: Plan) -> Self {
        Self::over(config, plan, Medium::new(32 << 20))
    }

    fn over(config: &Config, plan: Plan, medium: Medium) -> Self {
        let world = World::new(7);
        let disk = Arc::new(Disk::new(world.clone(), medium, BlockSize::SECTOR, plan, 7));
        let below = File::new(disk.clone(), world.clone());
        let below = Arc::new(Recorder {
            below: Arc::new(below),
            seen: Mutex::default(),
            full: Mutex::default(),
            slow_zeroes: AtomicBool::new(false),
            refuses_zeroes: AtomicBool::new(false),
        });
        let budget = Budget::new(64 << 20);
        let regions = Scarce::plenty();
        let memory: Arc<dyn Regions> = regions.clone();
        let opened =
            PageCache::open(config, below.clone(), world.clone(), &memory, &budget, Works::default());
        let (cache, _) = opened.expect("it opens");
        Self { world, disk, below, regions, budget, cache }
    }

    fn submit(&self, request: Request) -> Submission {
        Seam::new(self.cache.clone()).submit(request)
    }

    fn ask(&self, request: Request) -> Reply {
        let reply = self.world.run(self.submit(request));
        self.cache.verify();
        reply
    }

    fn write(&self, block: usize, value: u8, blocks: usize) {
        assert_eq!(self.ask(filled(block, value, blocks)).result, Ok(()));
    }

    fn flush(&self) {
        assert_eq!(self.ask(Request::flush()).result, Ok(()));
    }

    /// First bytes of each of these blocks.
    fn read(&self, block: usize, blocks: usize) -> Vec<u8> {
        let reply = self.ask(Request::read((block * BLOCK) as u64, IoBuf::new(blocks * BLOCK)));
        assert_eq!(reply.result, Ok(()));
        reply.buf.chunks(BLOCK).map(|block| block[BLOCK - 1]).collect()
    }

    /// Ends the cache as a server does that stops.
    fn stop(&self) -> Result<(), Error> {
        let end = self.cache.suspend();
        self.world.run(Answer::pending(end))
    }

    /// Runs a request in the background: what it comes to, once it has.
    fn spawn(&self, submission: Submission) -> Rc<Cell<Option<Result<(), Kind>>>> {
        let result: Rc<Cell<_>> = Rc::default();
        let told = result.clone();
        self.world.spawn_here(Box::pin(async move { told.set(Some(submission.await.result)) }));
        result
    }

    fn extents(&self, range: ByteRange) -> Vec<Extent> {
        let (found, finds) = (Rc::new(RefCell::new(None)), self.cache.extents(range, 100));
        let told = found.clone();
        self.world.run(Answer::pending(async move {
            *told.borrow_mut() = Some(finds.await);
            Request::flush().answer(Ok(()))
        }));
        found.take().expect("it was answered").expect("the disk can tell")
    }

    fn number(&self, name: &str) -> u64 {
        attributes(self.cache.clone())
            .get(name)
            .expect("there is such an attribute")
            .number()
            .expect("a number")
    }

    fn text(&self, name: &str) -> String {
        attributes(self.cache.clone()).show(name).expect("there is such an attribute")
    }

    fn set(&self, name: &str, value: &str) {
        let answer = attributes(self.cache.clone()).store(name, value);
        assert!(matches!(answer, Answer::Done(Ok(()))), "{name} can be {value}");
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) {
        assert!(
            (0..200_000).any(|_| condition() || !self.world.go_on()) && condition(),
            "{what} does not come"
        );
        self.cache.verify();
    }

    /// The value of a block on the disk once its power is gone.
    fn survivor(&self, block: usize) -> u8 {
        self.disk.cut();
        let house = Self::over(&mebibyte(), Plan::default(), self.disk.survivors());
        house.read(block, 1)[0]
    }
}

impl Drop for House {
    /// What is read ahead when a test ends goes before what its tasks need.
    fn drop(&mut self) {
        self.world.power_off();
    }
}

fn filled(block: usize, value: u8, blocks: usize) -> Request {
    let mut buf = IoBuf::new(blocks * BLOCK);
    buf.fill(value);
    Request::write((block * BLOCK) as u64, buf)
}
