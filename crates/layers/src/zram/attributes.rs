//! The control table of a zram device.
//!
//! Names, columns, accepted input and errors are the kernel's (reference: zram, attributes and statistics); docs/zram.md
//! lists the differences, each with its reason.

use spillway_core::size::{human, memparse};
use spillway_core::sync::Ordering;
use spillway_core::{Attribute, Budget, Error, Kind, Unit, mutant};

use super::codec::{self, CODECS, Params};
use super::device::{Config, Count, Zram};
use super::page::{DISKSIZE_MAX, PAGE};
use super::streams::{Choice, STREAMS_MAX};
use super::table::LEAF_SLOTS;

const TEXT_MAX: usize = 128;

pub(super) static ROWS: &[Attribute<Zram>] = &[
    Attribute::both(
        "disksize",
        Unit::Bytes,
        "Size of the device; 0 while it has none. Set once, before use, with K, M, G or T, rounded up to 4096: a second \
         time is EBUSY, 0 or no number EINVAL. Reset takes it back.",
        |zram| zram.core.size().to_string(),
        |zram, text| set_size(zram, memparse(text)?),
    ),
    Attribute::read("initstate", Unit::Switch, "1 once the device has a size.", |zram| {
        u8::from(zram.core.size() > 0).to_string()
    }),
    Attribute::write(
        "reset",
        Unit::Switch,
        "Any number but 0 drops all data, the size, limits, statistics and the choice of codec. EBUSY while clients are \
         connected.",
        reset,
    ),
    Attribute::both(
        "comp_algorithm",
        Unit::Text,
        "Codecs, the chosen one in brackets. Set before disksize, else EBUSY; an unknown name is EINVAL, 128 characters or \
         more E2BIG.",
        |zram| {
            let chosen = zram.core.streams.choice().codec;
            let name = |(index, codec): (usize, &codec::Codec)| {
                if index == chosen { format!("[{}] ", codec.name) } else { format!("{} ", codec.name) }
            };
            CODECS.iter().enumerate().map(name).collect()
        },
        set_algorithm,
    ),
    Attribute::write(
        "algorithm_params",
        Unit::Text,
        "Parameters of the codec before disksize (else EBUSY): level=N, with algo=NAME or priority=0 if you like. lz4: \
         acceleration, 1 to 65537; zstd: -131072 to 22. Each call starts from the defaults.",
        set_params,
    ),
    Attribute::both(
        "max_comp_streams",
        Unit::Count,
        "How many writers may compress at once: 1 to 256, else EINVAL. May be changed at any time; reset restores the \
         default, the number of cores.",
        |zram| zram.core.streams.limit().to_string(),
        |zram, text| {
            let wanted = text.trim().parse().map_err(|_| refuse_streams(text.trim()))?;
            zram.core.streams.set_limit(checked_streams(wanted)?);
            Ok(())
        },
    ),
    Attribute::both(
        "mem_limit",
        Unit::Bytes,
        "Most bytes of pool and table, with K, M, G or T, rounded up to 4096; 0 for no limit but --memory. A write that \
         would go over it fails with ENOSPC and leaves the old data.",
        |zram| limit(zram).to_string(),
        |zram, text| {
            set_limit(zram, memparse(text)?);
            Ok(())
        },
    ),
    Attribute::write(
        "mem_used_max",
        Unit::Bytes,
        "0 starts the peak in mm_stat again from what is in use now; anything else is EINVAL.",
        |zram, text| {
            if text != "0" {
                return Err(Error::invalid(format!(
                    "mem_used_max {text:?} is not allowed: only 0 can be written"
                )));
            }
            zram.core.budget.reset_peak();
            Ok(())
        },
    ),
    Attribute::write(
        "compact",
        Unit::Switch,
        "Anything written moves objects together at once and returns the memory; EINVAL before disksize. The device does \
         the same by itself shortly after writes stop.",
        |zram, _| {
            if zram.core.size() == 0 {
                return Err(Error::invalid("there is nothing to compact: set disksize first"));
            }
            zram.core.compact_now();
            Ok(())
        },
    ),
    Attribute::read(
        "io_stat",
        Unit::Text,
        "Four columns: failed reads, failed writes, 0, pages freed by discards (notify_free).",
        |zram| {
            let count = |what| zram.core.counted(what);
            let (reads, writes) = (count(Count::FailedReads), count(Count::FailedWrites));
            format!("{reads:8} {writes:8} 0 {:8}", count(Count::NotifyFree))
        },
    ),
    Attribute::read(
        "mm_stat",
        Unit::Text,
        "Nine columns: bytes stored, bytes of the objects, bytes of pool and table, mem_limit, peak of pool and table, \
         same-filled pages, pages freed by compaction, pages stored raw now, and ever.",
        mm_stat,
    ),
    Attribute::read("debug_stat", Unit::Text, "A version line and two columns that are 0 here.", |_| {
        format!("version: 1\n{:8} {:8}", 0, 0)
    }),
    Attribute::read("num_reads", Unit::Pages, "Pages asked for by reads.", |zram| {
        counted(zram, Count::PagesRead)
    }),
    Attribute::read("num_writes", Unit::Pages, "Pages brought by writes.", |zram| {
        counted(zram, Count::PagesWritten)
    }),
    Attribute::read("failed_reads", Unit::Count, "Reads that failed.", |zram| {
        counted(zram, Count::FailedReads)
    }),
    Attribute::read("failed_writes", Unit::Count, "Writes that failed, ENOSPC included.", |zram| {
        counted(zram, Count::FailedWrites)
    }),
    Attribute::read("notify_free", Unit::Pages, "Pages named by discards, whether stored or not.", |zram| {
        counted(zram, Count::NotifyFree)
    }),
    Attribute::read("orig_data_size", Unit::Bytes, "Bytes stored, before compression.", |zram| {
        (zram.core.table.holdings().pages_stored * PAGE as u64).to_string()
    }),
    Attribute::read("compr_data_size", Unit::Bytes, "Bytes of the objects, after compression.", |zram| {
        zram.core.table.holdings().object_bytes.to_string()
    }),
    Attribute::read("mem_used_total", Unit::Bytes, "Bytes taken for pool and table.", |zram| {
        zram.core.budget.used().to_string()
    }),
    Attribute::read("zero_pages", Unit::Pages, "Stored pages that are all zero.", |zram| {
        zram.core.table.holdings().zero_pages.to_string()
    }),
];

fn counted(zram: &Zram, what: Count) -> String {
    zram.core.counted(what).to_string()
}

fn limit(zram: &Zram) -> u64 {
    match zram.core.budget.limit() {
        Budget::UNLIMITED => 0,
        bytes => bytes,
    }
}

fn mm_stat(zram: &Zram) -> String {
    let core = &zram.core;
    let held = core.table.holdings();
    let columns = [
        held.pages_stored * PAGE as u64,
        held.object_bytes,
        core.budget.used(),
        limit(zram),
        core.budget.peak(),
        held.same_pages,
        core.counted(Count::PagesCompacted),
        held.huge_pages,
        core.counted(Count::HugePagesSince),
    ];
    columns.map(|column| format!("{column:8}")).join(" ")
}

fn busy(what: &str) -> Error {
    Error::new(Kind::Busy, format!("{what} cannot be changed while the device has a size: reset it first"))
}

pub(super) fn set_size(zram: &Zram, bytes: u64) -> Result<(), Error> {
    let _setup = zram.core.setup.lock();
    if zram.core.size() > 0 {
        return Err(busy("disksize"));
    }
    if bytes == 0 || bytes > DISKSIZE_MAX {
        let most = human(DISKSIZE_MAX);
        return Err(Error::invalid(format!(
            "disksize {bytes} is not allowed: give 1 byte to {most}, such as 4G"
        )));
    }
    let size = bytes.next_multiple_of(PAGE as u64);
    zram.core.table.resize(size / PAGE as u64, &zram.core.fixed).map_err(|kind| no_room_for(size, kind))?;
    zram.core.size.store(size, Ordering::Release);
    Ok(())
}

fn no_room_for(size: u64, kind: Kind) -> Error {
    let (size, table) = (human(size), human(size / PAGE as u64 / LEAF_SLOTS / 8));
    Error::new(
        kind,
        format!("disksize {size} takes a table of {table} at once, and --memory has less left: give more"),
    )
}

pub(super) fn set_limit(zram: &Zram, bytes: u64) {
    if bytes == 0 && mutant::on("zram: a limit that is lifted stays") {
        return;
    }
    let rounded = bytes.checked_next_multiple_of(PAGE as u64).unwrap_or(Budget::UNLIMITED);
    zram.core.budget.set_limit(if bytes == 0 { Budget::UNLIMITED } else { rounded });
}

fn set_algorithm(zram: &Zram, text: &str) -> Result<(), Error> {
    if text.len() >= TEXT_MAX {
        let message = format!(
            "comp_algorithm of {} characters is too long: names have less than {TEXT_MAX}",
            text.len()
        );
        return Err(Error::new(Kind::TooLong, message));
    }
    let codec = codec::find(text)?;
    let _setup = zram.core.setup.lock();
    if zram.core.size() > 0 {
        return Err(busy("comp_algorithm"));
    }
    choose(zram, Choice { codec, params: Params::default() })
}

pub(super) fn set_params(zram: &Zram, text: &str) -> Result<(), Error> {
    let _setup = zram.core.setup.lock();
    if zram.core.size() > 0 {
        return Err(busy("algorithm_params"));
    }
    let codec = zram.core.streams.choice().codec;
    let mut params = Params::default();
    for word in text.split_whitespace() {
        let (key, value) = word
            .split_once('=')
            .ok_or_else(|| Error::invalid(format!("{word:?} has no value: write {word}=VALUE")))?;
        match key {
            "level" => params.level = Some(level(codec, value)?),
            "priority" if value != "0" => return Err(refuse_priority(value)),
            "algo" if codec::find(value)? != codec => return Err(refuse_algo(value, CODECS[codec].name)),
            "priority" | "algo" => {}
            _ => {
                return Err(Error::invalid(format!(
                    "{key:?} is not a parameter here: there are level, algo, priority"
                )));
            }
        }
    }
    choose(zram, Choice { codec, params })
}

/// Chooses a codec while nobody reads or writes; what it takes at once is charged first.
fn choose(zram: &Zram, choice: Choice) -> Result<(), Error> {
    let core = &zram.core;
    let refused = |kind| {
        let name = CODECS[choice.codec].name;
        Error::new(
            kind,
            format!("{name} takes up to 4 MiB before anything is written, and --memory has less left"),
        )
    };
    core.decoders.choose(choice.codec, &core.fixed).map_err(refused)?;
    core.streams.choose(choice).map_err(refused)
}

fn level(codec: usize, text: &str) -> Result<i32, Error> {
    let allowed = (CODECS[codec].levels)();
    text.parse().ok().filter(|level| allowed.contains(level)).ok_or_else(|| {
        let (name, least, most) = (CODECS[codec].name, allowed.start(), allowed.end());
        Error::invalid(format!("level {text:?} is not allowed: {name} takes {least} to {most}"))
    })
}

fn refuse_priority(value: &str) -> Error {
    Error::invalid(format!("priority {value:?} is not allowed: there is only the primary codec, priority 0"))
}

fn refuse_algo(value: &str, chosen: &str) -> Error {
    Error::invalid(format!("algo {value:?} is not in use: comp_algorithm is {chosen}"))
}

fn refuse_streams(value: &str) -> Error {
    Error::invalid(format!("max_comp_streams {value:?} is not allowed: give 1 to {STREAMS_MAX}"))
}

pub(super) fn checked_streams(wanted: usize) -> Result<usize, Error> {
    if (1..=STREAMS_MAX).contains(&wanted) { Ok(wanted) } else { Err(refuse_streams(&wanted.to_string())) }
}

/// Drops everything. Whoever serves the device makes sure that no client is connected.
fn reset(zram: &Zram, text: &str) -> Result<(), Error> {
    let number: u16 = text.trim().parse().map_err(|error: std::num::ParseIntError| {
        use std::num::IntErrorKind::{NegOverflow, PosOverflow};
        let kind =
            if matches!(error.kind(), PosOverflow | NegOverflow) { Kind::Range } else { Kind::Invalid };
        Error::new(kind, format!("reset {text:?} is not allowed: write 1"))
    })?;
    if number == 0 {
        return Err(Error::invalid("reset 0 is not allowed: write 1"));
    }
    let core = &zram.core;
    let _setup = core.setup.lock();
    core.size.store(0, Ordering::Release);
    core.free_all();
    core.table.resize(0, &core.fixed).expect("a table without slots takes nothing");
    core.pages.cool();
    core.streams.set_limit(Config::default_streams());
    core.counters.clear();
    core.budget.set_limit(Budget::UNLIMITED);
    core.budget.reset_peak();
    // Last: what the device held is room for it.
    choose(zram, Choice::default())
}
