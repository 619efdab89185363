//! Overwrites of what is in memory, each flushed: bytes that reach the store for each byte written, and overwrites a second.
//!
//! The source's job: eight clients, each with an area of its own that was read before, random overwrites, a flush after each.

use std::time::Instant;

use anyhow::Result;
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::{IoBuf, Request, Seam};
use spillway_layers::page_cache::Config;

use super::store::Rig;
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{figure, ratio, row};

const MIB: u64 = 1 << 20;
const JOBS: u64 = 8;
const AREA: u64 = 16 * MIB;

/// MiB a second of the store: what a slower one does to the figures is shown and not chosen.
pub(super) const RATES: [u64; 2] = [10, 20];

/// Bytes that a mode writes below in a run, about, and most overwrites of a job.
const RUN_BYTES: u64 = 8 * MIB;
const COUNT_MAX: u64 = 200;
const COUNT_MIN: u64 = 3;

/// Folio sizes; of whole-folio mode so many times fewer bytes are wanted, and so many times its overwrites a second; 0 where nothing is.
const FOLIOS: [(u64, f64, f64); 4] =
    [(4 << 10, 0.0, 0.0), (16 << 10, 0.0, 0.0), (64 << 10, 15.5, 10.0), (2 << 20, 480.0, 0.0)];

/// What is written with a block: the block, one of 64 chunks of the folio, the folio.
#[derive(Clone, Copy)]
enum Mode {
    Block,
    Chunk,
    Folio,
}

const MODES: [Mode; 3] = [Mode::Block, Mode::Chunk, Mode::Folio];

impl Mode {
    /// Bytes that become dirty with a block of `unit` bytes.
    fn granule(self, folio: u64, unit: u64) -> u64 {
        match self {
            Self::Block => unit,
            Self::Chunk => unit.max(folio / 64),
            Self::Folio => folio,
        }
    }
}

/// Bytes written below for each byte of an overwrite of `unit` bytes, and overwrites a second, on a store of `rate` MiB a second.
fn run(rate: u64, folio: u64, unit: u64, mode: Mode, seed: usize) -> Result<[f64; 2]> {
    let granule = mode.granule(folio, unit);
    let config = Config {
        page_cache_bytes_max: Some(JOBS * AREA * 3 / 2),
        folio_size: Some(folio),
        block_size: Some(unit),
        dirty_background_ratio: 60,
        dirty_ratio: 80,
        ..Config::default()
    };
    let rig = Rig::new(&config, JOBS * AREA, unit as u32, rate * MIB)?;
    let count = (RUN_BYTES / JOBS / granule).clamp(COUNT_MIN, COUNT_MAX);
    let time = rig.on_worker(move |seam| async move {
        for at in (0..JOBS * AREA).step_by(MIB as usize) {
            let reply = seam.submit(Request::read(at, IoBuf::new(MIB as usize))).await;
            assert_eq!(reply.result, Ok(()));
        }
        let start = Instant::now();
        let job = |job| overwrite(&seam, job, count, [unit, granule], seed as u64);
        join_all((0..JOBS).map(job)).await;
        start.elapsed()
    });
    let writes = (JOBS * count) as f64;
    Ok([rig.store.take_written() as f64 / (writes * unit as f64), writes / time.as_secs_f64()])
}

/// Overwrites blocks of `unit` bytes, each with the rest of its granule as it is.
async fn overwrite(seam: &Seam, job: u64, count: u64, [unit, granule]: [u64; 2], seed: u64) {
    let mut random = Random(seed * JOBS + job);
    for _ in 0..count {
        let at = job * AREA + random.below(AREA / unit) * unit;
        let (start, mut buf) = (at / granule * granule, IoBuf::zeroed(granule as usize));
        if granule > unit {
            let reply = seam.submit(Request::read(start, buf)).await;
            assert_eq!(reply.result, Ok(()));
            buf = reply.buf;
            buf[(at - start) as usize..][..unit as usize].fill(0);
        }
        let reply = seam.submit(Request::write(start, buf)).await;
        assert_eq!(reply.result, Ok(()));
        assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
    }
}

pub(super) fn overwrites(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    let rates = &RATES[rounds.pick(0, 1)..];
    let cases = rates.iter().flat_map(|rate| FOLIOS.map(|folio| (*rate, folio)));
    for (rate, (folio, fewer, faster)) in cases {
        let figures = rounds.measure_anew(|round| {
            let mut values = vec![0.0; 2 * MODES.len()];
            for turn in drawn_order(MODES.len(), round) {
                values[2 * turn..][..2].copy_from_slice(&run(rate, folio, 4096, MODES[turn], round)?);
            }
            Ok(values)
        })?;
        let [block, block_rate, chunk, chunk_rate, whole, whole_rate] = &figures[..] else {
            unreachable!("two figures of three modes")
        };
        rows.push(row![
            format!("{rate} MiB/s"),
            format!("{} KiB", folio >> 10),
            figure(block, 2).at_most(1.0),
            figure(chunk, 2),
            figure(whole, 2),
            ratio(whole, block).wanted(fewer).of_ours(),
            figure(block_rate, 0),
            figure(chunk_rate, 0),
            figure(whole_rate, 0),
            ratio(block_rate, whole_rate).wanted(faster).of_ours(),
        ]);
    }
    let title = "E3: aligned 4 KiB overwrites, 8 jobs, a flush after each, on a store slowed down: bytes written below for each byte \
                 written, and overwrites a second";
    let head = [
        "store",
        "folio",
        "bytes: dirty blocks",
        "64 chunks",
        "whole folio",
        "times fewer than whole",
        "a second: dirty blocks",
        "64 chunks",
        "whole folio",
        "ratio to whole",
    ];
    let note = "That a block is a sixteenth of a folio of 64 KiB is arithmetic, and so are the bytes; on a store that is slow enough the \
                overwrites follow them. What that is worth on a disk: `cargo xtask bench folio 5 databases`.";
    results::show(rounds.table(title, &head, rows).note(note))
}

/// Overwrites of single sectors, where blocks are such.
pub(super) fn sectors(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for folio in [4 << 10, 64 << 10] {
        let figures =
            rounds.measure_anew(|round| Ok(run(RATES[1], folio, 512, Mode::Block, round)?.to_vec()))?;
        rows.push(row![format!("{} KiB", folio >> 10), figure(&figures[0], 2).at_most(1.2)]);
    }
    let title = "Aligned overwrites of 512 bytes, block_size 512: bytes written below for each byte written";
    rounds.show(title, &["folio", "bytes"], rows)
}
