//! E5 (b): the page cache itself, with three zones as large in proportion as the source's, over a store that is slow where writes are
//! scattered.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use spillway_core::{Attributes, BlockDevice, Budget, Geometry, IoBuf, Op, Request, Seam, Submission};
use spillway_io::{Workers, WorkersOptions};
use spillway_layers::page_cache::{Config, Cut, Division, PageCache, attributes};
use spillway_layers::{null, rate};

use super::watch::{Look, chart, watch};
use crate::results;
use crate::rounds::{Rounds, drawn_order};
use crate::svg::{self, Picture};
use crate::table::{Cell, figure, once, ratio, row};
use crate::writecache::on_worker;

const MIB: u64 = 1 << 20;

/// MiB of the source's zones, in the order in which they are asked.
const ZONES: [u64; 3] = [504, 3246, 15];

/// Those that the picture shows.
const SHOWN: [(&str, usize, &str); 2] = [("DMA32", 1, svg::BLUE), ("Normal", 0, svg::ORANGE)];

const MEMORY: u64 = 1 << 30;
const WRITTEN: u64 = 4 << 30;
const WRITE_BYTES: usize = 32 << 10;

/// Of the store: bytes a second, and microseconds of a write elsewhere. One that is faster in both has the same shape.
fn store(rounds: Rounds) -> [u64; 2] {
    rounds.pick([100_000_000, 2000], [400_000_000, 500])
}

/// Percent of memory above which there is write-back, and which may be unsaved.
const BACKGROUND: u64 = 10;
const LIMIT: u64 = 40;

const GAIN: f64 = 1.3;

/// Linux 3.1, from which the source started: one limit for all memory, zones asked in order, watermarks of the source's machine, reclaim
/// that writes what it meets, in pages. Write-back sends requests of about what a stick takes at once. Writers are not slowed down before they
/// stop, and the only one does at seven eighths of the limit.
fn of_2011() -> Config {
    let division = Division { zones: ZONES.to_vec(), as_in_2011: true, ..Division::default() };
    let cut = Cut { region_bytes: 128 << 10, shards: 1 };
    Config { folio_size: Some(4096), dirty_ratio: LIMIT * 7 / 8, division, cut, ..Config::default() }
}

/// Ours as it is, but for the sizes of the zones.
fn ours() -> Config {
    let division = Division { zones: ZONES.to_vec(), ..Division::default() };
    Config { dirty_ratio: LIMIT, division, ..Config::default() }
}

/// What is in memory beside each page that is written, by the source's file systems: nothing as with xfs; or a clean one, the daemon's
/// page and the file's being two, as with fuse-ntfs.
const BESIDE: [(&str, bool); 2] = [("as xfs", false), ("as fuse-ntfs", true)];

/// A device that keeps its data, as far as anyone is told. Reads of it cost nothing: what is read here was never on the source's stick.
struct Store {
    writes: Seam,
    reads: Seam,
}

impl BlockDevice for Store {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, ..self.writes.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        if request.op == Op::Read { self.reads.submit(request) } else { self.writes.submit(request) }
    }
}

/// What one run shows.
struct Run {
    mib_per_second: f64,
    reclaim_writes: f64,
    ios: f64,
    looks: Vec<Look>,
}

pub(super) fn run(rounds: Rounds) -> Result<()> {
    let mut runs: [[Vec<Run>; 2]; 2] = Default::default();
    let modes = [of_2011(), ours()];
    for round in 1..=rounds.count {
        for turn in drawn_order(2 * modes.len(), round) {
            let (beside, mode) = (turn / 2, turn % 2);
            runs[beside][mode].push(measure(&modes[mode], BESIDE[beside].1, store(rounds))?);
        }
    }
    let titles = ["page cache, as in 2011", "page cache, a limit for each zone"];
    let [_, with_clean] = &runs;
    let charts = [0, 1].map(|mode| chart(titles[mode], &with_clean[mode][0].looks, &SHOWN));
    let rows = BESIDE.iter().zip(&runs).flat_map(|(beside, runs)| rows(*beside, runs)).collect();
    let [bytes, seek] = store(rounds);
    let title = format!(
        "E5: page cache of 1 GiB in zones of 504 : 3246 : 15, 4 GiB in writes of 32 KiB and a flush, a store of {} MB/s that takes {} us more \
         for each write elsewhere; dirty limits 10 and 40 %",
        bytes / 1_000_000,
        seek
    );
    let head =
        ["", "limit", "MiB/s", "gain", "blocks written by reclaim", "of a round", "writes to the store"];
    rounds.show(&title, &head, rows)?;
    results::picture(Picture { name: "zones-store.svg".into(), charts: charts.into(), columns: 2 })
}

/// Of a way to write: as in 2011, and ours. Where the source gained nothing, nothing is asked of ours but to write nothing; where it did,
/// the baseline writes something in each round.
fn rows((name, is_gain): (&str, bool), runs: &[Vec<Run>; 2]) -> [Vec<Cell>; 2] {
    let [before, with] = [0, 1].map(|mode| Figures::of(&runs[mode]));
    let gain = ratio(&with.rates, &before.rates).wanted(if is_gain { GAIN } else { 0.0 });
    let least = once(before.writes.iter().copied().fold(f64::MAX, f64::min), 0).unit(" at least");
    let most = once(with.writes.iter().copied().fold(0.0, f64::max), 0).unit(" at most").at_most(0.0);
    let least = least.wanted(if is_gain { 1.0 } else { 0.0 });
    let row = |limit: &str, figures: &Figures, gain: Cell, of_a_round| {
        let Figures { rates, writes, ios } = figures;
        row![name, limit, figure(rates, 1), gain, figure(writes, 0), of_a_round, figure(ios, 0)]
    };
    [
        row("one for all, as in 2011", &before, "-".into(), least),
        row("for each zone", &with, gain.into(), most),
    ]
}

/// Values over the rounds.
struct Figures {
    rates: Vec<f64>,
    writes: Vec<f64>,
    ios: Vec<f64>,
}

impl Figures {
    fn of(runs: &[Run]) -> Self {
        Self {
            rates: runs.iter().map(|run| run.mib_per_second).collect(),
            writes: runs.iter().map(|run| run.reclaim_writes).collect(),
            ios: runs.iter().map(|run| run.ios).collect(),
        }
    }
}

fn measure(mode: &Config, beside: bool, [bytes_per_second, seek_us]: [u64; 2]) -> Result<Run> {
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    // What is read is behind what is written.
    let null: Arc<dyn BlockDevice> = null::Null::new(&null::Config { size: 2 * WRITTEN })?;
    let slow = rate::Config { bytes_per_second, seek_us };
    let writes = Seam::new(rate::Rate::new(&slow, null.clone(), workers.env())?);
    let store = Arc::new(Store { writes, reads: Seam::new(null) });
    let config = Config {
        page_cache_bytes_max: Some(MEMORY),
        dirty_background_ratio: BACKGROUND,
        readahead_bytes_max: 0,
        ..mode.clone()
    };
    let (cache, _) = PageCache::open(&config, store, workers.env(), &Budget::new(2 * MEMORY))?;
    let shown = attributes(cache.clone());
    let device = cache.clone();
    let work = || on_worker(&workers, move || async move { write(device, beside).await });
    let (seconds, looks) = watch(&shown, work)?;
    let number = |name: &str| Ok::<_, anyhow::Error>(shown.get(name)?.number().context("a number")? as f64);
    Ok(Run {
        mib_per_second: (WRITTEN / MIB) as f64 / seconds,
        reclaim_writes: cache.reclaim_writes() as f64,
        ios: number("writeback_ios")?,
        looks,
    })
}

/// Seconds until the store has all that is written; a read of as much before each write, where clean pages lie `beside`.
async fn write(device: Arc<dyn BlockDevice>, beside: bool) -> f64 {
    let seam = Seam::new(device);
    let begun = Instant::now();
    let mut buf = IoBuf::zeroed(WRITE_BYTES);
    for offset in (0..WRITTEN).step_by(WRITE_BYTES) {
        if beside {
            buf = done(&seam, Request::read(WRITTEN + offset, buf)).await;
        }
        buf[..8].copy_from_slice(&offset.to_le_bytes());
        buf = done(&seam, Request::write(offset, buf)).await;
    }
    done(&seam, Request::flush()).await;
    begun.elapsed().as_secs_f64()
}

async fn done(seam: &Seam, request: Request) -> IoBuf {
    let reply = seam.submit(request).await;
    assert_eq!(reply.result, Ok(()));
    reply.buf
}
