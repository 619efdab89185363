//! E4: large writes through the write cache, fresh and after churn; flushes that share commits; a flush under load.
//!
//! The cache lies on tmpfs, its pages touched before. The peers are our own modes: the blocks of a request submitted at once as one
//! I/O each, from the request's buffer (before the source's change); a next-fit cursor for free blocks (the kernel's); and commits
//! for one flush at a time, skipped where one that began after the call has covered it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::{Attributes, BlockDevice, Budget, Env, IoBuf, Request, Seam};
use spillway_io::{FileOptions, Workers, WorkersOptions};
use spillway_layers::file::File;
use spillway_layers::write_cache::{Ablation, Config, WriteCache, attributes};
use spillway_layers::{delay, null, rate};

use crate::allocator;
use crate::report::{Rounds, at_least, at_most, bounded, drawn_order, median, ratio, table};

const MIB: u64 = 1 << 20;
const CACHE_BYTES: u64 = 2 << 30;
const ORIGIN_BYTES: u64 = 8 << 30;

/// The source's request and amount.
const WRITE_BYTES: usize = 512 << 10;
const WRITTEN: u64 = 400 * MIB;

const PARTS: [&str; 5] = ["memory", "large", "churn", "commits", "load"];

/// Block size, and the ratio of the source.
const SOURCE: [(u64, f64); 8] = [
    (512, 3.87),
    (1024, 3.62),
    (2048, 3.137),
    (4096, 2.33),
    (8192, 1.80),
    (16384, 1.42),
    (32768, 1.23),
    (65536, 1.12),
];

/// A file on tmpfs, or elsewhere; gone afterwards.
struct Medium(PathBuf);

impl Medium {
    fn new(folder: &str, bytes: u64) -> Result<Self> {
        let path = PathBuf::from(folder).join(format!("spillway-bench-{}.cache", std::process::id()));
        let medium = Self(path);
        let file =
            std::fs::File::create(&medium.0).with_context(|| format!("{} is needed", medium.0.display()))?;
        file.set_len(bytes)?;
        let zeroes = vec![0; MIB as usize];
        for at in (0..bytes).step_by(MIB as usize) {
            std::os::unix::fs::FileExt::write_all_at(&file, &zeroes, at)?;
        }
        Ok(medium)
    }

    fn open(&self, workers: &Workers) -> Result<Arc<dyn BlockDevice>> {
        let options = FileOptions { path: self.0.clone(), ..FileOptions::default() };
        let storage = spillway_io::open(&options)?.storage;
        Ok(Arc::new(File::charged(storage, workers.env(), &Budget::new(1 << 20))?))
    }
}

impl Drop for Medium {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) struct Bench {
    workers: Workers,
    medium: Medium,
}

/// What requests are made of.
#[derive(Clone, Copy)]
struct Load {
    len: usize,
    depth: usize,
    bytes: u64,
    /// Bytes of the device that are written to, from the begin.
    area: u64,
    seed: u64,
}

impl Bench {
    pub(crate) fn new(folder: &str, bytes: u64) -> Result<Self> {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
        Ok(Self { workers, medium: Medium::new(folder, bytes)? })
    }

    /// `device`, but a flush of it takes so long.
    fn costly(&self, device: Arc<dyn BlockDevice>, flush_us: u64) -> Result<Arc<dyn BlockDevice>> {
        let config = delay::Config { flush_us, ..delay::Config::default() };
        Ok(delay::Delay::new(&config, device, self.workers.env())?)
    }

    fn null(&self) -> Result<Arc<dyn BlockDevice>> {
        let config = null::Config { size: ORIGIN_BYTES };
        Ok(null::Null::new(&config)?)
    }

    fn cache(
        &self,
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Arc<WriteCache>> {
        // Over the cache of the round before.
        let config = Config { create: true, force: true, ..config.clone() };
        let (env, budget) = (self.workers.env(), Budget::new(4 << 30));
        let open = move || async move { WriteCache::open(&config, origin, device, env, budget).await };
        Ok(self.on_worker(open)?.0)
    }

    /// A cache that outlives this bench, for the workers of another.
    #[cfg(feature = "count-locks")]
    pub(crate) fn fresh_on(self, workers: &Workers, config: &Config) -> Result<Arc<WriteCache>> {
        let device = self.medium.open(workers)?;
        let (env, budget) = (workers.env(), Budget::new(4 << 30));
        Ok(spillway_io::block_on(WriteCache::open(config, self.null()?, device, env, budget))?.0)
    }

    fn fresh(&self, config: &Config) -> Result<Arc<WriteCache>> {
        self.cache(config, self.null()?, self.medium.open(&self.workers)?)
    }

    fn on_worker<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        let (sender, outcome) = mpsc::channel();
        let task = move || async move {
            let _ = sender.send(work().await);
        };
        self.workers.run_on(0, Box::new(move || Box::pin(task())));
        outcome.recv().expect("the worker answers")
    }

    /// MiB a second of random writes.
    fn write(&self, device: Arc<dyn BlockDevice>, load: Load) -> f64 {
        let time = self.on_worker(move || async move {
            let seam = Seam::new(device);
            let start = Instant::now();
            join_all((0..load.depth).map(|lane| write_lane(&seam, load, lane as u64))).await;
            start.elapsed()
        });
        load.bytes as f64 / MIB as f64 / time.as_secs_f64()
    }

    fn flush(&self, device: Arc<dyn BlockDevice>) {
        let result =
            self.on_worker(move || async move { Seam::new(device).submit(Request::flush()).await.result });
        assert_eq!(result, Ok(()));
    }
}

async fn write_lane(seam: &Seam, load: Load, lane: u64) {
    let mut random = Random(load.seed * 1000 + lane);
    let count = load.bytes / load.len as u64 / load.depth as u64;
    let mut buf = IoBuf::zeroed(load.len);
    for number in 0..count {
        buf[..8].copy_from_slice(&number.to_le_bytes());
        let at = random.below(load.area / load.len as u64) * load.len as u64;
        let reply = seam.submit(Request::write(at, buf)).await;
        assert_eq!(reply.result, Ok(()));
        buf = reply.buf;
    }
}

/// Nothing is copied to the origin.
pub(crate) fn still(block_size: u64) -> Config {
    Config { block_size, high_watermark: 100, low_watermark: 100, ..Config::default() }
}

/// The parts that `wanted` names; all of them by default.
pub(crate) fn run(count: usize, wanted: Option<&str>) -> Result<()> {
    let rounds = Rounds::new(count, "writecache");
    let is_wanted = |part: &str| wanted.is_none_or(|wanted| wanted == part);
    if let Some(wanted) = wanted.filter(|wanted| !PARTS.contains(wanted)) {
        bail!("there is no part {wanted:?}; there are: {}", PARTS.join(", "));
    }
    if is_wanted("memory") {
        index_memory(&Bench::new("/dev/shm", CACHE_BYTES)?, rounds.part("memory"))?;
    }
    if is_wanted("large") {
        let bench = Bench::new("/dev/shm", CACHE_BYTES)?;
        [1, 32].into_iter().try_for_each(|depth| large_writes(&bench, depth, rounds.part("large")))?;
    }
    if is_wanted("churn") {
        churn(&Bench::new("/dev/shm", CACHE_BYTES)?, rounds.part("churn"))?;
    }
    if is_wanted("commits") {
        commits(rounds.part("commits"))?;
    }
    if is_wanted("load") {
        flush_under_load(rounds.part("load"))?;
    }
    Ok(())
}

fn commits(rounds: Rounds) -> Result<()> {
    group_commit("/dev/shm", "tmpfs, and a flush that takes 200 us", 200, rounds)?;
    group_commit(&disk()?, "a file on the disk of this machine", 0, rounds)
}

/// A folder on a disk: the one that is named, or where this program lies.
fn disk() -> Result<String> {
    if let Ok(folder) = std::env::var("SPILLWAY_BENCH_DISK") {
        return Ok(folder);
    }
    let program = std::env::current_exe()?;
    Ok(program.parent().context("a program lies in a folder")?.to_string_lossy().into_owned())
}

fn large_writes(bench: &Bench, depth: usize, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (block, wanted) in SOURCE {
        let figures = rounds.measure(|round| {
            let load =
                Load { len: WRITE_BYTES, depth, bytes: WRITTEN, area: CACHE_BYTES / 2, seed: round as u64 };
            let one_by_one =
                Config { ablation: Ablation { single_blocks: true, ..Default::default() }, ..still(block) };
            let mut rates = vec![0.0; 3];
            for turn in drawn_order(3, round) {
                let device: Arc<dyn BlockDevice> = match turn {
                    0 => bench.fresh(&still(block))?,
                    1 => bench.fresh(&one_by_one)?,
                    _ => bench.medium.open(&bench.workers)?,
                };
                rates[turn] = bench.write(device, load);
            }
            Ok(rates)
        })?;
        let [large, single, plain] = &figures[..] else { unreachable!("three contenders") };
        let of_plain = ratio(large, plain);
        rows.push(vec![
            block.to_string(),
            format!("{:.0}", median(single)),
            format!("{:.0}", median(large)),
            at_least(ratio(large, single), wanted),
            format!("{:.0}", median(plain)),
            if block >= 4096 { at_least(of_plain, 0.8) } else { format!("{of_plain:.2}") },
        ]);
    }
    let title = format!("E4: 512 KiB random writes, depth {depth}, 400 MiB, MiB a second");
    let head = ["block", "one I/O a block", "large", "ratio (source)", "plain file", "of plain"];
    table(&rounds.title(&title), &head, &rows);
    Ok(())
}

/// After ten times the capacity in random 4 KiB writes over 45 % of it: 512 KiB writes again, 20 % of the capacity.
fn churn(bench: &Bench, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for next_fit in [false, true] {
        let config = Config { ablation: Ablation { next_fit, ..Default::default() }, ..still(4096) };
        let (mut pieces, mut runs) = (String::new(), String::new());
        let figures = rounds.measure(|round| {
            let large = Load {
                len: WRITE_BYTES,
                depth: 1,
                bytes: CACHE_BYTES / 5 / MIB * MIB,
                area: ORIGIN_BYTES / 2,
                seed: round as u64,
            };
            let fresh = bench.write(bench.fresh(&config)?, large);
            let cache = bench.fresh(&config)?;
            let area = CACHE_BYTES / 100 * 45 / 4096 * 4096;
            let small = Load { len: 4096, depth: 32, bytes: 10 * CACHE_BYTES, area, seed: round as u64 };
            bench.write(cache.clone(), small);
            bench.flush(cache.clone());
            let show = attributes(cache.clone());
            until_cleared(&show)?;
            runs = format!("{}, {}", show.show("free_run_mean")?, show.show("free_run_p10")?);
            show.store("message", "clear_stats").now()?;
            let aged = bench.write(Arc::new(Shifted(Seam::new(cache.clone()))), large);
            pieces = show.show("ios_per_write")?;
            Ok(vec![fresh, aged])
        })?;
        let [fresh, aged] = &figures[..] else { unreachable!("two figures a round") };
        let kept = ratio(aged, fresh);
        rows.push(vec![
            if next_fit { "next fit" } else { "best fit" }.into(),
            format!("{:.0}", median(fresh)),
            format!("{:.0}", median(aged)),
            if next_fit { format!("{kept:.2}") } else { at_least(kept, 0.9) },
            pieces,
            runs,
        ]);
    }
    let title = "E4 after churn: block 4096, ten times the capacity rewritten, MiB a second";
    let head = ["free blocks", "fresh", "aged", "of fresh", "I/Os a write", "free runs: mean, p10"];
    table(&rounds.title(title), &head, &rows);
    Ok(())
}

/// Waits until the entries of versions that were replaced are clear.
fn until_cleared(show: &dyn Attributes) -> Result<()> {
    while number(show, "free_blocks")? + number(show, "dirty_blocks")? < number(show, "blocks")? {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn number(attributes: &dyn Attributes, name: &str) -> Result<u64> {
    attributes.get(name)?.number().context("a number")
}

/// The upper half of a device.
struct Shifted(Seam);

impl BlockDevice for Shifted {
    fn geometry(&self) -> spillway_core::Geometry {
        let below = self.0.geometry();
        spillway_core::Geometry { size: below.size / 2, ..below }
    }

    fn submit(&self, mut request: Request) -> spillway_core::Submission {
        request.range.offset += self.0.geometry().size / 2;
        self.0.submit(request)
    }
}

/// What the index takes, by the allocator's count, from a cache that is opened until it is filled and committed.
fn index_memory(bench: &Bench, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (what, len) in [("random 512 bytes", 512), ("random 64 KiB", 64 << 10)] {
        allocator::count_from_now();
        let cache = bench.fresh(&still(512))?;
        let load = Load { len, depth: 32, bytes: CACHE_BYTES * 7 / 8, area: ORIGIN_BYTES / 4 * 3, seed: 5 };
        bench.write(cache.clone(), load);
        bench.flush(cache.clone());
        let counted = allocator::counted();
        let show = attributes(cache.clone());
        let (blocks, used) = (number(&show, "blocks")? as f64, number(&show, "dirty_blocks")? as f64);
        rows.push(vec![
            what.into(),
            format!("{:.0} %", used / blocks * 100.0),
            at_most(counted as f64 / blocks, 1, "", 32.0),
        ]);
    }
    let title =
        "Memory of the index, counted by the allocator, bytes for each block of 512 bytes of the cache";
    table(&rounds.title_once(title), &["filled by", "used", "bytes"], &rows);
    Ok(())
}

/// Clients that write 4 KiB and flush, as a database does. What a commit for each flush would reach is the rate of one client,
/// whoever else waits; the peer is a mode that commits for one flush at a time and skips what a commit has covered meanwhile.
fn group_commit(folder: &str, place: &str, flush_us: u64, rounds: Rounds) -> Result<()> {
    let bench = Bench::new(folder, 256 * MIB)?;
    let mut rows = Vec::new();
    let mut one_client: Option<Vec<f64>> = None;
    for clients in [1, 4, 8, 16, 32] {
        let figures = rounds.measure(|round| {
            let mut rates = vec![0.0; 2];
            for turn in drawn_order(2, round) {
                let config = Config {
                    ablation: Ablation { lone_commits: turn == 1, ..Default::default() },
                    ..still(4096)
                };
                let device = bench.costly(bench.medium.open(&bench.workers)?, flush_us)?;
                let cache = bench.cache(&config, bench.null()?, device)?;
                rates[turn] = flushes_a_second(&bench, cache, clients, Duration::from_millis(700));
            }
            Ok(rates)
        })?;
        let [shared, alone] = &figures[..] else { unreachable!("two figures a round") };
        let gain = ratio(shared, one_client.get_or_insert_with(|| shared.clone()));
        rows.push(vec![
            clients.to_string(),
            format!("{:.0}", median(shared)),
            bounded(gain, (clients == 32).then_some(12.0)),
            format!("{:.0}", median(alone)),
            format!("{:.2}", ratio(shared, alone)),
        ]);
    }
    let title = format!("4 KiB and a flush, cache on {place}, flushes a second");
    let head = [
        "clients",
        "shared commits",
        "to one client, a commit each",
        "commits for one flush, skipped if covered",
        "shared to these",
    ];
    table(&rounds.title(&title), &head, &rows);
    Ok(())
}

fn flushes_a_second(bench: &Bench, cache: Arc<WriteCache>, clients: usize, span: Duration) -> f64 {
    let flushes: u64 = bench.on_worker(move || async move {
        let seam = Seam::new(cache);
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

/// What a flush costs on the cache device and on the origin: an SSD without protection against power loss, and a disk.
const FLUSH_US: [u64; 2] = [5_000, 30_000];

/// What a round of [`flush_under_load`] takes.
const LOAD: Duration = Duration::from_secs(5);

/// Writers that fill a small cache over a slow origin, and a client that flushes: its slowest answer of all rounds.
fn flush_under_load(rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (len, origin_rate) in [(4096, 20 * MIB), (WRITE_BYTES, 20 * MIB), (4096, 5 * MIB)] {
        let (mut slowest, mut sums) = (Duration::ZERO, [0; 3]);
        for _ in 0..rounds.count {
            let (round, counts) = loaded_round(len, origin_rate)?;
            slowest = slowest.max(round);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        let [flushes, around, writes] = sums;
        rows.push(vec![
            format!("{} KiB", len >> 10),
            format!("{} MiB/s", origin_rate / MIB),
            flushes.to_string(),
            at_most(slowest.as_secs_f64(), 3, " s", 2.0),
            format!("{around} of {writes}"),
        ]);
    }
    let title = format!(
        "A flush under full write load, 32 writers, cache of 64 MiB, slow origin, flushes of {} ms on the cache device and of \
        {} ms on the origin, {} s a round",
        FLUSH_US[0] / 1000,
        FLUSH_US[1] / 1000,
        LOAD.as_secs()
    );
    table(&rounds.title(&title), &["writes", "origin", "flushes", "slowest", "blocks around"], &rows);
    Ok(())
}

/// The slowest flush; flushes, and blocks that were written around and in all.
fn loaded_round(len: usize, origin_rate: u64) -> Result<(Duration, [u64; 3])> {
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
        bench.on_worker(move || async move { slowest_flush(cache, env, len, LOAD).await });
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
