//! E5 (b): the page cache itself, with three zones as large in proportion as the source's, over a store that is slow where writes are
//! scattered.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use spillway_core::{Attributes, BlockDevice, Budget, Geometry, IoBuf, Request, Seam, Submission};
use spillway_io::{Workers, WorkersOptions};
use spillway_layers::page_cache::{Config, Division, PageCache, Scope, Tail, attributes};
use spillway_layers::{null, rate};

use super::svg;
use super::watch::{Look, chart, watch};
use crate::report::{Rounds, at_least, at_most, drawn_order, median, ratio, table};
use crate::writecache::on_worker;

const MIB: u64 = 1 << 20;

/// MiB of the source's zones, in the order in which they are asked.
const ZONES: [u64; 3] = [504, 3246, 15];

/// Those that the picture shows.
const SHOWN: [(&str, usize, &str); 2] = [("DMA32", 1, svg::BLUE), ("Normal", 0, svg::ORANGE)];

const MEMORY: u64 = 1 << 30;
const WRITTEN: u64 = 4 << 30;
const WRITE_BYTES: usize = 32 << 10;

/// Of the store.
const BYTES_PER_SECOND: u64 = 100_000_000;
const SEEK_US: u64 = 2000;

const GAIN: f64 = 1.3;

/// A device that is no memory, as far as anyone is told.
struct Kept(Seam);

impl BlockDevice for Kept {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, ..self.0.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        self.0.submit(request)
    }
}

/// What one run shows.
struct Run {
    mib_per_second: f64,
    reclaim_writes: f64,
    ios: f64,
    looks: Vec<Look>,
}

pub(super) fn run(rounds: Rounds, pictures: &Path) -> Result<()> {
    let mut runs: [Vec<Run>; 2] = Default::default();
    let modes = [global(), Division { zones: ZONES.to_vec(), ..Division::default() }];
    for round in 1..=rounds.count {
        for mode in drawn_order(modes.len(), round) {
            runs[mode].push(measure(&modes[mode])?);
        }
    }
    let titles = ["page cache, one limit for all memory", "page cache, a limit for each zone"];
    let charts = [0, 1].map(|mode| chart(titles[mode], &runs[mode][0].looks, &SHOWN));
    let [before, with] = [0, 1].map(|mode| Figures::of(&runs[mode]));
    let gain = at_least(ratio(&with.rates, &before.rates), GAIN);
    let least = before.writes.iter().copied().fold(f64::MAX, f64::min);
    let most = with.writes.iter().copied().fold(0.0, f64::max);
    let some = if least > 0.0 { "> 0 in each round" } else { "MISSED, wanted some in each round" };
    let row = |name: &str, figures: &Figures, gain: String, writes: String| {
        let Figures { rates, ios, .. } = figures;
        vec![name.into(), format!("{:.1}", median(rates)), gain, writes, format!("{:.0}", median(ios))]
    };
    let rows = [
        row(
            "one limit for all, reclaim writes",
            &before,
            "-".into(),
            format!("{:.0} ({some})", median(&before.writes)),
        ),
        row("a limit for each zone", &with, gain, at_most(most, 0, "", 0.0)),
    ];
    let title = rounds.title(
        "E5: page cache of 1 GiB in zones of 504 : 3246 : 15, 4 GiB in writes of 32 KiB and a flush, a store of 100 MB/s that takes 2 ms for \
         each write elsewhere; dirty limits 10 and 40 %",
    );
    table(&title, &["", "MiB/s", "gain", "blocks written by reclaim", "writes to the store"], &rows);
    svg::save(pictures, "zones-store.svg", &svg::page(&charts, 2))
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

/// As in 2011.
fn global() -> Division {
    Division { zones: ZONES.to_vec(), scope: Scope::Global, tail: Tail::Write, ..Division::default() }
}

fn measure(division: &Division) -> Result<Run> {
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    let null: Arc<dyn BlockDevice> = null::Null::new(&null::Config { size: WRITTEN })?;
    let slow = rate::Config { bytes_per_second: BYTES_PER_SECOND, seek_us: SEEK_US };
    let store = rate::Rate::new(&slow, Arc::new(Kept(Seam::new(null))), workers.env())?;
    let config = Config {
        page_cache_bytes_max: Some(MEMORY),
        dirty_background_ratio: 10,
        dirty_ratio: 40,
        division: division.clone(),
        ..Config::default()
    };
    let (cache, _) = PageCache::open(&config, store, workers.env(), &Budget::new(2 * MEMORY))?;
    let shown = attributes(cache.clone());
    let work = || on_worker(&workers, move || async move { write(cache).await });
    let (seconds, looks) = watch(&shown, work)?;
    let number = |name: &str| Ok::<_, anyhow::Error>(shown.get(name)?.number().context("a number")? as f64);
    Ok(Run {
        mib_per_second: (WRITTEN / MIB) as f64 / seconds,
        reclaim_writes: number("reclaim_writes")?,
        ios: number("writeback_ios")?,
        looks,
    })
}

/// Seconds until the store has all of it.
async fn write(device: Arc<dyn BlockDevice>) -> f64 {
    let seam = Seam::new(device);
    let begun = Instant::now();
    let mut buf = IoBuf::zeroed(WRITE_BYTES);
    for offset in (0..WRITTEN).step_by(WRITE_BYTES) {
        buf[..8].copy_from_slice(&offset.to_le_bytes());
        let reply = seam.submit(Request::write(offset, buf)).await;
        assert_eq!(reply.result, Ok(()));
        buf = reply.buf;
    }
    assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
    begun.elapsed().as_secs_f64()
}
