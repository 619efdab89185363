//! The stacks that are simulated: a table. A new layer is one row.

use std::fmt;
use std::sync::Arc;

use spillway_core::{BlockSize, Budget, Env, Error, SECTOR};
use spillway_layers::stack::{LayerConfig, OriginConfig, Stack, StackConfig};
use spillway_layers::surroundings::{BackingDevice, OpenStorage, Surroundings};
use spillway_layers::write_cache::{self, Ablation, Ack, Mode};
use spillway_layers::{delay, file, memory, rate, trace, zram};

use crate::preset;
use spillway_sim::disk::{Disk, Medium};
use spillway_sim::memory::VecRegions;
use spillway_sim::model::Model;
use spillway_sim::world::World;

/// An attribute that workloads change, and the values they give it.
pub type Knob = (&'static str, &'static [&'static str]);

/// Whether an attribute is something to be done rather than a setting.
pub fn is_command(name: &str) -> bool {
    ["message", "drain", "compact", "mem_used_max", "writeback", "idle"].contains(&name)
}

/// A stack and what is known of it.
pub struct Row {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its configuration, for a device of so many bytes.
    pub config: fn(u64) -> StackConfig,
    /// Bytes of the device.
    pub bytes: u64,
    /// Block of the disk below, or `None` for a stack that keeps everything in memory and promises nothing after a crash.
    pub disk: Option<u32>,
    /// Bytes of a disk to which such a stack spills: what lies there is gone after a crash too.
    pub spill: Option<u64>,
    /// A write cache on a disk of its own above it.
    pub cache: Option<Cache>,
    /// Every write that is acknowledged survives a crash: what it is configured to promise, whatever it says of itself.
    pub commits: bool,
    /// What is acknowledged is there after a kill, flushed or not.
    pub keeps: bool,
    /// What is written through it is kept in whole blocks of so many sectors.
    pub whole: Option<u64>,
    /// A cache that is full but for small islands, as [`crate::preset`] makes it.
    pub full: bool,
    /// A device of many pages of zram's table, of which stories touch what lies near the boundaries.
    pub wide: bool,
    /// Stories begin with scattering what the device holds, as [`crate::scatter`] does.
    pub dense: bool,
    /// What workloads change while it runs.
    pub knobs: &'static [Knob],
    /// Bytes that memory may be short of: the budget that a hard-pressed run gets.
    pub tight_budget: Option<u64>,
    /// It frees each block that is discarded or zeroed whole, and takes memory for no other reason than what it holds.
    pub exact: bool,
    /// Attributes that are 0 once the whole device is discarded.
    pub empty: &'static [&'static str],
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A write cache.
#[derive(Clone, Copy)]
pub struct Cache {
    /// Bytes of its disk.
    pub bytes: u64,
    /// Block of its disk.
    pub disk: u32,
    /// Its disk is persistent memory, as mode p wants it.
    pub words: bool,
}

/// Role and path of the write cache's disk.
const CACHE: &str = "cache";

/// All of them.
pub const STACKS: &[Row] = &[
    Row { name: "file", config: |_| over_file(vec![]), disk: Some(4096), ..DURABLE },
    Row { name: "file-512", config: |_| over_file(vec![]), disk: Some(512), bytes: 32 << 10, ..DURABLE },
    Row { name: "trace-file", config: |_| over_file(vec![trace()]), disk: Some(4096), ..DURABLE },
    Row {
        name: "delay-rate-file",
        config: |_| over_file(vec![rate(), delay()]),
        disk: Some(4096),
        ..DURABLE
    },
    Row {
        name: "write-cache",
        config: |_| cached(write_cache::Config::default()),
        cache: Some(Cache { bytes: 256 << 10, disk: 4096, words: false }),
        whole: Some(8),
        ..CACHED
    },
    Row {
        name: "write-cache-small",
        config: |_| {
            cached(write_cache::Config { block_size: 512, pause_writeback: Some(0), ..Default::default() })
        },
        bytes: 32 << 10,
        disk: Some(512),
        cache: Some(Cache { bytes: 12 << 10, disk: 512, words: false }),
        ..CACHED
    },
    Row {
        name: "write-cache-eager",
        config: |_| cached(eager()),
        bytes: 32 << 10,
        disk: Some(512),
        cache: Some(Cache { bytes: 96 << 10, disk: 512, words: true }),
        ..CACHED
    },
    // Few blocks, of each of which many versions lie in the cache.
    Row {
        name: "write-cache-deep",
        config: |_| cached(eager()),
        bytes: 4 << 10,
        disk: Some(512),
        cache: Some(Cache { bytes: 64 << 10, disk: 512, words: true }),
        knobs: &[
            ("cleaner", &["0", "1"]),
            ("autocommit_blocks", &["1", "5", "65536"]),
            ("autocommit_time", &["1", "1000"]),
            ("max_age", &["none", "16", "0"]),
            ("writeback_jobs", &["0", "1"]),
            ("drain", &["1"]),
        ],
        ..CACHED
    },
    Row {
        name: "write-cache-through",
        config: |_| cached(write_cache::Config { ack: Ack::Committed, ..Default::default() }),
        cache: Some(Cache { bytes: 64 << 10, disk: 4096, words: false }),
        commits: true,
        whole: Some(8),
        ..CACHED
    },
    Row {
        name: "write-cache-full",
        config: |_| cached(full()),
        bytes: preset::ORIGIN_BYTES,
        disk: Some(512),
        cache: Some(Cache { bytes: preset::CACHE_BYTES, disk: 512, words: false }),
        full: true,
        knobs: &[
            ("cleaner", &["0", "0", "0", "1"]),
            ("metadata_only", &["0", "1"]),
            ("autocommit_blocks", &["1", "5", "65536"]),
            ("autocommit_time", &["1", "1000"]),
            ("writeback_jobs", &["1", "3", "64"]),
            ("message", &["flush_on_suspend", "clear_stats"]),
        ],
        ..CACHED
    },
    Row { name: "memory", config: memory, ..VOLATILE },
    Row { name: "zram", config: |bytes| zram(bytes, "lz4", vec![]), ..ZRAM },
    Row { name: "zram-zstd", config: |bytes| zram(bytes, "zstd", vec![]), ..ZRAM },
    Row {
        name: "zram-wide",
        config: |bytes| zram(bytes, "lz4", vec![]),
        bytes: WIDE_BYTES,
        wide: true,
        knobs: &[
            ("max_comp_streams", &["1", "2", "5"]),
            ("mem_limit", &["0", "4M", "768K"]),
            ("compact", &["1"]),
        ],
        tight_budget: None,
        ..ZRAM
    },
    Row {
        name: "zram-dense",
        config: |bytes| zram(bytes, "lz4", vec![]),
        bytes: 16 << 20,
        dense: true,
        knobs: &[("max_comp_streams", &["1", "2"]), ("mem_limit", &["0", "1M", "2M"]), ("compact", &["1"])],
        tight_budget: None,
        ..ZRAM
    },
    Row {
        name: "zram-spill",
        config: spilling,
        spill: Some(SPILL_BYTES),
        knobs: &[
            ("writeback", &["page_indexes=0-127", "page_indexes=0-127", "idle", "huge", "huge_idle"]),
            ("writeback", &["page_indexes=8-40", "page_index=1 page_indexes=2-9 idle", "incompressible"]),
            ("idle", &["all", "all", "1"]),
            ("writeback_limit", &["0", "3", "40", "1000"]),
            ("writeback_limit_enable", &["0", "0", "1"]),
            ("writeback_batch_size", &["1", "3", "256"]),
            ("bring_back", &["never", "second", "always"]),
            ("bring_back_age", &["0", "60"]),
            ("mem_limit", &["0", "192K", "112K"]),
            ("max_comp_streams", &["1", "2"]),
            ("compact", &["1"]),
        ],
        tight_budget: None,
        empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "lost_pages"],
        ..ZRAM
    },
    Row { name: "delay-zram", config: |bytes| zram(bytes, "lz4", vec![delay()]), ..ZRAM },
];

const DURABLE: Row = Row {
    name: "",
    config: |_| over_file(vec![]),
    bytes: 128 << 10,
    disk: Some(4096),
    spill: None,
    cache: None,
    commits: false,
    keeps: true,
    whole: None,
    full: false,
    wide: false,
    dense: false,
    knobs: &[],
    tight_budget: None,
    exact: false,
    empty: &[],
};

const CACHED: Row = Row {
    keeps: false,
    knobs: &[
        ("low_watermark", &["0", "20"]),
        ("high_watermark", &["50", "90"]),
        ("cleaner", &["0", "1"]),
        ("metadata_only", &["0", "1"]),
        ("autocommit_blocks", &["1", "5", "65536"]),
        ("autocommit_time", &["1", "1000"]),
        ("max_age", &["none", "16", "0"]),
        ("writeback_jobs", &["0", "1", "3"]),
        ("pause_writeback", &["0", "30"]),
        ("message", &["flush", "flush_on_suspend", "clear_stats"]),
        ("drain", &["1"]),
    ],
    ..DURABLE
};

const VOLATILE: Row = Row { disk: None, ..DURABLE };

const ZRAM: Row = Row {
    bytes: 512 << 10,
    knobs: &[
        ("max_comp_streams", &["1", "2", "5"]),
        ("mem_limit", &["0", "192K", "112K"]),
        ("compact", &["1"]),
        ("mem_used_max", &["0"]),
    ],
    // What it and the merges above it take before it holds anything, and some more.
    tight_budget: Some((5 << 20) + (160 << 10)),
    exact: true,
    empty: &["orig_data_size", "compr_data_size", "mem_used_total"],
    ..VOLATILE
};

/// A disk for spilling: segments of 64 KiB, fewer than the device fills.
const SPILL_SHIFT: u32 = 16;
const SPILL_BYTES: u64 = 10 << SPILL_SHIFT;
const SPILL_BLOCK: u32 = 4096;

/// Sectors of a page of slots of zram's table, and pages of a block of it.
const SLOTS_SECTORS: u64 = 256 * 8;
const BLOCK_PAGES: u64 = 512;

/// Two blocks, four pages and a part of one.
const WIDE_BYTES: u64 = ((2 * BLOCK_PAGES + 4) * SLOTS_SECTORS + 24) * SECTOR;

/// Sectors of a piece in which a long discard goes, and of the pages that one word of a bitmap tells of.
const PIECE_SECTORS: u64 = (64 << 20) / SECTOR;
const WORD_SECTORS: u64 = 64 * SLOTS_SECTORS;

/// The row called `name`.
pub fn find(name: &str) -> Option<&'static Row> {
    STACKS.iter().find(|row| row.name == name)
}

fn over_file(layers: Vec<LayerConfig>) -> StackConfig {
    let file = file::Config { path: "disk".into(), read_only: false };
    StackConfig { origin: OriginConfig::File(file), layers }
}

fn cached(config: write_cache::Config) -> StackConfig {
    over_file(vec![LayerConfig::WriteCache(write_cache::Config { path: CACHE.into(), ..config })])
}

/// The kernel's ways, mode p's writes with FUA, and everything written back at once.
fn eager() -> write_cache::Config {
    write_cache::Config {
        block_size: 512,
        high_watermark: 20,
        low_watermark: 0,
        mode: Mode::PersistentMemory,
        ablation: Ablation { next_fit: true, single_blocks: true, lone_commits: true },
        ..Default::default()
    }
}

/// Nothing is copied before it has to be.
fn full() -> write_cache::Config {
    write_cache::Config {
        block_size: 512,
        high_watermark: 100,
        low_watermark: 100,
        pause_writeback: Some(0),
        writeback_jobs: 64,
        ..Default::default()
    }
}

fn memory(bytes: u64) -> StackConfig {
    let memory = memory::Config { size: bytes, block_size: 4096 };
    StackConfig { origin: OriginConfig::Memory(memory), layers: vec![] }
}

fn zram(bytes: u64, comp_algorithm: &'static str, layers: Vec<LayerConfig>) -> StackConfig {
    let zram = zram::Config { disksize: bytes, comp_algorithm, max_comp_streams: 2, ..Default::default() };
    StackConfig { origin: OriginConfig::Zram(zram), layers }
}

fn spilling(bytes: u64) -> StackConfig {
    let zram = zram::Config {
        disksize: bytes,
        max_comp_streams: 2,
        spill: Some("spill".into()),
        segment_shift: Some(SPILL_SHIFT),
        ..Default::default()
    };
    StackConfig { origin: OriginConfig::Zram(zram), layers: vec![] }
}

fn trace() -> LayerConfig {
    LayerConfig::Trace(trace::Config { records_max: 8 })
}

fn delay() -> LayerConfig {
    LayerConfig::Delay(delay::Config { read_us: 50, write_us: 80, jitter_percent: 100, ..Default::default() })
}

fn rate() -> LayerConfig {
    LayerConfig::Rate(rate::Config { bytes_per_second: 50 << 20, ..Default::default() })
}

impl Row {
    /// Block of the disk below, or what the contents are compared in where there is none.
    pub fn block(&self) -> BlockSize {
        BlockSize::new(self.disk.unwrap_or(4096)).expect("the table has valid sizes")
    }

    /// Whether what it acknowledges and flushes survives a crash.
    pub fn is_durable(&self) -> bool {
        self.disk.is_some()
    }

    /// Whether it has a disk that may fail.
    pub fn has_disk(&self) -> bool {
        self.disk.is_some() || self.spill.is_some()
    }

    /// Its disks, blank: the origin's or that to which it spills, and the write cache's.
    pub fn media(&self) -> Vec<Medium> {
        let origin = self.disk.map(|_| self.bytes).or(self.spill).map(Medium::new);
        let cache =
            self.cache.map(|cache| if self.full { preset::cache() } else { Medium::new(cache.bytes) });
        origin.into_iter().chain(cache).collect()
    }

    /// Sectors of the device.
    pub fn sectors(&self) -> u64 {
        self.bytes / SECTOR
    }

    /// Sectors near which something changes below; workloads favour them.
    pub fn anchors(&self) -> Vec<u64> {
        match (self.full, self.wide) {
            (true, _) => preset::anchors(),
            (_, true) => {
                let pages = [0, 1, 2, BLOCK_PAGES, 2 * BLOCK_PAGES].map(|page| page * SLOTS_SECTORS);
                pages.into_iter().chain([PIECE_SECTORS, WORD_SECTORS, self.sectors() - 1]).collect()
            }
            _ => vec![],
        }
    }

    /// Sectors of the longest operation that has a payload, where not the whole device may be one's.
    pub fn long(&self) -> u64 {
        match (self.full, self.wide) {
            (true, _) => 192,
            // More pages than one slice of work stores.
            (_, true) => 80 * 8,
            _ if self.dense => 64 * 8,
            _ => self.sectors(),
        }
    }

    /// Sectors of the longest discard, where it may be longer than that.
    pub fn vast(&self) -> Option<u64> {
        self.wide.then_some(PIECE_SECTORS * 5 / 2)
    }

    /// What it may show, before anything is written.
    pub fn model(&self) -> Model {
        let model = Model::new(self.bytes, self.is_durable());
        let model = if self.exact { model.freeing(self.block().bytes() / SECTOR) } else { model };
        let model = model.keeping_whole(self.whole);
        if self.full { model.with_filled(preset::cached_sectors(), preset::VALUE) } else { model }
    }

    /// What disk `number` is called.
    pub fn disk_name(&self, number: usize) -> &'static str {
        match (number, self.spill) {
            (0, None) => "disk",
            (0, Some(_)) => "spill",
            _ => "cache",
        }
    }

    /// Block of disk `number`.
    pub fn disk_block(&self, number: usize) -> BlockSize {
        let origin = self.disk.or(self.spill.map(|_| SPILL_BLOCK));
        let bytes = if number == 0 { origin } else { self.cache.map(|cache| cache.disk) };
        BlockSize::new(bytes.expect("it has that disk")).expect("the table has valid sizes")
    }

    /// What the stack's memory is charged to. `tight`: as little as the row allows.
    pub fn budget(&self, tight: bool) -> Arc<Budget> {
        Budget::new(self.tight_budget.filter(|_| tight).unwrap_or(64 << 20))
    }

    /// Opens the stack in `world`, over its disks, with so many bytes of regions. `force`: a spill file is taken whatever it holds.
    pub async fn open(
        &self,
        world: &Arc<World>,
        disks: &[Arc<Disk>],
        budget: &Arc<Budget>,
        regions_bytes: u64,
        force: bool,
    ) -> Result<Stack, Error> {
        let disks = disks.to_vec();
        let mut config = (self.config)(self.bytes);
        if let OriginConfig::Zram(zram) = &mut config.origin {
            zram.force = force;
        }
        let around = Surroundings {
            name: "device".into(),
            env: world.clone() as Arc<dyn Env>,
            regions: Arc::new(VecRegions::new(regions_bytes)),
            budget: budget.clone(),
            open_file: Arc::new(move |backing: &BackingDevice| {
                let number = usize::from(backing.role == CACHE);
                let storage = disks.get(number).cloned().expect("the row has that disk");
                Ok(OpenStorage { storage, notes: Vec::new() })
            }),
        };
        Stack::open(&config, &[], &around).await
    }
}
