//! Flushes that share commits, and a flush under full write load.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::sync::Semaphore;
use spillway_core::{Answer, BlockDevice, Env, Geometry, IoBuf, Op, Reply, Request, Seam, Submission};
use spillway_layers::small::rate;
use spillway_layers::write_cache::{Config, WriteCache, attributes};

use super::rig::{Bench, MIB, ORIGIN_BYTES, WRITE_BYTES, number, still};
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, once, ratio, row};

pub(super) fn commits(rounds: Rounds) -> Result<()> {
    let mut rows = group_commit("/dev/shm", "tmpfs, a flush takes 200 us", 200, rounds)?;
    rows.extend(group_commit(&disk()?, "the disk of this machine", 0, rounds)?);
    let head = [
        "cache on",
        "clients",
        "shared commits",
        "to one client, a commit each",
        "commits for one flush, skipped if covered",
        "shared to these",
    ];
    rounds.show("4 KiB and a flush, flushes a second", &head, rows)
}

/// A folder on a disk: the one that is named, or where this program lies.
fn disk() -> Result<String> {
    if let Ok(folder) = std::env::var("SPILLWAY_BENCH_DISK") {
        return Ok(folder);
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().context("a program lies in a folder")?.to_string_lossy().into_owned())
}

/// Clients that write 4 KiB and flush, as a database does. What a commit for each flush would reach is the rate of one client,
/// whatever else waits; the peer is a mode that commits for one flush at a time and skips what a commit has covered meanwhile.
fn group_commit(folder: &str, place: &str, flush_us: u64, rounds: Rounds) -> Result<Vec<Vec<Cell>>> {
    let bench = Bench::new(folder, 256 * MIB)?;
    let mut rows = Vec::new();
    let mut one_client: Option<Vec<f64>> = None;
    for clients in [1, 4, 8, 16, 32] {
        let figures = rounds.measure(|round| {
            let span = Duration::from_millis(rounds.at(round).pick(700, 200));
            let mut rates = vec![0.0; 2];
            for turn in drawn_order(2, round) {
                let device = bench.costly(bench.medium.open(&bench.workers)?, flush_us)?;
                let cache = bench.cache(&still(4096), bench.null()?, device)?;
                let seam = Seam::new(if turn == 0 { cache } else { Arc::new(OneFlush::over(cache)) });
                rates[turn] = flushes_a_second(&bench, seam, clients, span);
            }
            Ok(rates)
        })?;
        let [shared, alone] = &figures[..] else { unreachable!("two figures a round") };
        let gain = ratio(shared, one_client.get_or_insert_with(|| shared.clone()));
        rows.push(row![
            place,
            clients.to_string(),
            figure(shared, 0),
            gain.wanted(if clients == 32 { 12.0 } else { 0.0 }).of_ours(),
            figure(alone, 0),
            ratio(shared, alone),
        ]);
    }
    Ok(rows)
}

fn flushes_a_second(bench: &Bench, seam: Seam, clients: usize, span: Duration) -> f64 {
    let flushes: u64 = bench.on_worker(move || async move {
        let start = Instant::now();
        let client = async |lane: u64| {
            let (mut random, mut flushes) = (Random(lane), 0);
            while start.elapsed() < span {
                let at = random.below(16384) * 4096;
                assert_eq!(seam.submit(Request::write(at, IoBuf::zeroed(4096))).await.result, Ok(()));
                assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
                flushes += 1;
            }
            flushes
        };
        join_all((0..clients as u64).map(client)).await.into_iter().sum()
    });
    flushes as f64 / span.as_secs_f64()
}

/// A device with one flush at a time; one is skipped where another that began after the call has ended by its turn.
struct OneFlush(Arc<Flushed>);

struct Flushed {
    below: Seam,
    turn: Semaphore,
    /// Flushes that have begun.
    begun: AtomicU64,
}

impl OneFlush {
    fn over(below: Arc<dyn BlockDevice>) -> Self {
        Self(Arc::new(Flushed { below: Seam::new(below), turn: Semaphore::new(1), begun: AtomicU64::new(0) }))
    }
}

impl Flushed {
    async fn flush(&self, request: Request) -> Reply {
        let before = self.begun.load(Ordering::Relaxed);
        let _turn = self.turn.hold().await;
        if self.begun.load(Ordering::Relaxed) > before {
            return request.answer(Ok(()));
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        self.below.submit(request).await
    }
}

impl BlockDevice for OneFlush {
    fn geometry(&self) -> Geometry {
        self.0.below.geometry()
    }

    fn submit(&self, request: Request) -> Submission {
        if request.op != Op::Flush {
            return self.0.below.submit(request);
        }
        let device = self.0.clone();
        Answer::pending(async move { device.flush(request).await })
    }
}

/// What a flush costs on the cache device and on the origin: an SSD without protection against power loss, and a disk.
const FLUSH_US: [u64; 2] = [5_000, 30_000];

/// What a round of [`flush_under_load`] takes.
fn load(rounds: Rounds) -> Duration {
    Duration::from_secs(rounds.pick(3, 2))
}

/// Writers that fill a small cache over a slow origin, and a client that flushes: its slowest answer of all rounds.
pub(super) fn flush_under_load(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (len, origin_rate) in [(4096, 20 * MIB), (WRITE_BYTES, 20 * MIB), (4096, 5 * MIB)] {
        let (mut slowest, mut sums) = (Duration::ZERO, [0; 3]);
        for _ in 0..rounds.count {
            let (round, counts) = loaded_round(len, origin_rate, load(rounds))?;
            slowest = slowest.max(round);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [flushes, around, writes] = sums;
        rows.push(row![
            format!("{} KiB", len >> 10),
            format!("{} MiB/s", origin_rate / MIB),
            flushes.to_string(),
            once(slowest.as_secs_f64(), 3).unit(" s").at_most(2.0),
            format!("{around} of {writes}"),
        ]);
    }
    let title = format!(
        "A flush under full write load, 32 writers, cache of 64 MiB, slow origin, flushes of {} ms on the cache device and of \
        {} ms on the origin, {} s a round",
        FLUSH_US[0] / 1000,
        FLUSH_US[1] / 1000,
        load(rounds).as_secs()
    );
    rounds.show(&title, &["writes", "origin", "flushes", "slowest", "blocks around"], rows)
}

/// The slowest flush; flushes, and blocks that were written around and in all.
fn loaded_round(len: usize, origin_rate: u64, span: Duration) -> Result<(Duration, [u64; 3])> {
    let bench = Bench::new("/dev/shm", 64 * MIB)?;
    let slow = rate::Config { bytes_per_second: origin_rate, seek_us: 0 };
    let origin = rate::Rate::new(&slow, bench.null()?, bench.workers.env())?;
    let origin = bench.costly(origin, FLUSH_US[1])?;
    let device = bench.costly(bench.medium.open(&bench.workers)?, FLUSH_US[0])?;
    let config = Config { pause_writeback: Some(0), ..Config::default() };
    let cache = bench.cache(&config, origin, device)?;
    let shown = attributes(cache.clone());
    let env = bench.workers.env();
    let (slowest, flushes) =
        bench.on_worker(move || async move { slowest_flush(cache, env, len, span).await });
    Ok((slowest, [flushes.into(), number(&shown, "writes_around")?, number(&shown, "writes")?]))
}

async fn slowest_flush(
    cache: Arc<WriteCache>,
    env: Arc<dyn Env>,
    len: usize,
    span: Duration,
) -> (Duration, u32) {
    let seam = Seam::new(cache);
    let start = Instant::now();
    let writer = async |lane: u64| {
        let mut random = Random(lane);
        while start.elapsed() < span {
            let at = random.below(ORIGIN_BYTES / len as u64) * len as u64;
            assert_eq!(seam.submit(Request::write(at, IoBuf::zeroed(len))).await.result, Ok(()));
        }
    };
    let flusher = async {
        let (mut slowest, mut count) = (Duration::ZERO, 0);
        while start.elapsed() < span {
            let begin = Instant::now();
            assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
            (slowest, count) = (slowest.max(begin.elapsed()), count + 1);
            env.sleep(Duration::from_millis(1)).await;
        }
        (slowest, count)
    };
    futures_util::future::join(flusher, join_all((0..32).map(writer))).await.0
}
