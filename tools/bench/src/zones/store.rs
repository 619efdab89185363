//! E5 (b): the page cache itself, with three zones as large in proportion as the source's, over a store that is slow where writes are
//! scattered.

use std::future::poll_fn;
use std::mem::replace;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use anyhow::{Context, Result};
use spillway_core::{
    Attributes, BlockDevice, Budget, Geometry, IoBuf, Op, Regions, Request, Seam, Submission, Works,
};
use spillway_io::{MmapRegions, Workers, WorkersOptions};
use spillway_layers::page_cache::{Config, Cut, Division, Of2011, PageCache, attributes};
use spillway_layers::small::{null, rate};

use super::watch::{Look, chart, watch};
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::svg::{self, Picture};
use crate::measure::table::{Cell, figure, once, ratio, row};
use crate::writecache::on_worker;

const MIB: u64 = 1 << 20;

/// MiB of the source's zones, in the order in which they are asked.
const ZONES: [u64; 3] = [504, 3246, 15];

/// Those that the picture shows.
const SHOWN: [(&str, usize, &str); 2] = [("DMA32", 1, svg::BLUE), ("Normal", 0, svg::ORANGE)];

const MEMORY: u64 = 512 << 20;
const WRITTEN: u64 = 1 << 30;
const WRITE_BYTES: usize = 32 << 10;

/// Of the store: bytes a second, and microseconds of a write elsewhere. One that is faster in both has the same shape.
fn store(rounds: Rounds) -> [u64; 2] {
    rounds.pick([400_000_000, 500], [800_000_000, 250])
}

/// Percent of memory above which there is write-back, and which may be unsaved.
const BACKGROUND: u64 = 10;
const LIMIT: u64 = 40;

const GAIN: f64 = 1.3;

/// Linux 3.1, from which the source started, but for what `parts` has as in the product. Its folios are pages, and its write-back sends
/// requests of about what a stick takes at once.
///
/// Its writers run freely up to the limit, and a task that dirties alone stops at seven eighths of it: `dirty - dirty/8` times the share
/// of the task (Linux 3.1, mm/page-writeback.c, task_dirty_limit; Wu Fengguang describes it in "IO-less dirty throttling", linux-mm, 2011).
fn of_2011(parts: Of2011) -> Config {
    let division = Division { zones: ZONES.to_vec(), of_2011: parts, ..Division::default() };
    let cut = Cut { region_bytes: 128 << 10, shards: 1 };
    let dirty_ratio = if parts.throttling { LIMIT - LIMIT / 8 } else { LIMIT };
    Config { folio_size: Some(4096), dirty_ratio, division, cut, ..Config::default() }
}

/// Ours as it is, but for the sizes of the zones.
fn ours() -> Config {
    let division = Division { zones: ZONES.to_vec(), ..Division::default() };
    Config { dirty_ratio: LIMIT, division, ..Config::default() }
}

/// What a row has otherwise than Linux 3.1, in words.
type Mode = (&'static str, fn() -> Config);

/// One thing each, then all.
const MODES: [Mode; 7] = [
    ("nothing: Linux 3.1", || of_2011(Of2011::ALL)),
    ("a limit for each zone", || of_2011(Of2011 { scope: false, ..Of2011::ALL })),
    ("writers are slowed down", || of_2011(Of2011 { throttling: false, ..Of2011::ALL })),
    ("our watermarks", || of_2011(Of2011 { watermarks: false, ..Of2011::ALL })),
    ("our reclaim", || of_2011(Of2011 { reclaim: false, ..Of2011::ALL })),
    ("these four", || of_2011(Of2011::default())),
    ("all: ours as it is", ours),
];
const BEFORE: usize = 0;
const ZONES_ALONE: usize = 1;
const ALL: usize = MODES.len() - 1;

/// The control is measured with the source's change and with all.
const OF_CONTROL: [usize; 3] = [BEFORE, ZONES_ALONE, ALL];

/// What is in memory beside each page that is written: nothing as with xfs, where the source gained nothing; or a clean page, the daemon's
/// page and the file's being two, as with fuse-ntfs.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    beside: bool,
    mode: usize,
}

/// The control first.
fn cases() -> Vec<Case> {
    let control = OF_CONTROL.map(|mode| Case { name: "as xfs (control)", beside: false, mode });
    let others = (0..MODES.len()).map(|mode| Case { name: "as fuse-ntfs", beside: true, mode });
    control.into_iter().chain(others).collect()
}

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

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let cases = cases();
    let mut runs: Vec<Vec<Run>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 1..=rounds.count {
        for turn in drawn_order(cases.len(), round) {
            let Case { beside, mode, .. } = cases[turn];
            runs[turn].push(measure(&MODES[mode].1(), beside, store(rounds))?);
        }
    }
    let figures: Vec<Figures> = runs.iter().map(|runs| Figures::of(runs)).collect();
    let rows = cases.iter().zip(&figures).map(|(case, figures_of)| {
        let before = cases.iter().position(|first| first.name == case.name).expect("a case is there");
        row(*case, figures_of, &figures[before])
    });
    let [bytes, seek] = store(rounds);
    let title = format!(
        "E5: page cache of {} MiB in zones of 504 : 3246 : 15, {} MiB in writes of 32 KiB and a flush, a store of {} MB/s that takes {seek} us \
         more for each write elsewhere; dirty limits 10 and 40 %",
        MEMORY >> 20,
        WRITTEN >> 20,
        bytes / 1_000_000,
    );
    let head = [
        "",
        "otherwise than Linux 3.1",
        "MiB/s",
        "gain",
        "blocks written by reclaim",
        "of a round",
        "writes to the store",
    ];
    rounds.show(&title, &head, rows.collect())?;
    let first = OF_CONTROL.len();
    let titles = ["page cache, as in 2011", "the same with a limit for each zone"];
    let charts = [BEFORE, ZONES_ALONE].map(|mode| chart(titles[mode], &runs[first + mode][0].looks, &SHOWN));
    results::picture(Picture { name: "zones-store.svg".into(), charts: charts.into(), columns: 2 })
}

/// Ours as it is gains where the source did, and writes nothing; Linux 3.1 writes something there in each round.
fn row(case: Case, figures: &Figures, before: &Figures) -> Vec<Cell> {
    let Figures { rates, writes, ios } = figures;
    let gain = ratio(rates, &before.rates);
    let gain = match case.mode {
        BEFORE => "-".into(),
        ALL if case.beside => Cell::from(gain.at_least(GAIN).of_ours()),
        _ => Cell::from(gain),
    };
    let least = once(writes.iter().copied().fold(f64::MAX, f64::min), 0).unit(" at least");
    let most = once(writes.iter().copied().fold(0.0, f64::max), 0).unit(" at most");
    let of_a_round = match case.mode {
        BEFORE => least.wanted(if case.beside { 1.0 } else { 0.0 }),
        ALL => most.at_most(0.0),
        _ => most,
    };
    row![case.name, MODES[case.mode].0, figure(rates, 1), gain, figure(writes, 0), of_a_round, figure(ios, 0)]
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
        readahead_bytes_max: Some(0),
        ..mode.clone()
    };
    let regions: Arc<dyn Regions> = Arc::new(MmapRegions);
    let (cache, _) =
        PageCache::open(&config, store, workers.env(), &regions, &Budget::new(2 * MEMORY), Works::default())?;
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
        turn_of_others().await;
    }
    done(&seam, Request::flush()).await;
    begun.elapsed().as_secs_f64()
}

async fn done(seam: &Seam, request: Request) -> IoBuf {
    let reply = seam.submit(request).await;
    assert_eq!(reply.result, Ok(()));
    reply.buf
}

/// The worker's other tasks have a turn: reclaim in the background goes on beside a writer, as on another processor.
async fn turn_of_others() {
    let mut had_it = false;
    poll_fn(|context| match replace(&mut had_it, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}
