//! The write cache over two simulated disks: drains, stops, and what it says of itself.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::contract::{self, Subject};
use spillway_core::sync::Ordering;
use spillway_core::{Attributes, BlockSize, IoBuf, Registry, Reply, SECTOR, Seam};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};
use spillway_sim::world::World;

use super::*;
use crate::file::File;

mod bad_blocks;
mod bypass;
mod clearing;
mod committer;
mod discards;
mod format;
mod index;
#[cfg(all(debug_assertions, not(feature = "shuttle")))]
mod locks;
mod looks;
mod memory;
mod opening;
mod progress;
mod room;
mod units;
mod writeback;

const BLOCK: usize = 4096;

/// Two disks that keep their power unless it is cut.
struct House {
    world: Arc<World>,
    disks: [Arc<Disk>; 2],
    budget: Arc<Budget>,
    registry: Arc<Registry>,
}

impl House {
    fn new(origin_bytes: u64, cache_bytes: u64) -> Self {
        Self::over([Medium::new(origin_bytes), Medium::new(cache_bytes)])
    }

    fn over(media: [Medium; 2]) -> Self {
        Self::with_latency(media, Latency::Nvme)
    }

    /// Disks of 19 MB/s.
    fn slow(origin_bytes: u64, cache_bytes: u64) -> Self {
        Self::with_latency([Medium::new(origin_bytes), Medium::new(cache_bytes)], Latency::UsbStick)
    }

    fn with_latency(media: [Medium; 2], latency: Latency) -> Self {
        let world = World::new(7);
        let power_up = |medium| {
            let plan = Plan { latency, ..Plan::default() };
            Arc::new(Disk::new(world.clone(), medium, BlockSize::new(512).unwrap(), plan, 7))
        };
        Self::of(&world, media.map(power_up))
    }

    fn of(world: &Arc<World>, disks: [Arc<Disk>; 2]) -> Self {
        let (world, registry) = (world.clone(), Registry::new(world.clone()));
        Self { world, disks, budget: Budget::new(64 << 20), registry }
    }

    /// The same disks after a power cut.
    fn again(&self) -> Self {
        self.disks.iter().for_each(|disk| disk.cut());
        Self::over([0, 1].map(|disk: usize| self.disks[disk].survivors()))
    }

    /// What a disk keeps when its power is cut.
    fn survivor(&self, disk: usize) -> Medium {
        self.disks[disk].cut();
        self.disks[disk].survivors()
    }

    fn device(&self, disk: usize) -> Arc<dyn BlockDevice> {
        Arc::new(File::new(self.disks[disk].clone(), self.world.clone()))
    }

    /// Opens a cache over any two devices.
    fn open_over(
        &self,
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        cache: Arc<dyn BlockDevice>,
    ) -> Result<(Arc<WriteCache>, String), Error> {
        let (config, env, budget) = (config.clone(), self.world.clone(), self.budget.clone());
        let works = self.registry.of("cache");
        let open = async move { WriteCache::open(&config, origin, cache, env, budget, works).await };
        self.world.run(Answer::pending(open))
    }

    fn open(&self, config: &Config) -> Result<Arc<WriteCache>, Error> {
        self.open_over(config, self.device(0), self.device(1)).map(|(cache, _)| cache)
    }

    fn refusal(&self, config: &Config) -> String {
        self.open(config).err().expect("it is refused").to_string()
    }

    fn ask(&self, device: Arc<dyn BlockDevice>, request: Request) -> Reply {
        self.world.run(Seam::new(device).submit(request))
    }

    fn write(&self, cache: &Arc<WriteCache>, block: u64, value: u8, blocks: usize) {
        let mut buf = IoBuf::new(blocks * BLOCK);
        buf.fill(value);
        assert_eq!(self.ask(cache.clone(), Request::write(block * BLOCK as u64, buf)).result, Ok(()));
    }

    fn flush(&self, cache: &Arc<WriteCache>) {
        assert_eq!(self.ask(cache.clone(), Request::flush()).result, Ok(()));
    }

    fn read(&self, device: Arc<dyn BlockDevice>, at: u64, len: usize) -> Vec<u8> {
        let reply = self.ask(device, Request::read(at, IoBuf::new(len)));
        assert_eq!(reply.result, Ok(()));
        reply.buf.to_vec()
    }

    /// Writes bytes to a disk as they are.
    fn put(&self, disk: usize, at: u64, bytes: &[u8]) {
        let mut sector = self.read(self.device(disk), at / SECTOR * SECTOR, SECTOR as usize);
        sector[(at % SECTOR) as usize..][..bytes.len()].copy_from_slice(bytes);
        let request = Request::write(at / SECTOR * SECTOR, IoBuf::copy_of(&sector)).with_fua();
        assert_eq!(self.ask(self.device(disk), request).result, Ok(()));
    }

    fn wait_for(&self, what: &str, mut condition: impl FnMut() -> bool) {
        for _ in 0..100_000 {
            if condition() {
                return;
            }
            self.world.go_on();
        }
        panic!("{what} does not come");
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.world.power_off();
    }
}

/// A device that is asked by way of a function.
struct ByWay<F>(Arc<dyn BlockDevice>, Geometry, F);

impl<F: Fn(&dyn BlockDevice, Request) -> Submission + Send + Sync> BlockDevice for ByWay<F> {
    fn geometry(&self) -> Geometry {
        self.1
    }

    fn submit(&self, request: Request) -> Submission {
        (self.2)(&*self.0, request)
    }
}

fn by_way_of<F>(below: Arc<dyn BlockDevice>, ask: F) -> Arc<dyn BlockDevice>
where
    F: Fn(&dyn BlockDevice, Request) -> Submission + Send + Sync + 'static,
{
    let geometry = below.geometry();
    by_way_as(geometry, below, ask)
}

/// The same of a device that says something else of itself.
fn by_way_as<F>(geometry: Geometry, below: Arc<dyn BlockDevice>, ask: F) -> Arc<dyn BlockDevice>
where
    F: Fn(&dyn BlockDevice, Request) -> Submission + Send + Sync + 'static,
{
    Arc::new(ByWay(below, geometry, ask))
}

/// A superblock as the reference describes it.
fn superblock(block_size: u32, n_blocks: u64, seq_count: u64) -> Vec<u8> {
    let mut bytes = vec![0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0];
    bytes.extend(block_size.to_le_bytes());
    bytes.extend([0; 4]);
    bytes.extend(n_blocks.to_le_bytes());
    bytes.extend(seq_count.to_le_bytes());
    bytes
}

fn entry(sector: u64, seq_count: u64) -> Vec<u8> {
    [sector.to_le_bytes(), seq_count.to_le_bytes()].concat()
}

fn config() -> Config {
    Config::default()
}

fn show(cache: &Arc<WriteCache>, name: &str) -> String {
    attributes(cache.clone()).show(name).unwrap()
}

fn number(cache: &Arc<WriteCache>, name: &str) -> u64 {
    attributes(cache.clone()).get(name).unwrap().number().expect("a number")
}

fn set(cache: &Arc<WriteCache>, name: &str, value: &str) -> Result<(), Error> {
    attributes(cache.clone()).store(name, value).now()
}

/// A cache that holds block 3, after a power cut.
fn dirty() -> House {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 3, 9, 1);
    house.flush(&cache);
    house.again()
}

#[test]
fn it_keeps_the_contract() {
    for (block_size, cache_bytes) in [(512, 64 << 10), (4096, 128 << 10), (65536, 1 << 20)] {
        let house = House::new(1 << 20, cache_bytes);
        let device = house.open(&Config { block_size, ..config() }).unwrap();
        let run = |submission: Submission| house.world.run(submission);
        contract::check(&Subject { device, run: &run, stores: true });
    }
}

#[test]
fn a_cache_that_holds_something_is_not_formatted() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 3, 5, 1);
    house.flush(&cache);
    let house = house.again();
    assert!(house.refusal(&Config { old_cache: OldCache::Create, ..config() }).contains("holds 1 blocks"));
    let cache = house.open(&config()).unwrap();
    assert_eq!(house.read(cache, 3 * 4096, 4096), [5; 4096]);
}

#[test]
fn a_drain_leaves_a_complete_origin_and_an_empty_cache() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    (0..20).for_each(|block| house.write(&cache, 5 * block, block as u8 + 1, 3));
    assert_eq!(show(&cache, "drain_state"), "off");
    set(&cache, "drain", "1").unwrap();
    assert_eq!(show(&cache, "drain_state"), "running");
    house.write(&cache, 200, 77, 1);
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    house.write(&cache, 0, 88, 1);
    house.flush(&cache);
    assert_eq!((show(&cache, "dirty_blocks"), show(&cache, "cleaner")), ("0".into(), "1".into()));
    let house = house.again();
    assert_eq!(house.read(house.device(0), 5 * 19 * 4096, 4096), [20; 4096]);
    assert_eq!(house.read(house.device(0), 200 * 4096, 4096), [77; 4096]);
    assert_eq!(house.read(house.device(0), 0, 4096), [88; 4096]);
}

#[test]
fn a_drain_is_complete_only_while_nothing_can_enter() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 3, 1, 2);
    set(&cache, "message", "flush").unwrap();
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    set(&cache, "cleaner", "0").unwrap();
    assert_eq!(show(&cache, "drain_state"), "off");
    house.write(&cache, 3, 1, 2);
    set(&cache, "drain", "1").unwrap();
    set(&cache, "cleaner", "0").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "off");
}

#[test]
fn an_empty_cache_is_formatted_with_other_blocks() {
    let house = House::new(1 << 20, 1 << 20);
    house.open(&config()).unwrap();
    let other = Config { block_size: 512, ..config() };
    assert!(house.refusal(&other).contains("--block-size 4096"));
    let cache = house.open(&Config { old_cache: OldCache::Create, ..other }).unwrap();
    assert_eq!(show(&cache, "block_size"), "512");
}

#[test]
fn free_blocks_grow_together() {
    let house = House::new(8 << 20, 1 << 20);
    let still = Config { high_watermark: 100, low_watermark: 100, pause_writeback: Some(0), ..config() };
    let cache = house.open(&still).unwrap();
    // Neighbours in the cache are far apart on the origin: a sweep alone would free every eighth block.
    (0..248).for_each(|block| house.write(&cache, block % 8 * 40 + block / 8, 1, 1));
    house.flush(&cache);
    set(&cache, "low_watermark", "80").unwrap();
    set(&cache, "high_watermark", "80").unwrap();
    house.wait_for("write-back", || number(&cache, "free_blocks") >= 50);
    house.wait_for("their end", || show(&cache, "writeback_blocks") == "0");
    let (blocks, runs, _) = cache.core.space.runs_of_free();
    assert!(u64::from(blocks) > 10 * runs as u64, "{blocks} blocks in {runs} runs");
}

#[test]
fn the_status_line_has_the_kernels_fields() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 0, 1, 4);
    house.write(&cache, 1, 2, 1);
    house.flush(&cache);
    house.write(&cache, 1, 3, 1);
    house.read(cache.clone(), 0, 8 * 4096);
    assert_eq!(show(&cache, "status"), "0 254 249 0 8 4 6 1 1 0 4 0 1 0");
    set(&cache, "message", "clear_stats").unwrap();
    assert_eq!(show(&cache, "status"), "0 254 249 0 0 0 0 0 0 0 0 0 0 0");
    assert!(set(&cache, "message", "flushes").unwrap_err().to_string().contains("flush_on_suspend"));
}

#[test]
fn what_replaces_others_in_the_cache_reaches_the_origin_once() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    (0..4).for_each(|content| house.write(&cache, 9, content, 2));
    assert_eq!(show(&cache, "write_amplification"), "0");
    set(&cache, "drain", "1").unwrap();
    house.wait_for("the end", || show(&cache, "drain_state") == "complete");
    assert_eq!(show(&cache, "write_amplification"), "0.25");
    house.write(&cache, 20, 1, 2);
    assert_eq!(
        show(&cache, "write_amplification"),
        "0.4",
        "what goes around the cache is written to the origin too"
    );
}

#[test]
fn a_stop_writes_everything_back_where_that_was_asked_for() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 9, 1, 1);
    house.world.run(Answer::pending(cache.suspend())).unwrap();
    assert_eq!(show(&cache, "dirty_blocks"), "1");
    set(&cache, "message", "flush_on_suspend").unwrap();
    house.world.run(Answer::pending(cache.suspend())).unwrap();
    assert_eq!(house.read(house.device(0), 9 * 4096, 4096), [1; 4096]);
}

#[test]
fn the_index_is_charged_and_given_back() {
    let house = House::new(1 << 20, 8 << 20);
    let cache = house.open(&config()).unwrap();
    let blocks = number(&cache, "blocks");
    let buffers = cache.core.workspaces.bytes();
    let index = house.budget.used() - buffers;
    assert!(index <= blocks * 32 + (64 << 10), "{index} bytes for {blocks} blocks");
    drop(cache);
    assert_eq!(house.budget.used(), 0);
    let mut narrow = house.again();
    narrow.budget = Budget::new(buffers + (64 << 10));
    assert!(narrow.refusal(&config()).contains("give --memory 8M or more"));
}
