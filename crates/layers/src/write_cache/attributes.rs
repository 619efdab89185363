//! The cache as the control plane sees it: the kernel's status line, each of its fields by name, the options, the messages.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Attribute, Column, Error, Place, Spec, Table, Type, Unit, Value, task};

use super::config::Settings;
use super::device::counts::Count;
use super::device::{Core, WriteCache};
use crate::decisions::Decisions;

/// The kernel's 14 fields. Ours count blocks throughout, where the kernel counts hits by piece.
const STATUS: Type = Type::Columns {
    head: "",
    columns: &[
        Column::new("error", Unit::None),
        Column::new("blocks", Unit::Blocks),
        Column::new("free_blocks", Unit::Blocks),
        Column::new("writeback_blocks", Unit::Blocks),
        Column::new("reads", Unit::Blocks),
        Column::new("read_hits", Unit::Blocks),
        Column::new("writes", Unit::Blocks),
        Column::new("write_hits_uncommitted", Unit::Blocks),
        Column::new("write_hits_committed", Unit::Blocks),
        Column::new("writes_around", Unit::Blocks),
        Column::new("writes_allocate", Unit::Blocks),
        Column::new("writes_blocked_on_freelist", Unit::Requests),
        Column::new("flushes", Unit::Requests),
        Column::new("discards", Unit::Blocks),
    ],
};

const MESSAGES: Type = Type::Choice(&["flush", "flush_on_suspend", "cleaner", "clear_stats"]);
const DRAIN_STATES: Type = Type::Choice(&["off", "running", "complete", "failed"]);

impl WriteCache {
    fn status(&self) -> Value {
        let core = &self.core;
        let fields = [
            u64::from(core.failure.check().is_err()),
            core.layout.n_blocks,
            u64::from(core.space.count()),
            u64::from(core.index.writing_back()),
        ];
        Value::Columns(fields.into_iter().chain(core.counts.kernels()).collect())
    }

    fn message(&self, message: &str) -> Result<(), Error> {
        match message {
            "flush" => self.core.drain(false)?,
            "flush_on_suspend" => self.core.flush_on_suspend.store(true, Ordering::Release),
            "cleaner" => {
                self.core.settings.cleaner.set(true);
                self.changed("cleaner");
            }
            "clear_stats" => self.core.counts.clear(),
            other => unreachable!("the declaration allows {other}"),
        }
        Ok(())
    }

    /// An option has changed: what it asks for begins, on a thread that runs tasks.
    fn changed(&self, option: &'static str) {
        if option == "cleaner" && !self.core.settings.cleaner.get() {
            self.core.drain.forget();
        }
        let core = self.core.clone();
        self.core.env.spawn(Place::Background, task(async move || core.resume()));
    }
}

macro_rules! gauge {
    ($name:literal, $unit:ident, $help:literal, $show:expr) => {
        Attribute::read(Spec::gauge($name, Unit::$unit, $help), |cache: &WriteCache| {
            Value::U64(u64::from(($show as fn(&Core) -> _)(&cache.core)))
        })
    };
}

macro_rules! count {
    ($name:literal, $unit:ident, $help:literal, $count:ident) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |cache: &WriteCache| {
            Value::U64(cache.core.counts.get(Count::$count))
        })
    };
}

macro_rules! mean {
    ($name:literal, $unit:ident, $help:literal, $parts:expr) => {
        Attribute::read(Spec::mean($name, Unit::$unit, $help), |cache: &WriteCache| {
            let (one, other) = ($parts as fn(&Core) -> (u64, u64))(&cache.core);
            Value::mean(one, other)
        })
    };
}

static ROWS: &[Attribute<WriteCache>] = &[
    Attribute::read(Spec::fact("status", STATUS, "The kernel's status line"), WriteCache::status),
    Attribute::read(
        Spec::failure(
            "First error of the metadata or of writing back. It sticks until the cache is opened again",
        ),
        |cache| Value::failure(cache.core.failure.check()),
    ),
    gauge!("blocks", Blocks, "Blocks of the cache", |core| core.layout.n_blocks),
    gauge!(
        "bad_blocks",
        Blocks,
        "Blocks set aside for ten minutes or until the next start because writing them failed",
        |core| core.space.bad()
    ),
    gauge!("free_blocks", Blocks, "Blocks that hold nothing", |core| core.space.count()),
    gauge!("dirty_blocks", Blocks, "Blocks of the origin that the cache holds", |core| core.index.held()),
    gauge!("uncommitted_blocks", Blocks, "Dirty blocks that no commit covers yet", |core| core
        .journal
        .uncommitted()),
    gauge!("writeback_blocks", Blocks, "Blocks being written back", |core| core.index.writing_back()),
    gauge!("seq_count", None, "Sequence number of the last commit, as in the superblock", |core| core
        .journal
        .committed()
        .0),
    count!("reads", Blocks, "Blocks read", Reads),
    count!("read_hits", Blocks, "Blocks read from the cache", ReadHits),
    count!("writes", Blocks, "Blocks written", Writes),
    count!("write_hits_uncommitted", Blocks, "Blocks written over an uncommitted block", HitsUncommitted),
    count!("write_hits_committed", Blocks, "Blocks written over a committed block", HitsCommitted),
    count!("writes_around", Blocks, "Blocks written to the origin, bypassing the cache", Bypassed),
    count!("writes_allocate", Blocks, "Blocks written that were not in the cache", Allocated),
    count!("writes_blocked_on_freelist", Requests, "Writes that waited for free blocks", Blocked),
    count!("flushes", Requests, "Flush requests", Flushes),
    count!("discards", Blocks, "Blocks discarded", Discards),
    count!("commits", None, "Superblocks written", Commits),
    count!("writeback_ios", Requests, "Writes of cached blocks to the origin", WritebackIos),
    mean!("blocks_per_writeback_io", Blocks, "Mean size of a write to the origin", |core| {
        (core.counts.get(Count::WrittenBack), core.counts.get(Count::WritebackIos))
    }),
    mean!(
        "write_amplification",
        None,
        "Blocks written to the origin for each block written here; below 1 where writes replaced others in the cache",
        |core| {
            let to_origin = core.counts.get(Count::WrittenBack) + core.counts.get(Count::Bypassed);
            (to_origin, core.counts.get(Count::Writes))
        }
    ),
    mean!(
        "ios_per_write",
        Requests,
        "Mean number of I/Os for a write to the cache; 1 if free blocks are contiguous",
        |core| (core.counts.get(Count::Pieces), core.counts.get(Count::CacheWrites))
    ),
    mean!("free_run_mean", Blocks, "Mean length of the runs of free blocks", |core| {
        let (blocks, runs, _) = core.space.runs_of_free();
        (blocks.into(), runs as u64)
    }),
    gauge!("free_run_p10", Blocks, "Length that nine tenths of the runs of free blocks reach", |core| {
        core.space.runs_of_free().2
    }),
    gauge!(
        "origin_bytes_per_second",
        BytesPerSecond,
        "Measured write speed of the origin; 0 before",
        |core| core.meter.bytes_per_second()
    ),
    Attribute::write(
        Spec::command(
            "drain",
            Type::Number(1, 1),
            "Writes back everything and turns on cleaner, so that the cache stays empty; cleaner 0 ends it",
        ),
        |cache, _| cache.core.drain(true),
    ),
    Attribute::read(
        Spec::fact("drain_state", DRAIN_STATES, "Whether a drain is running, and how it ended"),
        |cache| Value::Choice(cache.core.drain.word()),
    ),
    Attribute::write(
        Spec::command(
            "message",
            MESSAGES,
            "The kernel's messages. flush: write back everything now (drain_state shows progress); flush_on_suspend: do so once, when \
             the device is stopped; cleaner: turn it on; clear_stats: clear the counters",
        ),
        |cache, value| cache.message(value.choice().expect("a message")),
    ),
    Attribute::read(Decisions::spec(), |cache| cache.core.decisions.rows()),
];

/// The declarations of a cache's attributes that are no options.
pub fn declarations() -> Vec<Spec> {
    ROWS.iter().map(Attribute::spec).collect()
}

/// The attributes of `cache`.
pub fn attributes(cache: Arc<WriteCache>) -> Table<WriteCache> {
    Table::new(cache, ROWS).with(Settings::ROWS, |cache| &cache.core.settings, WriteCache::changed)
}
