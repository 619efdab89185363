//! The control table of a zram device.
//!
//! Names, columns, accepted input and errors are the kernel's (reference: zram, attributes and statistics); docs/zram.md
//! lists the differences, each with its reason.

use std::sync::Arc;

use spillway_core::{Attribute, Budget, Column, Error, Kind, Spec, Table, Type, Unit, Value, mutant};

use super::codec::CODECS;
use super::commands;
use super::config::{OPTIONS, Settings};
use super::control::algorithms;
use super::device::backing::Backing;
use super::device::{Count, Zram};
use super::page::PAGE;
use crate::decisions::Decisions;
use crate::options::Field;
use crate::spill;

const IO_STAT: Type = Type::Columns {
    head: "",
    columns: &[
        Column::wide("failed_reads", Unit::Requests),
        Column::wide("failed_writes", Unit::Requests),
        Column::new("invalid_io", Unit::Requests),
        Column::wide("notify_free", Unit::Pages),
    ],
};

const MM_STAT: Type = Type::Columns {
    head: "",
    columns: &[
        Column::wide("orig_data_size", Unit::Bytes),
        Column::wide("compr_data_size", Unit::Bytes),
        Column::wide("mem_used_total", Unit::Bytes),
        Column::wide("mem_limit", Unit::Bytes),
        Column::wide("mem_used_max", Unit::Bytes),
        Column::wide("same_pages", Unit::Pages),
        Column::wide("pages_compacted", Unit::Pages),
        Column::wide("huge_pages", Unit::Pages),
        Column::wide("huge_pages_since", Unit::Pages),
    ],
};

const BD_STAT: Type = Type::Columns {
    head: "",
    columns: &[
        Column::wide("bd_count", Unit::Pages),
        Column::wide("bd_reads", Unit::Pages),
        Column::wide("bd_writes", Unit::Pages),
    ],
};

const DEBUG_STAT: Type = Type::Columns {
    head: "version: 1\n",
    columns: &[Column::wide("writestall", Unit::None), Column::wide("miss_free", Unit::None)],
};

macro_rules! counter {
    ($name:literal, $unit:ident, $help:literal, $count:ident) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |zram: &Zram| {
            Value::U64(zram.core.counted(Count::$count))
        })
    };
}

macro_rules! gauge {
    ($name:literal, $unit:ident, $help:literal, $get:expr) => {
        Attribute::read(Spec::gauge($name, Unit::$unit, $help), |zram: &Zram| {
            let get: fn(&Zram) -> u64 = $get;
            Value::U64(get(zram))
        })
    };
}

/// What the spill file counts from its opening on.
macro_rules! of_spill_file {
    ($name:literal, $unit:ident, $help:literal, $count:ident) => {
        Attribute::read(Spec::counter($name, Unit::$unit, $help), |zram: &Zram| {
            let count = |backing: Arc<Backing>| backing.store.count(spill::Count::$count);
            Value::U64(zram.core.backing.get().map_or(0, count))
        })
    };
}

static ROWS: &[Attribute<Zram>] = &[
    Attribute::both_begin(
        OPTIONS.disksize,
        |zram| Value::U64(zram.core.size()),
        |zram, value| commands::set_size(zram, number(&value)),
    ),
    Attribute::read(Spec::fact("initstate", Type::Switch, "1 once the device has a size"), |zram| {
        Value::Switch(zram.core.size() > 0)
    }),
    Attribute::begin(
        Spec::command(
            "reset",
            Type::Number(1, u16::MAX as u64),
            "Drops all data, the size, limits, statistics and the choice of algorithm. EBUSY while clients are connected",
        )
        .above(Kind::Range),
        |zram, _| commands::reset(zram),
    ),
    Attribute::both(
        OPTIONS.comp_algorithm,
        |zram| Value::Choice(CODECS[zram.core.streams.choice().codec].name),
        |zram, value| algorithms::set_primary(zram, value.choice().expect("a name")),
    ),
    Attribute::both(
        OPTIONS.recomp_algorithm,
        |zram| Value::Text(algorithms::secondaries(zram)),
        |zram, value| algorithms::set_secondaries(zram, &text(value)),
    ),
    Attribute::write(OPTIONS.algorithm_params, |zram, value| algorithms::set_params(zram, &text(value))),
    Attribute::both(
        OPTIONS.max_comp_streams,
        |zram| Value::U64(zram.core.streams.limit() as u64),
        |zram, value| {
            zram.core.streams.set_limit(number(&value) as usize);
            Ok(())
        },
    ),
    Attribute::both(
        OPTIONS.mem_limit,
        |zram| Value::U64(limit(zram)),
        |zram, value| {
            set_limit(zram, number(&value));
            Ok(())
        },
    ),
    Attribute::both(
        OPTIONS.deferred_bytes_max,
        |zram| Value::U64(zram.core.table.deferred.pages_max() * PAGE as u64),
        |zram, value| set_deferred(zram, number(&value)),
    ),
    gauge!("deferred_bytes", Bytes, "Pages that were written and are not compressed yet", |zram| {
        zram.core.table.deferred.pages() * PAGE as u64
    }),
    Attribute::write(
        Spec::command("mem_used_max", Type::Number(0, 0), "Starts the peak in mm_stat again from the present use"),
        |zram, _| {
            zram.core.budget.reset_peak();
            Ok(())
        },
    ),
    Attribute::begin(
        Spec::command(
            "compact",
            Type::Text,
            "Moves objects together at once and returns the memory, whatever the value; EINVAL before disksize. The device does the same \
             by itself shortly after writes stop",
        ),
        |zram, _| commands::compact(zram),
    ),
    Attribute::read(
        Spec::fact("io_stat", IO_STAT, "Counts of requests; invalid_io is always 0"),
        |zram| {
            let count = |what| zram.core.counted(what);
            let (reads, writes) = (count(Count::FailedReads), count(Count::FailedWrites));
            Value::Columns(vec![reads, writes, 0, count(Count::NotifyFree)])
        },
    ),
    Attribute::read(
        Spec::fact(
            "mm_stat",
            MM_STAT,
            "Memory. Sizes: stored data, the same compressed, pool and table, mem_limit, peak of pool and table; pages: same-filled, freed \
             by compaction, stored raw now, and ever",
        ),
        mm_stat,
    ),
    Attribute::read(Spec::fact("debug_stat", DEBUG_STAT, "Kept for parsers; always 0"), |_| {
        Value::Columns(vec![0, 0])
    }),
    Attribute::lines(
        "block_state",
        "A line for each page that is held: its number, the seconds of its last access, and flags: s same-filled, w written back, h stored \
         raw, i idle, r recompressed, n incompressible. EINVAL before disksize",
        |zram, from| zram.core.block_state(from),
    ),
    Attribute::both_begin(
        Spec::fact(
            "backing_dev",
            Type::Path,
            "The spill file, or none. A path set here is the spill file from the next disksize to the next reset; a reset does not detach \
             the file that spill names",
        ),
        |zram| {
            let path = zram.core.backing_path().map(|path| path.display().to_string());
            Value::Text(path.unwrap_or_else(|| "none".into()))
        },
        |zram, value| commands::attach(zram, text(value)),
    ),
    Attribute::begin(
        Spec::command(
            "writeback",
            Type::Text,
            "Writes pages to the spill file: huge, idle, huge_idle, incompressible, page_index=N, page_indexes=LOW-HIGH. ENODEV without one, \
             ENOSPC where it is full, EIO where writeback_limit is used up",
        ),
        |zram, value| commands::write_back(zram, &text(value)),
    ),
    Attribute::begin(
        Spec::command(
            "idle",
            Type::Text,
            "Marks pages in memory as idle: all, or those not accessed for so many seconds; an access clears the mark",
        ),
        |zram, value| commands::mark_idle(zram, &text(value)),
    ),
    Attribute::begin(
        Spec::command(
            "recompress",
            Type::Text,
            "Compresses pages in memory again: type=idle, huge or huge_idle, threshold=BYTES, algo=NAME, priority=N, max_pages=N; all \
             pages with priority 1 by default. EINVAL before disksize and without such an algorithm",
        ),
        |zram, value| commands::recompress(zram, &text(value)),
    ),
    Attribute::both(
        OPTIONS.writeback_limit,
        |zram| Value::U64(zram.core.writeback_limit.left()),
        |zram, value| {
            zram.core.writeback_limit.set(number(&value));
            Ok(())
        },
    ),
    compressed_writeback(OPTIONS.compressed_writeback),
    compressed_writeback(Spec {
        name: "writeback_compressed",
        help: "The first name of compressed_writeback",
        ..OPTIONS.compressed_writeback
    }),
    Attribute::read(
        Spec::fact("policy", Type::Text, "What automatic spilling did last, and what it does next"),
        |zram| Value::Text(zram.core.explain()),
    ),
    Attribute::read(Decisions::spec(), |zram| zram.core.decisions.rows()),
    Attribute::read(
        Spec::fact("bd_stat", BD_STAT, "Pages in the spill file now, read from it, and written to it"),
        |zram| {
            let held = zram.core.table.holdings().spilled_pages;
            let counted = |what| zram.core.counted(what);
            Value::Columns(vec![held, counted(Count::BackingReads), counted(Count::BackingWrites)])
        },
    ),
    Attribute::read(OPTIONS.spill_size, |zram: &Zram| {
        zram.core.backing.get().map_or(Value::None, |backing| Value::U64(backing.store.size()))
    }),
    gauge!("spill_bytes", Bytes, "Objects in the spill file", |zram| zram.core.table.holdings().spilled_bytes),
    of_spill_file!(
        "spill_written_bytes",
        Bytes,
        "Written to the spill file, summaries and cleaning included",
        BytesWritten
    ),
    Attribute::read(
        Spec::mean(
            "write_amplification",
            Unit::None,
            "Bytes written to the spill file for each byte that clients wrote",
        ),
        |zram: &Zram| {
            let spilled = zram.core.backing.get().map_or(0, |backing| backing.written_since());
            Value::mean(spilled, zram.core.counted(Count::PagesWritten) * PAGE as u64)
        },
    ),
    of_spill_file!(
        "spill_write_errors",
        Requests,
        "Writes to the spill file that failed; after eight in a row nothing is spilled before the next start",
        WriteErrors
    ),
    of_spill_file!(
        "spill_read_errors",
        Requests,
        "Reads of the spill file that failed, those of cleaning included",
        ReadErrors
    ),
    of_spill_file!(
        "spill_mismatches",
        Pages,
        "Pages read from the spill file with a wrong checksum",
        Mismatches
    ),
    of_spill_file!(
        "spill_full",
        Requests,
        "I/Os of write-back that found no room, in the spill file or on its file system",
        Full
    ),
    gauge!("lost_pages", Pages, "Pages whose record in the spill file is not what was written: EIO until they are written again", |zram| {
        zram.core.table.holdings().lost_pages
    }),
    counter!("brought_back_pages", Pages, "Pages that a read promoted to memory", BroughtBack),
    gauge!("clean_pages", Pages, "Pages in memory whose record in the spill file is kept", |zram| {
        zram.core.table.copies.count()
    }),
    counter!("throttled_writes", Requests, "Pauses of writes while memory becomes short", Pauses),
    Attribute::read(
        Spec::counter("throttled_time", Unit::Milliseconds, "Time of these pauses, added up over all writes"),
        |zram| Value::U64(zram.core.counted(Count::PausedMicros) / 1000),
    ),
    counter!("recompressed_pages", Pages, "Pages that recompression has made smaller", Recompressed),
    counter!("num_reads", Pages, "Pages read", PagesRead),
    counter!("num_writes", Pages, "Pages written", PagesWritten),
    counter!("failed_reads", Requests, "Reads that failed", FailedReads),
    counter!("failed_writes", Requests, "Writes that failed, ENOSPC included", FailedWrites),
    counter!("notify_free", Pages, "Pages named by discards, whether stored or not", NotifyFree),
    gauge!("orig_data_size", Bytes, "Data stored, before compression", |zram| {
        zram.core.table.holdings().pages_stored * PAGE as u64
    }),
    gauge!("compr_data_size", Bytes, "Data stored, after compression", |zram| {
        zram.core.table.holdings().object_bytes
    }),
    gauge!("mem_used_total", Bytes, "Memory taken for pool and table", |zram| zram.core.budget.used()),
    gauge!("zero_pages", Pages, "Stored pages that are all zero", |zram| {
        zram.core.table.holdings().zero_pages
    }),
];

/// The declarations of a device's attributes.
pub fn declarations() -> Vec<Spec> {
    ROWS.iter().map(Attribute::spec).chain(Settings::ROWS.iter().map(Attribute::spec)).collect()
}

/// The attributes of a device.
pub fn attributes(zram: Arc<Zram>) -> Table<Zram> {
    Table::new(zram, ROWS).with(Settings::ROWS, |zram| &zram.core.settings, |_, _| {})
}

const fn compressed_writeback(spec: Spec) -> Attribute<Zram> {
    Attribute::both(
        spec,
        |zram| Value::Switch(zram.core.compressed_writeback.get()),
        |zram, value| {
            let _setup = zram.core.lock_blank("compressed_writeback")?;
            zram.core.compressed_writeback.set(Field::of(value));
            Ok(())
        },
    )
}

fn number(value: &Value) -> u64 {
    value.number().expect("the declaration allows numbers only")
}

fn text(value: Value) -> String {
    Field::of(value)
}

fn limit(zram: &Zram) -> u64 {
    match zram.core.budget.limit() {
        Budget::UNLIMITED => 0,
        bytes => bytes,
    }
}

fn mm_stat(zram: &Zram) -> Value {
    let core = &zram.core;
    let held = core.table.holdings();
    Value::Columns(vec![
        held.pages_stored * PAGE as u64,
        held.object_bytes,
        core.budget.used(),
        limit(zram),
        core.budget.peak(),
        held.same_pages,
        core.counted(Count::PagesCompacted),
        held.huge_pages,
        core.counted(Count::HugePagesSince),
    ])
}

pub(super) fn set_limit(zram: &Zram, bytes: u64) {
    if bytes == 0 && mutant::on("zram: a limit that is lifted stays") {
        return;
    }
    let rounded = bytes.checked_next_multiple_of(PAGE as u64).unwrap_or(Budget::UNLIMITED);
    zram.core.budget.set_limit(if bytes == 0 { Budget::UNLIMITED } else { rounded });
}

pub(super) fn set_deferred(zram: &Zram, bytes: u64) -> Result<(), Error> {
    zram.core.table.set_deferred(bytes / PAGE as u64).map_err(|kind| {
        Error::new(
            kind,
            "deferred_bytes_max takes a bit for each MiB of the device, and --memory has less left",
        )
    })
}
