//! The stacks that are simulated: a table. A new layer is one row.
//!
//! The parts are what a row says, and how its stack is opened (`row`), a cache that is full from the beginning (`preset`), when a stack
//! may find no memory (`room`), and who takes of the same memory (`others`).

pub(crate) mod others;
pub mod preset;
pub mod room;
pub mod row;

use spillway_core::SECTOR;
use spillway_layers::small::{delay, memory, rate, trace, volatile};
use spillway_layers::stack::{LayerConfig, OriginConfig, StackConfig};
use spillway_layers::write_cache::{self, Ack, Mode, Placement};
use spillway_layers::{file, page_cache, zram};

use others::OTHERS;
use row::{BACKING, BLOCK_PAGES, CACHE, Cache, Knob, OTHER, Row, SLOTS_SECTORS, SPILL};

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
    Row { name: "nbd-file", keeps: false, remote: true, ..DURABLE },
    Row { name: "nbd-file-512", disk: Some(512), bytes: 32 << 10, keeps: false, remote: true, ..DURABLE },
    Row {
        name: "trace-delay-over-nbd",
        config: |_| over_file(vec![delay(), trace()]),
        keeps: false,
        remote: true,
        ..DURABLE
    },
    Row { name: "write-cache-over-nbd", remote: true, ..WRITE_CACHE },
    Row { name: "write-cache-small-over-nbd", remote: true, ..WRITE_CACHE_SMALL },
    Row { name: "write-cache-eager-over-nbd", remote: true, ..WRITE_CACHE_EAGER },
    Row { name: "write-cache-deep-over-nbd", remote: true, ..WRITE_CACHE_DEEP },
    Row { name: "write-cache-through-over-nbd", remote: true, ..WRITE_CACHE_THROUGH },
    Row { name: "page-cache-over-nbd", remote: true, ..PAGE_CACHE },
    Row { name: "page-cache-small-over-nbd", remote: true, ..PAGE_CACHE_SMALL },
    Row { name: "page-cache-through-over-nbd", keeps: false, remote: true, ..PAGE_CACHE_THROUGH },
    Row { name: "page-cache-limited-over-nbd", remote: true, ..PAGE_CACHE_LIMITED },
    Row { name: "page-cache-sizes-over-nbd", remote: true, ..PAGE_CACHE_SIZES },
    Row { name: "page-cache-over-write-cache-over-nbd", at_risk: None, remote: true, ..BOTH_CACHES },
    // Most outages last longer than requests wait.
    Row {
        name: "write-cache-outages",
        config: |_| {
            let (high_watermark, low_watermark, pause_writeback) = (20, 0, Some(0));
            cached(write_cache::Config {
                high_watermark,
                low_watermark,
                pause_writeback,
                ..Default::default()
            })
        },
        cache: Some(Cache { bytes: 64 << 10, disk: 4096, words: false }),
        whole: Some(8),
        knobs: &[
            ("cleaner", &["0", "1"]),
            ("autocommit_blocks", &["1", "5", "65536"]),
            ("autocommit_time", &["1", "1000"]),
            ("writeback_jobs", &["0", "1", "3"]),
            ("drain", &["1"]),
        ],
        remote: true,
        impatient: true,
        ..CACHED
    },
    Row { name: "page-cache-outages", remote: true, impatient: true, ..PAGE_CACHE },
    // Two hosts, each with a cache device of its own, and an image of a cluster.
    Row { name: "rbd-file", hosts: true, commits: true, keeps: false, ..DURABLE },
    Row { name: "write-cache-over-rbd", whole: None, hosts: true, ..WRITE_CACHE },
    Row { name: "page-cache-over-rbd", hosts: true, ..PAGE_CACHE },
    // The whole of what a host has.
    Row { name: "page-cache-over-write-cache-over-rbd", at_risk: None, hosts: true, ..BOTH_CACHES },
    DRIVE,
    WRITE_CACHE,
    WRITE_CACHE_SMALL,
    WRITE_CACHE_EAGER,
    WRITE_CACHE_DEEP,
    WRITE_CACHE_THROUGH,
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
    PAGE_CACHE,
    PAGE_CACHE_SMALL,
    PAGE_CACHE_THROUGH,
    PAGE_CACHE_LIMITED,
    BOTH_CACHES,
    PAGE_CACHE_ZONES,
    PAGE_CACHE_SIZES,
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
            ("spill_age", &["0", "1"]),
            ("spill_daily_bytes", &["0", "0", "1M"]),
            (BACKING, &[OTHER, SPILL]),
        ],
        attaches: true,
        setups: &[
            &[STREAMS],
            &[STREAMS, ("compressed_writeback", "0")],
            &[STREAMS, (BACKING, OTHER)],
            &[STREAMS, (BACKING, SPILL)],
            &[STREAMS, (BACKING, OTHER), (BACKING, SPILL)],
            &[STREAMS, (BACKING, SPILL), (BACKING, OTHER)],
        ],
        tight_budget: None,
        empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "lost_pages"],
        ..ZRAM
    },
    SHARED,
    // A second device in the same memory: a larger one, which spills too or does not, or a page cache.
    Row {
        name: "zram-pair",
        knobs: &[
            ("writeback", &["page_indexes=0-127", "idle", "huge"]),
            (OTHERS, &["3M", "all", "3M", "256K"]),
            ("bring_back", &["always", "never"]),
            ("spill_high_watermark", &["90", "100"]),
        ],
        beside: &[
            &Row { name: "beside: zram-shared", bytes: 4 << 20, spill: Some(6 << 20), ..SHARED },
            &Row { bytes: 4 << 20, ..BESIDE },
            &PAGE_CACHE,
        ],
        ..SHARED
    },
    Row {
        name: "zram-deferred",
        config: deferring,
        spill: Some(SPILL_BYTES),
        knobs: &[
            ("writeback", &["page_indexes=0-127", "idle", "huge", "page_indexes=8-40"]),
            ("deferred_bytes_max", &["0", "16K", "128K", "128K", "4M"]),
            ("idle", &["all", "1"]),
            ("bring_back", &["never", "always"]),
            ("mem_limit", &["0", "192K", "112K"]),
            ("max_comp_streams", &["1", "2"]),
            ("compact", &["1"]),
        ],
        setups: &[&[STREAMS]],
        tight_budget: None,
        empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "deferred_bytes"],
        ..ZRAM
    },
    Row {
        name: "zram-recompress",
        config: recompressing,
        spill: Some(SPILL_BYTES),
        knobs: &[
            ("writeback", &["page_indexes=0-127", "incompressible", "idle", "huge"]),
            ("recompress", &["priority=1", "algo=deflate", "type=idle priority=1", "type=huge algo=deflate"]),
            (
                "recompress",
                &["priority=1 max_pages=3", "algo=deflate threshold=900", "priority=2 threshold=3000"],
            ),
            ("recompress_age", &["0", "1", "1"]),
            ("idle", &["all", "1"]),
            ("writeback_batch_size", &["1", "3", "256"]),
            ("bring_back", &["second", "always", "always"]),
            ("mem_limit", &["0", "192K", "112K"]),
            ("compact", &["1"]),
        ],
        setups: &[
            &[STREAMS, ("recomp_algorithm", SECONDARIES)],
            &[STREAMS, ("recomp_algorithm", "algo=deflate priority=1, algo=zstd priority=2")],
            &[STREAMS],
        ],
        tight_budget: None,
        empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "lost_pages"],
        ..ZRAM
    },
    Row {
        name: "zram-kept",
        config: recompressing,
        spill: Some(4 * SPILL_BYTES),
        kept: true,
        knobs: &[
            ("writeback", &["page_indexes=0-127", "page_indexes=0-127", "idle", "huge"]),
            ("writeback_limit", &["0", "3", "40"]),
            ("writeback_limit_enable", &["0", "1"]),
            ("writeback_batch_size", &["1", "3", "256"]),
            ("deferred_bytes_max", &["0", "16K", "128K"]),
            ("recompress", &["priority=1", "algo=deflate"]),
            ("idle", &["all"]),
            ("bring_back", &["second", "always"]),
            ("compact", &["1"]),
        ],
        tight_budget: None,
        exact: false,
        empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "lost_pages"],
        ..ZRAM
    },
    Row { name: "delay-zram", config: |bytes| zram(bytes, "lz4", vec![delay()]), ..ZRAM },
];

/// What there is beside any of them, now and then.
pub(crate) const COMPANY: &[&Row] = &[
    &Row { name: "beside: zram-shared", bytes: 1 << 20, spill: Some(2 << 20), ..SHARED },
    &BESIDE,
    &PAGE_CACHE,
];

const DURABLE: Row = Row {
    name: "",
    config: |_| over_file(vec![]),
    bytes: 128 << 10,
    disk: Some(4096),
    spill: None,
    kept: false,
    attaches: false,
    cache: None,
    commits: false,
    keeps: true,
    whole: None,
    full: false,
    wide: false,
    dense: false,
    scans: false,
    at_risk: None,
    knobs: &[],
    setups: &[],
    tight_budget: None,
    exact: false,
    empty: &[],
    remote: false,
    impatient: false,
    hosts: false,
    beside: &[],
};

/// A drive's cache of a few blocks over the disk.
const DRIVE: Row = Row {
    name: "volatile-file",
    config: |_| over_file(vec![volatile()]),
    keeps: false,
    knobs: &[("volatile_bytes_max", &["0", "4K", "16K", "64K", "1M"])],
    ..DURABLE
};

const PAGED_AND_CACHED: &[Knob] = &[
    ("dirty_background_ratio", &["0", "20"]),
    ("dirty_ratio", &["60", "100"]),
    ("dirty_expire", &["1", "30000"]),
    ("at_risk_seconds_max", &["none", "1"]),
    ("autocommit_blocks", &["1", "65536"]),
    ("autocommit_time", &["1", "1000"]),
    ("high_watermark", &["50", "90"]),
    ("cleaner", &["0", "1"]),
];

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

const WRITE_CACHE: Row = Row {
    name: "write-cache",
    config: |_| cached(write_cache::Config::default()),
    cache: Some(Cache { bytes: 256 << 10, disk: 4096, words: false }),
    whole: Some(8),
    ..CACHED
};

const WRITE_CACHE_SMALL: Row = Row {
    name: "write-cache-small",
    config: |_| {
        cached(write_cache::Config { block_size: 512, pause_writeback: Some(0), ..Default::default() })
    },
    bytes: 32 << 10,
    disk: Some(512),
    cache: Some(Cache { bytes: 12 << 10, disk: 512, words: false }),
    ..CACHED
};

const WRITE_CACHE_EAGER: Row = Row {
    name: "write-cache-eager",
    config: |_| cached(eager()),
    bytes: 32 << 10,
    disk: Some(512),
    cache: Some(Cache { bytes: 96 << 10, disk: 512, words: true }),
    ..CACHED
};

/// Few blocks, of each of which many versions lie in the cache.
const WRITE_CACHE_DEEP: Row = Row {
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
};

const WRITE_CACHE_THROUGH: Row = Row {
    name: "write-cache-through",
    config: |_| cached(write_cache::Config { ack: Ack::Committed, ..Default::default() }),
    cache: Some(Cache { bytes: 64 << 10, disk: 4096, words: false }),
    commits: true,
    whole: Some(8),
    ..CACHED
};

const PAGED: Row = Row {
    keeps: false,
    scans: true,
    knobs: &[
        ("dirty_background_ratio", &["0", "0", "20"]),
        ("dirty_ratio", &["20", "60", "100"]),
        ("dirty_expire", &["1", "20", "30000"]),
        ("readahead_bytes_max", &["0", "4K", "1M"]),
    ],
    ..DURABLE
};

const PAGE_CACHE: Row = Row { name: "page-cache", config: |_| over_file(vec![paged(pages())]), ..PAGED };

/// Blocks of a sector, and hardly any folio without one that is dirty.
const PAGE_CACHE_SMALL: Row = Row {
    name: "page-cache-small",
    config: |_| over_file(vec![paged(sectors())]),
    disk: Some(512),
    bytes: 40 << 10,
    ..PAGED
};

const PAGE_CACHE_THROUGH: Row = Row {
    name: "page-cache-through",
    config: |_| {
        over_file(vec![paged(page_cache::Config { mode: page_cache::Mode::Writethrough, ..pages() })])
    },
    keeps: true,
    ..PAGED
};

const PAGE_CACHE_LIMITED: Row = Row {
    name: "page-cache-limited",
    config: |_| over_file(vec![paged(pages())]),
    at_risk: Some(8 << 10),
    knobs: &[
        ("dirty_background_ratio", &["20", "60"]),
        ("dirty_ratio", &["60", "100"]),
        ("dirty_expire", &["20", "30000"]),
        ("at_risk_seconds_max", &["none", "1", "3"]),
    ],
    ..PAGED
};

/// Dirty above, uncommitted below.
const BOTH_CACHES: Row = Row {
    name: "page-cache-over-write-cache",
    config: |_| paged_and_cached(),
    cache: Some(Cache { bytes: 256 << 10, disk: 4096, words: false }),
    at_risk: Some(16 << 10),
    knobs: PAGED_AND_CACHED,
    ..CACHED
};

/// Two zones and one dirty limit: reclaim meets dirty folios, and writes them.
const PAGE_CACHE_ZONES: Row = Row {
    name: "page-cache-zones",
    config: |_| over_file(vec![paged(page_cache::Config { division: zones_of_2011(), ..pages() })]),
    ..PAGED
};

/// Folios of one block, two and four, which must not lie over each other.
const PAGE_CACHE_SIZES: Row = Row {
    name: "page-cache-sizes",
    config: |_| over_file(vec![paged(page_cache::Config { folio_size: None, ..pages() })]),
    ..PAGED
};

/// Others take what they like of the memory that it shares with them.
const SHARED: Row = Row {
    name: "zram-shared",
    config: spilling,
    spill: Some(4 * SPILL_BYTES),
    knobs: &[
        ("writeback", &["page_indexes=0-127", "idle", "huge"]),
        (OTHERS, &["all", "all", "0", "64K", "256K"]),
        ("idle", &["all"]),
        ("bring_back", &["always", "always", "second", "never"]),
        ("mem_limit", &["0", "0", "192K", "112K"]),
        ("spill_high_watermark", &["90", "100"]),
        ("compact", &["1"]),
    ],
    tight_budget: None,
    empty: &["orig_data_size", "compr_data_size", "mem_used_total", "spill_bytes", "lost_pages"],
    ..ZRAM
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

const BESIDE: Row =
    Row { name: "beside: zram", config: |bytes| zram(bytes, "lz4", vec![]), bytes: 1 << 20, ..ZRAM };

/// As many streams after a reset as before, however many cores there are.
const STREAMS: (&str, &str) = ("max_comp_streams", "2");

/// Codecs of which none reads what another, or the primary, has made.
const SECONDARIES: &str = "algo=zstd priority=1, algo=deflate priority=2";

/// A disk for spilling: segments of 64 KiB, fewer than the device fills.
const SPILL_SHIFT: u32 = 16;
const SPILL_BYTES: u64 = 10 << SPILL_SHIFT;

/// Two blocks, four pages and a part of one.
const WIDE_BYTES: u64 = ((2 * BLOCK_PAGES + 4) * SLOTS_SECTORS + 24) * SECTOR;

/// The row called `name`.
pub fn find(name: &str) -> Option<&'static Row> {
    STACKS.iter().find(|row| row.name == name)
}

fn over_file(layers: Vec<LayerConfig>) -> StackConfig {
    let file = file::Config { path: "disk".into(), ..file::Config::default() };
    StackConfig { origin: OriginConfig::File(file), layers }
}

fn cached(config: write_cache::Config) -> StackConfig {
    over_file(vec![LayerConfig::WriteCache(write_cache::Config { path: CACHE.into(), ..config })])
}

fn paged_and_cached() -> StackConfig {
    let mut stack = cached(write_cache::Config::default());
    stack.layers.push(paged(pages()));
    stack
}

fn paged(config: page_cache::Config) -> LayerConfig {
    LayerConfig::PageCache(config)
}

/// Seven folios of two blocks, in two shards, for a device of sixteen.
fn pages() -> page_cache::Config {
    page_cache::Config {
        page_cache_bytes_max: Some(90 << 10),
        folio_size: Some(8192),
        dirty_background_ratio: 20,
        dirty_ratio: 60,
        cut: page_cache::Cut { region_bytes: 16 << 10, shards: 2 },
        ..Default::default()
    }
}

/// A third of the folios, and the rest.
fn zones_of_2011() -> page_cache::Division {
    page_cache::Division { zones: vec![1, 2], of_2011: page_cache::Of2011::ALL, ..Default::default() }
}

/// Five folios of eight blocks for a device of ten.
fn sectors() -> page_cache::Config {
    page_cache::Config {
        page_cache_bytes_max: Some(43 << 10),
        block_size: Some(512),
        folio_size: Some(4096),
        cut: page_cache::Cut { region_bytes: 8192, shards: 2 },
        ..pages()
    }
}

/// Each block by itself, mode p's writes with FUA, and everything written back at once.
fn eager() -> write_cache::Config {
    write_cache::Config {
        block_size: 512,
        high_watermark: 20,
        low_watermark: 0,
        mode: Mode::PersistentMemory,
        placement: Placement(|free, _| free.take_fit(1)),
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
    StackConfig { origin: OriginConfig::Zram(with_spill(bytes)), layers: vec![] }
}

fn recompressing(bytes: u64) -> StackConfig {
    let zram = zram::Config { recomp_algorithm: Some(SECONDARIES.into()), ..with_spill(bytes) };
    StackConfig { origin: OriginConfig::Zram(zram), layers: vec![] }
}

fn with_spill(bytes: u64) -> zram::Config {
    zram::Config {
        disksize: bytes,
        max_comp_streams: 2,
        spill: Some(SPILL.into()),
        segment_shift: Some(SPILL_SHIFT),
        ..Default::default()
    }
}

fn deferring(bytes: u64) -> StackConfig {
    let mut config = spilling(bytes);
    if let OriginConfig::Zram(zram) = &mut config.origin {
        zram.deferred_bytes_max = bytes / 4;
    }
    config
}

fn trace() -> LayerConfig {
    LayerConfig::Trace(trace::Config { records_max: 8 })
}

fn volatile() -> LayerConfig {
    LayerConfig::Volatile(volatile::Config { volatile_bytes_max: 32 << 10, ..Default::default() })
}

fn delay() -> LayerConfig {
    LayerConfig::Delay(delay::Config { read_us: 50, write_us: 80, jitter_percent: 100, ..Default::default() })
}

fn rate() -> LayerConfig {
    LayerConfig::Rate(rate::Config { bytes_per_second: 50 << 20, ..Default::default() })
}
