//! The cache as the control plane sees it: its options, and what it counts.

use std::sync::Arc;

use spillway_core::{Answer, Attribute, Column, Spec, Table, Type, Unit, Value};

use super::config::Settings;
use super::device::counts::{Count, InZone};
use super::device::{Core, PageCache};
use super::folios::shares::Traffic;
use super::folios::zones::ZoneUsage;
use crate::decisions::Decisions;

impl PageCache {
    fn field(&self, show: impl FnOnce(&Core) -> u64) -> Value {
        Value::U64(show(&self.core))
    }

    fn count(&self, count: Count) -> Value {
        Value::U64(self.core.counts.get(count))
    }

    fn share(&self, one: Count, of: u64) -> Value {
        Value::mean(self.core.counts.get(one), of)
    }

    /// Bytes read, and those of them that were in memory.
    fn read_bytes(&self) -> (u64, u64) {
        let counts = &self.core.counts;
        let hit = counts.sum(InZone::HitBytes);
        (hit + counts.get(Count::MissedBytes), hit)
    }

    fn dirtied_bytes(&self) -> u64 {
        self.core.traffic().dirtied * self.core.places.block_bytes()
    }

    /// An option has changed.
    fn changed(&self, _: &'static str) {
        let core = &self.core;
        core.limit_unsaved();
        core.writeback.kick();
    }
}

macro_rules! bytes {
    ($name:literal, $help:literal, $show:expr) => {
        Attribute::read(Spec::gauge($name, Unit::Bytes, $help), |cache: &PageCache| cache.field($show))
    };
}

macro_rules! blocks {
    ($name:literal, $help:literal, $show:expr) => {
        Attribute::read(Spec::gauge($name, Unit::Blocks, $help), |cache: &PageCache| cache.field($show))
    };
}

macro_rules! count {
    ($name:literal, $unit:ident, $help:literal, $count:ident) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |cache: &PageCache| {
            cache.count(Count::$count)
        })
    };
}

macro_rules! in_zones {
    ($name:literal, $unit:ident, $help:literal, $count:ident, $of:literal) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |cache: &PageCache| {
            cache.field(|core| core.counts.sum(InZone::$count) / $of)
        })
    };
}

macro_rules! traffic {
    ($name:literal, $unit:ident, $help:literal, $field:ident) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |cache: &PageCache| {
            cache.field(|core| core.traffic().$field)
        })
    };
}

/// What is shown of folios of a size.
const SIZES: &[Column] = &[Column::wide("bytes", Unit::Bytes), Column::wide("folios", Unit::None)];

fn sizes(cache: &PageCache) -> Value {
    let core = &cache.core;
    let sizes = (0..).zip(core.folios()).filter(|(_, folios)| *folios > 0);
    let row = |(order, folios): (u8, u64)| vec![core.places.unit_bytes() << order, folios];
    Value::Rows(sizes.map(|size| row(size).into_iter().map(Value::U64).collect()).collect())
}

/// What is shown of each zone: what it holds, and what has happened there.
const ZONES: &[Column] = &[
    Column::wide("zone", Unit::None),
    Column::wide("blocks", Unit::Blocks),
    Column::wide("free", Unit::Blocks),
    Column::wide("clean", Unit::Blocks),
    Column::wide("nr_dirty", Unit::Blocks),
    Column::wide("nr_writeback", Unit::Blocks),
    Column::wide("nr_dirtied", Unit::Blocks),
    Column::wide("nr_written", Unit::Blocks),
    Column::wide("created", Unit::None),
    Column::wide("created_ahead", Unit::None),
    Column::wide("activated", Unit::None),
    Column::wide("evicted", Unit::None),
    Column::wide("read_bytes", Unit::Bytes),
    Column::wide("read_hit_bytes", Unit::Bytes),
    Column::wide("readahead_used", Unit::None),
    Column::wide("readahead_wasted", Unit::None),
    Column::wide("throttled_time", Unit::Milliseconds),
];

fn zones(cache: &PageCache) -> Value {
    let core = &cache.core;
    let row = |zone: usize| {
        let held = core.zones.held(zone);
        let ZoneUsage { all, free, dirty, moving } = held;
        let Traffic { dirtied, written, created, created_ahead, activated, evicted, .. } =
            core.traffic_of(zone);
        let holds = [zone as u64, all, free, held.clean(), dirty, moving];
        let happened = [dirtied, written, created, created_ahead, activated, evicted];
        let met = |count| core.counts.get_in(zone, count);
        let (hit, missed) = (met(InZone::HitBytes), met(InZone::MissedBytes));
        let (used, wasted) = (met(InZone::AheadUsed), met(InZone::AheadWasted));
        let met = [hit + missed, hit, used, wasted, met(InZone::PausedMicros) / 1000];
        holds.into_iter().chain(happened).chain(met).map(Value::U64).collect()
    };
    Value::Rows((0..core.zones.len()).map(row).collect())
}

static ROWS: &[Attribute<PageCache>] = &[
    Attribute::read(
        Spec::failure(
            "First error of writing back or of a flush below. It sticks until the cache is opened again",
        ),
        |cache| Value::failure(cache.core.failure.check()),
    ),
    bytes!("folio_bytes_max", "Bytes that folios can hold", |core| core.zones.units()
        * core.places.unit_bytes()),
    bytes!("folio_bytes", "Bytes of memory in folios", |core| {
        let units: u64 = core.shards.iter().map(|shard| shard.read().units()).sum();
        units * core.places.unit_bytes()
    }),
    Attribute::read(
        Spec::fact("folio_sizes", Type::Rows(SIZES), "Folios of each size that there are"),
        sizes,
    ),
    bytes!("dirty_bytes", "Bytes of blocks that are dirty", |core| core.zones.dirty()
        * core.places.block_bytes()),
    blocks!("nr_dirty", "Blocks that are dirty", |core| core.zones.dirty()),
    blocks!("nr_writeback", "Blocks that are being written back", |core| core.zones.moving()),
    blocks!("nr_dirty_background_threshold", "Dirty blocks above which write-back begins", Core::background),
    blocks!(
        "nr_dirty_threshold",
        "Dirty blocks, and those being written back, above which writes wait",
        |core| core.unsaved.limit()
    ),
    bytes!(
        "unsaved_bytes",
        "Bytes of blocks that are dirty, being written back, or about to become dirty",
        |core| core.unsaved.used() * core.places.block_bytes()
    ),
    bytes!("unsaved_bytes_max", "Limit of unsaved_bytes, above which writes wait", |core| core
        .unsaved
        .limit()
        * core.places.block_bytes()),
    Attribute::read(Spec::counter("read_bytes", Unit::Bytes, "Bytes read"), |cache| {
        Value::U64(cache.read_bytes().0)
    }),
    in_zones!("read_hit_bytes", Bytes, "Bytes read that were in memory", HitBytes, 1),
    Attribute::read(
        Spec::mean("hit_ratio", Unit::None, "Share of the bytes read that were in memory"),
        |cache| {
            let (all, hit) = cache.read_bytes();
            Value::mean(hit, all)
        },
    ),
    count!("write_bytes", Bytes, "Bytes written", WriteBytes),
    Attribute::read(
        Spec::counter("dirtied_bytes", Unit::Bytes, "Bytes of blocks that became dirty by writes"),
        |cache| Value::U64(cache.dirtied_bytes()),
    ),
    count!("written_back_bytes", Bytes, "Bytes written back", WrittenBytes),
    Attribute::read(
        Spec::mean(
            "write_amplification",
            Unit::None,
            "Bytes written back for each byte of blocks that became dirty",
        ),
        |cache| cache.share(Count::WrittenBytes, cache.dirtied_bytes()),
    ),
    count!("writeback_ios", Requests, "Writes to the device below", WritebackIos),
    Attribute::read(
        Spec::mean("bytes_per_writeback_io", Unit::Bytes, "Mean size of a write to the device below"),
        |cache| cache.share(Count::WrittenBytes, cache.core.counts.get(Count::WritebackIos)),
    ),
    count!("writes_blocked", Requests, "Waits of writes, for fewer unsaved blocks or for memory", Blocked),
    count!(
        "throttled_writes",
        Requests,
        "Writes that paused while blocks were dirtied faster than written back",
        Throttled
    ),
    in_zones!(
        "throttled_time",
        Milliseconds,
        "Time of these pauses, added up over all writes",
        PausedMicros,
        1000
    ),
    count!("flushes", Requests, "Flush requests", Flushes),
    traffic!(
        "nr_redirtied",
        Blocks,
        "Blocks that are dirty again because they could not be written back",
        redirtied
    ),
    traffic!("folios_created", None, "Folios created by reads and writes", created),
    traffic!("folios_created_ahead", None, "Folios created by readahead", created_ahead),
    traffic!(
        "folios_activated",
        None,
        "Folios that clients accessed again while they were new, or soon after their eviction; readahead and write-back do not count",
        activated
    ),
    traffic!("folios_evicted", None, "Folios evicted to make room", evicted),
    count!(
        "folios_evicted_directly",
        None,
        "Folios evicted by requests, because background reclaim was late",
        EvictedDirectly
    ),
    count!("reads_uncached", Requests, "Reads of the device below whose data found no memory", Uncached),
    Attribute::read(
        Spec::fact(
            "zones",
            Type::Rows(ZONES),
            "What each zone of memory holds, and what has happened there; by default there is one for each NUMA node",
        ),
        zones,
    ),
    count!("readahead_bytes", Bytes, "Bytes read ahead", AheadBytes),
    in_zones!("readahead_used", None, "Folios read ahead that were then read", AheadUsed, 1),
    in_zones!("readahead_wasted", None, "Folios read ahead and evicted unread", AheadWasted, 1),
    Attribute::read(
        Spec::gauge(
            "below_bytes_per_second",
            Unit::BytesPerSecond,
            "Measured write speed of the device below; 0 before",
        ),
        |cache| Value::U64(cache.core.meter.bytes_per_second()),
    ),
    Attribute::begin(
        Spec::command(
            "drain",
            Type::Number(1, 1),
            "Write back everything that is dirty, make it durable, and wait for that; then drain the parts below that can be",
        ),
        |cache, _| {
            let core = cache.core.clone();
            Answer::pending(async move { core.drain().await })
        },
    ),
    Attribute::read(Decisions::spec(), |cache| cache.core.decisions.rows()),
];

/// The declarations of a cache's attributes that are no options.
pub fn declarations() -> Vec<Spec> {
    ROWS.iter().map(Attribute::spec).collect()
}

/// The attributes of `cache`.
pub fn attributes(cache: Arc<PageCache>) -> Table<PageCache> {
    Table::new(cache, ROWS).with(Settings::ROWS, |cache| &cache.core.settings, PageCache::changed)
}
