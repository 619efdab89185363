//! The write cache over two simulated disks: its format to the byte, what it refuses, and what it says of itself.

mod opening;
mod recovering;

use std::sync::Arc;
use std::time::Duration;

use spillway_core::contract::{self, Subject};
use spillway_core::sync::Ordering;
use spillway_core::{Attributes, BlockSize, IoBuf, Reply, SECTOR, Seam};
use spillway_sim::disk::{Disk, Latency, Medium, Plan};
use spillway_sim::world::World;

use super::format::{ENTRY_LEN, FREE, SUPERBLOCK_LEN};
use super::*;
use crate::file::File;

mod ages;
mod bad_blocks;
mod bypass;
mod clearing;
mod committer;
mod discards;
mod growing;
mod index;
#[cfg(not(feature = "shuttle"))]
mod locks;
mod memory;
mod reads;
mod restart;

const BLOCK: usize = 4096;

/// Two disks that keep their power unless it is cut.
struct House {
    world: Arc<World>,
    disks: [Arc<Disk>; 2],
    budget: Arc<Budget>,
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
        Self { disks: media.map(power_up), world: world.clone(), budget: Budget::new(64 << 20) }
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
        let open = async move { WriteCache::open(&config, origin, cache, env, budget).await };
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

fn set(cache: &Arc<WriteCache>, name: &str, value: &str) -> Result<(), Error> {
    attributes(cache.clone()).store(name, value).now()
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
fn a_cache_made_by_hand_is_served() {
    let house = House::new(1 << 20, 1 << 20);
    house.put(1, 0, &superblock(4096, 254, 5));
    house.put(1, 64, &[entry(16, 3), entry(16, 2), entry(8, 5), entry(u64::MAX, FREE)].concat());
    for slot in 4..254 {
        house.put(1, 64 + 16 * slot, &entry(u64::MAX, FREE));
    }
    (0..3).for_each(|block| house.put(1, 8192 + block * 4096, &[block as u8 + 1; 16]));
    let cache = house.open(&config()).unwrap();
    assert_eq!(house.read(cache.clone(), 8192, 4096)[..16], [1; 16], "the higher seq_count counts");
    assert_eq!(house.read(cache.clone(), 4096, 4096)[..16], [0; 16], "5 is not committed");
    assert_eq!((show(&cache, "dirty_blocks"), show(&cache, "seq_count")), ("1".into(), "5".into()));
    let entries = house.read(house.device(1), 0, 512);
    for slot in [1, 2] {
        assert_eq!(entries[64 + 16 * slot + 8..][..8], [0xff; 8], "entry {slot} is free on the device");
    }
}

#[test]
fn what_is_committed_lies_where_the_format_says() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 7, 0xaa, 2);
    house.flush(&cache);
    let head = house.read(house.device(1), 0, 8192);
    assert_eq!(head[..32], superblock(4096, 254, 1)[..]);
    assert_eq!(head[32..40], *b"spillway");
    assert_eq!(head[40..48], (1u64 << 20).to_le_bytes());
    assert_eq!(head[48..64], [0; 16], "a simulated disk has no identity");
    let entries: Vec<&[u8]> = head[SUPERBLOCK_LEN..].chunks_exact(ENTRY_LEN).take(254).collect();
    for origin in [7, 8] {
        let index = entries.iter().position(|found| *found == entry(origin * 8, 0)).expect("committed");
        assert_eq!(house.read(house.device(1), 8192 + index as u64 * 4096, 4096), [0xaa; 4096]);
    }
    assert_eq!(entries.iter().filter(|found| found[8..] == [0xff; 8]).count(), 252);
    assert_eq!(house.read(house.device(0), 7 * 4096, 4096), [0; 4096], "the origin has nothing yet");
}

#[test]
fn what_does_not_fit_is_refused_and_left_as_it_is() {
    let house = House::new(1 << 20, 1 << 20);
    house.put(1, 0, b"something else");
    let before = house.read(house.device(1), 0, 512);
    assert!(house.refusal(&config()).contains("use --create"));
    assert_eq!(house.read(house.device(1), 0, 512), before);
    house.open(&Config { create: true, ..config() }).unwrap();
    assert!(house.refusal(&Config { block_size: 8192, ..config() }).contains("--block-size 4096"));
    assert!(house.refusal(&Config { start_sector: 4096, ..config() }).contains("2048 sectors"));
    for (at, bytes, part) in [
        (16, &1000u64.to_le_bytes()[..], "was it shrunk"),
        (16, &u64::MAX.to_le_bytes(), "cache of 18446744073709551615 blocks"),
        (16, &0u64.to_le_bytes(), "it tells of 0 blocks"),
        (24, &u64::MAX.to_le_bytes(), "seq_count 18446744073709551615 cannot come"),
        (4, &2u32.to_le_bytes(), "version 2"),
        (8, &3000u32.to_le_bytes(), "superblock is damaged"),
    ] {
        let house = house.again();
        house.put(1, at, bytes);
        let refusal = house.refusal(&config());
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
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
fn a_superblock_with_any_field_changed_is_refused_or_serves() {
    let first = dirty();
    let head = first.read(first.device(1), 0, 4096);
    let entry = (0..254).find(|slot| head[64 + 16 * slot + 8] != 0xff).expect("one block is committed");
    let fields = [(0, 4), (4, 4), (8, 4), (12, 4), (16, 8), (24, 8), (32, 8), (40, 8), (48, 8)];
    let entries = [(64 + 16 * entry, 8), (64 + 16 * entry + 8, 8)];
    for (at, len) in fields.into_iter().chain(entries) {
        let mut now = [0; 8];
        now[..len].copy_from_slice(&head[at..at + len]);
        let now = u64::from_le_bytes(now);
        for value in [0, 1, u64::MAX, now.wrapping_add(1), now.wrapping_sub(1)] {
            let house = first.again();
            house.put(1, at as u64, &value.to_le_bytes()[..len]);
            match house.open(&config()) {
                Ok(cache) => {
                    house.read(cache.clone(), 0, 1 << 20);
                    house.write(&cache, 3, 1, 4);
                    house.flush(&cache);
                }
                Err(error) => assert!(error.message().len() > 20, "{at}: {value:#x}: {error}"),
            }
        }
    }
}

#[test]
fn a_cache_device_of_any_length_is_refused_or_serves() {
    for sectors in (1..64).chain(2000..2048) {
        let house = House::new(1 << 20, sectors * SECTOR);
        match house.open(&config()) {
            Ok(cache) => {
                house.write(&cache, 3, 1, 1);
                house.flush(&cache);
            }
            Err(error) => assert!(error.message().contains("has no room"), "{sectors}: {error}"),
        }
        let cut = dirty();
        let whole = cut.read(cut.device(1), 0, (sectors * SECTOR) as usize);
        for (at, sector) in (0..).step_by(SECTOR as usize).zip(whole.chunks(SECTOR as usize)) {
            house.put(1, at, sector);
        }
        assert!(house.open(&config()).is_err(), "a cache of 2048 sectors on {sectors}");
    }
}

#[test]
fn entries_that_cannot_be_are_refused() {
    for (entries, part) in [
        ([entry(8, 0), entry(8, 0)], "entries 0 and 1 of the cache both hold block 1"),
        ([entry(9, 0), entry(u64::MAX, FREE)], "sector 9 of the origin is not a multiple of 8"),
        ([entry(2048, 0), entry(u64::MAX, FREE)], "block 256 of the origin, which has only 256"),
    ] {
        let house = House::new(1 << 20, 1 << 20);
        house.open(&config()).unwrap();
        house.put(1, 0, &superblock(4096, 254, 1));
        house.put(1, 64, &entries.concat());
        let refusal = house.refusal(&config());
        assert!(refusal.contains(part), "{part}: {refusal}");
    }
}

#[test]
fn of_two_equal_versions_the_later_block_is_taken_when_asked_for() {
    let house = House::new(1 << 20, 1 << 20);
    house.open(&config()).unwrap();
    house.put(1, 0, &superblock(4096, 254, 1));
    house.put(1, 64, &[entry(8, 0), entry(8, 0)].concat());
    house.put(1, 8192 + 4096, &[9; 16]);
    let cache = house.open(&Config { recover: true, ..config() }).unwrap();
    assert_eq!(house.read(cache, 4096, 4096)[..16], [9; 16]);
    house.open(&config()).expect("the other one is gone for good");
}

#[test]
fn a_cache_that_holds_something_is_not_formatted() {
    let house = House::new(1 << 20, 1 << 20);
    let cache = house.open(&config()).unwrap();
    house.write(&cache, 3, 5, 1);
    house.flush(&cache);
    let house = house.again();
    assert!(house.refusal(&Config { create: true, ..config() }).contains("holds 1 blocks"));
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
    let progress = ["drain_state", "drain_left", "drain_total"].map(|name| show(&cache, name));
    assert_eq!(progress, ["running", "60", "60"]);
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
    let cache = house.open(&Config { create: true, ..other }).unwrap();
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
    house.wait_for("write-back", || show(&cache, "free_blocks").parse::<u32>().unwrap() >= 50);
    house.wait_for("their end", || show(&cache, "writeback_blocks") == "0");
    let mean: f64 = show(&cache, "free_run_mean").parse().unwrap();
    assert!(mean > 10.0, "{mean} blocks");
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
    let blocks: u64 = show(&cache, "blocks").parse().unwrap();
    let buffers = cache.core.workspaces.bytes();
    let index = house.budget.used() - buffers;
    assert!(index <= blocks * 32 + (64 << 10), "{index} bytes for {blocks} blocks");
    drop(cache);
    assert_eq!(house.budget.used(), 0);
    let mut narrow = house.again();
    narrow.budget = Budget::new(buffers + (64 << 10));
    assert!(narrow.refusal(&config()).contains("give --memory 8M or more"));
}
