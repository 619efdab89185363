//! A write cache on a file of zeroes, and what is written to it.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Instant;

use anyhow::{Context, Result};
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::{Attributes, BlockDevice, Budget, IoBuf, Request, Seam, Works};
use spillway_io::{FileOptions, Workers, WorkersOptions};
use spillway_layers::file::File;
use spillway_layers::small::{delay, null};
use spillway_layers::write_cache::{Config, OldCache, WriteCache};

pub(super) const MIB: u64 = 1 << 20;
pub(super) const ORIGIN_BYTES: u64 = 8 << 30;

/// Bytes of a large request: those of the source.
pub(super) const WRITE_BYTES: usize = 512 << 10;

/// A file on tmpfs, or elsewhere; gone afterwards.
pub(super) struct Medium(PathBuf);

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

    pub(super) fn open(&self, workers: &Workers) -> Result<Arc<dyn BlockDevice>> {
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
    pub(crate) workers: Workers,
    pub(super) medium: Medium,
}

/// What requests are made of.
#[derive(Clone, Copy)]
pub(super) struct Load {
    pub(super) len: usize,
    pub(super) depth: usize,
    pub(super) bytes: u64,
    /// Bytes of the device that are written to, from the begin.
    pub(super) area: u64,
    pub(super) seed: u64,
    /// Writes between two flushes, if there are any.
    pub(super) flush_after: Option<u64>,
}

impl Bench {
    pub(crate) fn new(folder: &str, bytes: u64) -> Result<Self> {
        let workers = Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?;
        Ok(Self { workers, medium: Medium::new(folder, bytes)? })
    }

    /// `device`, but a flush of it takes so long.
    pub(super) fn costly(&self, device: Arc<dyn BlockDevice>, flush_us: u64) -> Result<Arc<dyn BlockDevice>> {
        let config = delay::Config { flush_us, ..delay::Config::default() };
        Ok(delay::Delay::new(&config, device, self.workers.env())?)
    }

    pub(super) fn null(&self) -> Result<Arc<dyn BlockDevice>> {
        let config = null::Config { size: ORIGIN_BYTES };
        Ok(null::Null::new(&config)?)
    }

    pub(super) fn cache(
        &self,
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        device: Arc<dyn BlockDevice>,
    ) -> Result<Arc<WriteCache>> {
        // Over the cache of the round before.
        let config = Config { old_cache: OldCache::Create, force: true, ..config.clone() };
        let (env, budget) = (self.workers.env(), Budget::new(4 << 30));
        let open = move || async move {
            WriteCache::open(&config, origin, device, env, budget, Works::default()).await
        };
        Ok(self.on_worker(open)?.0)
    }

    /// A cache that outlives this bench, for the workers of another.
    pub(crate) fn fresh_on(self, workers: &Workers, config: &Config) -> Result<Arc<WriteCache>> {
        let device = self.medium.open(workers)?;
        let (env, budget) = (workers.env(), Budget::new(4 << 30));
        Ok(spillway_io::block_on(WriteCache::open(
            config,
            self.null()?,
            device,
            env,
            budget,
            Works::default(),
        ))?
        .0)
    }

    /// A cache over nothing of another size.
    pub(crate) fn over_null(&self, config: &Config, size: u64) -> Result<Arc<WriteCache>> {
        self.cache(config, null::Null::new(&null::Config { size })?, self.medium.open(&self.workers)?)
    }

    pub(super) fn fresh(&self, config: &Config) -> Result<Arc<WriteCache>> {
        self.cache(config, self.null()?, self.medium.open(&self.workers)?)
    }

    pub(super) fn on_worker<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce() -> F + Send + 'static,
    ) -> T {
        on_worker(&self.workers, work)
    }

    /// MiB a second of random writes.
    pub(super) fn write(&self, device: Arc<dyn BlockDevice>, load: Load) -> f64 {
        let time = self.on_worker(move || async move {
            let seam = Seam::new(device);
            let start = Instant::now();
            let written = Cell::new(0);
            join_all((0..load.depth).map(|lane| write_lane(&seam, load, lane as u64, &written))).await;
            start.elapsed()
        });
        load.bytes as f64 / MIB as f64 / time.as_secs_f64()
    }

    pub(super) fn flush(&self, device: Arc<dyn BlockDevice>) {
        let result =
            self.on_worker(move || async move { Seam::new(device).submit(Request::flush()).await.result });
        assert_eq!(result, Ok(()));
    }
}

/// Has the first worker carry it out, and waits for what comes of it.
pub(crate) fn on_worker<T: Send + 'static, F: Future<Output = T> + 'static>(
    workers: &Workers,
    work: impl FnOnce() -> F + Send + 'static,
) -> T {
    let (sender, outcome) = mpsc::channel();
    let task = move || async move {
        let _ = sender.send(work().await);
    };
    workers.run_on(0, Box::new(move || Box::pin(task())));
    outcome.recv().expect("the worker answers")
}

/// Writes noise; `written` counts the writes of all lanes.
async fn write_lane(seam: &Seam, load: Load, lane: u64, written: &Cell<u64>) {
    let mut random = Random(load.seed * 1000 + lane);
    let count = load.bytes / load.len as u64 / load.depth as u64;
    let mut buf = IoBuf::new(load.len);
    buf.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()[..word.len()]));
    for number in 0..count {
        buf[..8].copy_from_slice(&number.to_le_bytes());
        let at = random.below(load.area / load.len as u64) * load.len as u64;
        let reply = seam.submit(Request::write(at, buf)).await;
        assert_eq!(reply.result, Ok(()));
        buf = reply.buf;
        written.set(written.get() + 1);
        if load.flush_after.is_some_and(|writes| written.get().is_multiple_of(writes)) {
            assert_eq!(seam.submit(Request::flush()).await.result, Ok(()));
        }
    }
}

/// Nothing is copied to the origin.
pub(crate) fn still(block_size: u64) -> Config {
    Config { block_size, high_watermark: 100, low_watermark: 100, ..Config::default() }
}

pub(super) fn number(attributes: &dyn Attributes, name: &str) -> Result<u64> {
    attributes.get(name)?.number().context("a number")
}
