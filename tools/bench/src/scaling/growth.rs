//! What a request costs as a device grows, and as it holds more: in process, one at a time, 4 KiB at random over the whole device.
//!
//! The growth is fitted: the slope of the line through the logarithms of cost and size. A cost that does not grow has 0, one in proportion
//! 1. Processors have caches, so that no store that holds more has 0 altogether.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::{BlockDevice, Budget, Geometry, IoBuf, Op, Regions, Request, Seam, Submission, Works};
use spillway_io::{MmapRegions, Workers, WorkersOptions};
use spillway_layers::page_cache::PageCache;
use spillway_layers::small::null;
use spillway_layers::{page_cache, zram};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::svg::{self, Chart, Line, Picture};
use crate::measure::table::{Cell, figure, named};
use crate::peers::pages::{self, PAGE, Pages};
use crate::writecache::{Bench, on_worker, slope, still};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Bytes of a device, and what it holds meanwhile.
const SIZES: [u64; 5] = [GIB, 16 * GIB, 256 * GIB, 4096 * GIB, 16384 * GIB];
const HELD: u64 = 64 * MIB;

/// Bytes that a device holds, and its size meanwhile.
const HOLDINGS: [u64; 4] = [16 * MIB, 64 * MIB, 256 * MIB, GIB];
const SIZE: u64 = 1024 * GIB;

const KINDS: [&str; 3] = ["zram", "page cache", "write cache"];
const COLOURS: [&str; 3] = [svg::BLUE, svg::ORANGE, svg::GREY];
const OPS: [&str; 2] = ["reads", "writes"];

/// Requests at a time while a device is filled.
const FILLING: u64 = 32;

/// Bytes of a device, and those that it holds.
type Point = [u64; 2];

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let set = Arc::new(pages::half(16 << 20)?);
    let by_size = SIZES.map(|size| ([size, HELD], size));
    let sizes = series("the size", &by_size, &set, rounds)?;
    let holdings = &HOLDINGS[..rounds.pick(4, 3)];
    let by_held: Vec<_> = holdings.iter().map(|held| ([SIZE, *held], *held)).collect();
    let held = series("the bytes held", &by_held, &set, rounds)?;
    results::picture(Picture { name: "growth.svg".into(), charts: [sizes, held].concat(), columns: 2 })
}

/// A table of points, each with its size, and its charts.
fn series(name: &str, points: &[(Point, u64)], set: &Arc<Pages>, rounds: Rounds) -> Result<Vec<Chart>> {
    let figures = rounds.measure_anew(|round| {
        let mut micros = vec![f64::NAN; KINDS.len() * points.len() * OPS.len()];
        for turn in drawn_order(KINDS.len() * points.len(), round) {
            let (kind, point) = (turn / points.len(), turn % points.len());
            // The write cache takes some 40 us each.
            let requests = rounds.pick([64 << 10, 64 << 10, 8 << 10], [4 << 10; 3])[kind];
            for (op, cost) in cost(kind, points[point].0, set, requests)?.into_iter().enumerate() {
                micros[(kind * OPS.len() + op) * points.len() + point] = cost;
            }
        }
        Ok(micros)
    })?;
    let rows = figures.chunks(points.len()).enumerate().map(|(number, costs)| {
        let name = format!("{}, {}", KINDS[number / OPS.len()], OPS[number % OPS.len()]);
        let growth = figure(&growth(points, costs), 3);
        named(&name, costs.iter().map(|costs| Cell::from(figure(costs, 2))).chain([growth.into()]))
    });
    let heads: Vec<String> = points.iter().map(|(_, bytes)| shown(*bytes)).collect();
    let head: Vec<&str> =
        std::iter::once("us a request").chain(heads.iter().map(String::as_str)).chain(["growth"]).collect();
    let title = format!("The cost of a request of 4 KiB, one at a time, over {name}");
    let note =
        "Growth: the slope of the logarithm of the cost over that of the bytes. 0: none; 1: in proportion.";
    results::show(rounds.table(&title, &head, rows.collect()).note(note))?;
    Ok((0..OPS.len()).map(|op| chart(op, name, points, &figures)).collect())
}

/// Of each round.
fn growth(points: &[(Point, u64)], costs: &[Vec<f64>]) -> Vec<f64> {
    let of_round = |round: usize| {
        let point =
            |((_, bytes), costs): (&(Point, u64), &Vec<f64>)| ((*bytes as f64).ln(), costs[round].ln());
        slope(&points.iter().zip(costs).map(point).collect::<Vec<_>>())
    };
    (0..costs[0].len()).map(of_round).collect()
}

/// With the fitted growth behind each name.
fn chart(op: usize, name: &str, points: &[(Point, u64)], figures: &[Vec<f64>]) -> Chart {
    let line = |kind: usize| {
        let costs = &figures[(kind * OPS.len() + op) * points.len()..][..points.len()];
        let growth = figure(&growth(points, costs), 2);
        let point = |((_, bytes), costs): (&(Point, u64), &Vec<f64>)| {
            ((*bytes as f64 / MIB as f64).log2(), crate::measure::statistics::median(costs))
        };
        let points = points.iter().zip(costs).map(point).collect();
        Line { name: format!("{}, {growth}", KINDS[kind]), colour: COLOURS[kind].into(), points }
    };
    let lines = (0..KINDS.len()).map(line).collect();
    Chart {
        title: format!("{} over {name}, and the growth of each", OPS[op]),
        x: "doublings of a MiB".into(),
        y: "us".into(),
        y_max: 1.0,
        lines,
    }
}

fn shown(bytes: u64) -> String {
    let (unit, name) = match bytes {
        ..GIB => (MIB, "MiB"),
        GIB..1_099_511_627_776 => (GIB, "GiB"),
        _ => (1024 * GIB, "TiB"),
    };
    format!("{} {name}", bytes / unit)
}

/// Microseconds of a read and of a write.
fn cost(kind: usize, [size, held]: Point, set: &Arc<Pages>, requests: u64) -> Result<[f64; 2]> {
    // A write cache stands on fewer than 2^32 blocks.
    let size = size - MIB;
    let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
    let env = workers.env();
    match kind {
        0 => {
            let config = zram::Config { disksize: size, ..Default::default() };
            let zram = zram::Zram::new(config, env, Arc::new(MmapRegions), Budget::new(16 << 30))?;
            Ok(timed(&workers, zram, [size, held], set, requests))
        }
        1 => {
            let config = page_cache::Config {
                page_cache_bytes_max: Some(2 * held + 64 * MIB),
                readahead_bytes_max: Some(0),
                ..Default::default()
            };
            let below = Arc::new(Lasting(Seam::new(null::Null::new(&null::Config { size })?)));
            let regions: Arc<dyn Regions> = Arc::new(MmapRegions);
            let (cache, _) =
                PageCache::open(&config, below, env, &regions, &Budget::new(16 << 30), Works::default())?;
            Ok(timed(&workers, cache, [size, held], set, requests))
        }
        _ => {
            let bench = Bench::new("/dev/shm", 2 * held + 64 * MIB)?;
            let cache = bench.over_null(&still(PAGE as u64), size)?;
            Ok(timed(&bench.workers, cache, [size, held], set, requests))
        }
    }
}

/// Writes what the device is to hold, evenly over all of it; then so many reads and writes of that.
fn timed(
    workers: &Workers,
    device: Arc<dyn BlockDevice>,
    [size, held]: Point,
    set: &Arc<Pages>,
    requests: u64,
) -> [f64; 2] {
    let (count, set) = (held / PAGE as u64, set.clone());
    let stride = size / count / PAGE as u64 * PAGE as u64;
    on_worker(workers, move || async move {
        let seam = Seam::new(device);
        let fill = async |lane: u64| {
            let mut buf = IoBuf::new(PAGE);
            for number in lane * count / FILLING..(lane + 1) * count / FILLING {
                buf.copy_from_slice(set.page(number as usize));
                buf = done(&seam, Op::Write, number * stride, buf).await;
            }
        };
        join_all((0..FILLING).map(fill)).await;
        let (mut buf, mut micros) = (IoBuf::new(PAGE), [0.0; 2]);
        for (op, micros) in [Op::Read, Op::Write].into_iter().zip(&mut micros) {
            let mut random = Random(held);
            let start = Instant::now();
            for _ in 0..requests {
                buf = done(&seam, op, random.below(count) * stride, buf).await;
            }
            *micros = start.elapsed().as_secs_f64() * 1e6 / requests as f64;
        }
        micros
    })
}

/// A device that keeps its data, as far as a cache above it is told.
struct Lasting(Seam);

impl BlockDevice for Lasting {
    fn geometry(&self) -> Geometry {
        Geometry { volatile: false, ..self.0.geometry() }
    }

    fn submit(&self, request: Request) -> Submission {
        self.0.submit(request)
    }
}

async fn done(seam: &Seam, op: Op, at: u64, buf: IoBuf) -> IoBuf {
    let request = if op == Op::Write { Request::write(at, buf) } else { Request::read(at, buf) };
    let reply = seam.submit(request).await;
    assert_eq!(reply.result, Ok(()));
    reply.buf
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_in_proportion_grows_by_one_and_a_constant_by_nothing() {
        let points = SIZES.map(|size| ([size, HELD], size));
        let costs = SIZES.map(|size| vec![3.0, size as f64 / 7.0]);
        let growth = growth(&points, &costs);
        assert!(growth[0].abs() < 1e-9 && (growth[1] - 1.0).abs() < 1e-9, "{growth:?}");
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        assert_eq!([16 * MIB, GIB, 16384 * GIB].map(shown), ["16 MiB", "1 GiB", "16 TiB"]);
    }
}
