//! How throughput grows with workers, and how many locks a request takes: 4 KiB requests within the devices, without exports.
//!
//! Each worker has a part of the device of its own, so that what is shared is only what the layers share. Locks are counted on
//! the worker that carries the request, by the feature `count-locks`; without it they are not measured. Beyond the cores of the machine there is nothing to see.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::Result;
use futures_util::future::join_all;
use spillway_core::random::Random;
#[cfg(any(feature = "count-locks", debug_assertions))]
use spillway_core::sync::locks_taken;
use spillway_core::{BlockDevice, Budget, IoBuf, Op, Request, Seam};
use spillway_io::{MmapRegions, Workers, WorkersOptions};
use spillway_layers::zram;

use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, ratio};
use crate::peers::pages::{self, PAGE, Pages};
use crate::writecache::{self, Bench};

/// Pages of a worker's part of the device, and requests that it makes in one measurement.
const PART: usize = 16 << 10;
const REQUESTS: usize = 64 << 10;

/// Requests in flight on each worker of a device that answers later.
const DEPTH: usize = 16;

/// Of a number of workers: requests a second and locks a request, of writes and of reads.
const FIGURES: usize = 4;

/// Whether there is a column of locks.
const COUNTED: bool = cfg!(feature = "count-locks");

/// What a worker did.
struct Done {
    time: Duration,
    locks: u64,
}

#[cfg(not(any(feature = "count-locks", debug_assertions)))]
fn locks_taken() -> u64 {
    0
}

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let counts: Vec<usize> =
        std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|n| *n <= cores).collect();
    let set = Arc::new(pages::elf(64 << 20)?);
    let rows = [zram_rows(&counts, &set, rounds)?, write_cache_rows(&counts, &set, rounds)?].concat();
    let [writes, reads] = [["writes", "to one", "locks a write"], ["reads", "to one", "locks a read"]]
        .map(|heads| heads.into_iter().take(if COUNTED { 3 } else { 2 }));
    let head: Vec<&str> = ["", "workers"].into_iter().chain(writes).chain(reads).collect();
    rounds.show("4 KiB, thousand requests a second, each worker on a part of its own", &head, rows)
}

/// Runs the same work on each of `workers` and returns thousand requests a second of all together, and locks a request.
fn on_all(
    workers: &Workers,
    device: &Arc<dyn BlockDevice>,
    set: &Arc<Pages>,
    op: Op,
    depth: usize,
) -> [f64; 2] {
    let (sender, done) = mpsc::channel();
    for index in 0..workers.count() {
        let (sender, device, set) = (sender.clone(), device.clone(), set.clone());
        let task = move || async move {
            let _ = sender.send(one_worker(device, &set, index, op, depth).await);
        };
        workers.run_on(index, Box::new(move || Box::pin(task())));
    }
    drop(sender);
    let all: Vec<Done> = done.iter().collect();
    assert_eq!(all.len(), workers.count(), "every worker answers");
    let slowest = all.iter().map(|done| done.time).max().expect("there is a worker");
    let locks: u64 = all.iter().map(|done| done.locks).sum();
    let requests = (all.len() * REQUESTS) as f64;
    [requests / slowest.as_secs_f64() / 1e3, locks as f64 / requests]
}

async fn one_worker(device: Arc<dyn BlockDevice>, set: &Pages, worker: usize, op: Op, depth: usize) -> Done {
    let seam = Seam::new(device);
    let (start, before) = (Instant::now(), locks_taken());
    join_all((0..depth).map(|lane| one_lane(&seam, set, worker, lane, op, REQUESTS / depth))).await;
    Done { time: start.elapsed(), locks: locks_taken() - before }
}

async fn one_lane(seam: &Seam, set: &Pages, worker: usize, lane: usize, op: Op, count: usize) {
    let mut random = Random((worker * DEPTH + lane) as u64 + 1);
    let mut buf = IoBuf::new(PAGE);
    for number in 0..count {
        let page = match op {
            // Each page once before any is read.
            Op::Write => (lane * count + number) % PART,
            _ => random.below(PART as u64) as usize,
        };
        let at = ((worker * PART + page) * PAGE) as u64;
        let request = match op {
            Op::Write => {
                buf.copy_from_slice(set.page(page));
                Request::write(at, buf)
            }
            _ => Request::read(at, buf),
        };
        let reply = seam.submit(request).await;
        assert_eq!(reply.result, Ok(()));
        buf = reply.buf;
    }
}

fn zram_rows(counts: &[usize], set: &Arc<Pages>, rounds: Rounds) -> Result<Vec<Vec<Cell>>> {
    let make = |workers: &Workers| -> Result<Arc<dyn BlockDevice>> {
        let disksize = (workers.count() * PART * PAGE) as u64;
        let config = zram::Config { disksize, max_comp_streams: workers.count(), ..Default::default() };
        Ok(zram::Zram::new(config, workers.env(), Arc::new(MmapRegions), Budget::new(16 << 30))?)
    };
    rows("zram, lz4, ELF files", counts, set, 1, rounds, &make)
}

fn write_cache_rows(counts: &[usize], set: &Arc<Pages>, rounds: Rounds) -> Result<Vec<Vec<Cell>>> {
    let bytes = counts.last().copied().unwrap_or(1) * PART * PAGE;
    let make = |workers: &Workers| -> Result<Arc<dyn BlockDevice>> {
        let bench = Bench::new("/dev/shm", 2 * bytes as u64)?;
        Ok(bench.fresh_on(workers, &writecache::still(4096))?)
    };
    rows("write cache on tmpfs, no write-back", counts, set, DEPTH, rounds, &make)
}

type Make<'a> = &'a dyn Fn(&Workers) -> Result<Arc<dyn BlockDevice>>;

fn rows(
    what: &str,
    counts: &[usize],
    set: &Arc<Pages>,
    depth: usize,
    rounds: Rounds,
    make: Make<'_>,
) -> Result<Vec<Vec<Cell>>> {
    let fields = counts.iter().map(|&count| {
        let workers = Workers::start(WorkersOptions { count, ..WorkersOptions::default() })?;
        Ok((make(&workers)?, workers))
    });
    let fields = fields.collect::<Result<Vec<_>>>()?;
    let figures = rounds.measure(|round| {
        let mut figures = vec![f64::NAN; FIGURES * fields.len()];
        for turn in drawn_order(fields.len(), round) {
            let (device, workers) = &fields[turn];
            let done = [Op::Write, Op::Read].map(|op| on_all(workers, device, set, op, depth)).concat();
            figures[turn * FIGURES..][..FIGURES].copy_from_slice(&done);
        }
        Ok(figures)
    })?;
    let row = |(count, of_it): (&usize, &[Vec<f64>])| {
        let rate = |number: usize| figure(&of_it[number], 0);
        let gain = |number: usize| ratio(&of_it[number], &figures[number]);
        let locks = |number: usize| COUNTED.then(|| Cell::from(figure(&of_it[number], 2)));
        let of = |number: usize| [rate(number).into(), gain(number).into()];
        let of = |number: usize| of(number).into_iter().chain(locks(number + 1));
        let texts: [Cell; 2] = [what.into(), count.to_string().into()];
        texts.into_iter().chain(of(0)).chain(of(2)).collect()
    };
    Ok(counts.iter().zip(figures.chunks(FIGURES)).map(row).collect())
}
