//! A store on which written bytes cost time, and are counted; what is read is zeroes, at once. A page cache over it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::Result;
use parking_lot::Mutex;
use spillway_core::sync::Words;
use spillway_core::{
    Answer, BlockDevice, BlockSize, Budget, Env, Geometry, Kind, Op, Region, Regions, Request, Seam, Slab,
    Submission, Works,
};
use spillway_io::{MmapRegions, Workers, WorkersOptions};
use spillway_layers::page_cache::{Config, PageCache};

/// See the head of this file.
pub(super) struct Store {
    geometry: Geometry,
    bytes_per_second: u64,
    env: Arc<dyn Env>,
    busy_until: Mutex<Duration>,
    written: AtomicU64,
}

impl Store {
    /// Bytes written since this was last asked.
    pub(super) fn take_written(&self) -> u64 {
        self.written.swap(0, Ordering::Relaxed)
    }

    /// How long it is until a write of `bytes` is done, behind all others.
    fn book(&self, bytes: u64) -> Duration {
        let (now, mut busy_until) = (self.env.now(), self.busy_until.lock());
        *busy_until =
            busy_until.max(now) + Duration::from_secs_f64(bytes as f64 / self.bytes_per_second as f64);
        *busy_until - now
    }
}

impl BlockDevice for Store {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&self, mut request: Request) -> Submission {
        match request.op {
            Op::Read => request.buf.fill(0),
            Op::Write => {
                self.written.fetch_add(request.range.len, Ordering::Relaxed);
                let (env, wait) = (self.env.clone(), self.book(request.range.len));
                return Answer::pending(async move {
                    env.sleep(wait).await;
                    request.answer(Ok(()))
                });
            }
            Op::WriteZeroes | Op::Discard | Op::Flush => {}
        }
        Answer::Done(request.answer(Ok(())))
    }
}

/// Memory of the system, which counts what it has given: a cache gives nothing of that back before its end.
#[derive(Default)]
pub(super) struct Mapped(AtomicU64);

impl Mapped {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: usize) {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

impl Regions for Mapped {
    fn map(&self, bytes: usize) -> Result<Box<dyn Region>, Kind> {
        MmapRegions.map(bytes).inspect(|region| self.add(region.len()))
    }

    fn map_slab(&self, bytes: usize) -> Result<Box<dyn Slab>, Kind> {
        MmapRegions.map_slab(bytes).inspect(|slab| self.add(slab.bytes().len()))
    }

    fn map_words(&self, count: usize) -> Result<Box<dyn Words>, Kind> {
        MmapRegions.map_words(count).inspect(|words| self.add(size_of_val(words.all())))
    }
}

pub(super) fn one_worker() -> Result<Workers> {
    Ok(Workers::start(WorkersOptions { count: 1, ..WorkersOptions::default() })?)
}

/// A worker, a store, and a cache over it.
pub(super) struct Rig {
    workers: Workers,
    pub(super) store: Arc<Store>,
    pub(super) cache: Arc<PageCache>,
    pub(super) budget: Arc<Budget>,
    pub(super) mapped: Arc<Mapped>,
}

impl Rig {
    /// `size` bytes on a store with blocks of `block` bytes that takes so many bytes a second.
    pub(super) fn new(config: &Config, size: u64, block: u32, bytes_per_second: u64) -> Result<Self> {
        Self::on(one_worker()?, config, size, block, bytes_per_second)
    }

    /// The same on workers that are there.
    pub(super) fn on(
        workers: Workers,
        config: &Config,
        size: u64,
        block: u32,
        bytes_per_second: u64,
    ) -> Result<Self> {
        let (env, budget) = (workers.env(), Budget::new(4 << 30));
        let (busy_until, written) = (Mutex::default(), AtomicU64::new(0));
        let geometry = Geometry {
            block_size: BlockSize::new(block).expect("a power of two"),
            optimal_io: block,
            volatile: false,
            ..Geometry::in_memory(size)
        };
        let store = Arc::new(Store { geometry, bytes_per_second, env, busy_until, written });
        let mapped = Arc::new(Mapped::default());
        let regions: Arc<dyn Regions> = mapped.clone();
        let (cache, _) =
            PageCache::open(config, store.clone(), workers.env(), &regions, &budget, Works::default())?;
        Ok(Self { workers, store, cache, budget, mapped })
    }

    /// Runs a task over the cache on the worker.
    pub(super) fn on_worker<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Seam) -> F + Send + 'static,
    ) -> T {
        let (sender, outcome) = mpsc::channel();
        let seam = Seam::new(self.cache.clone());
        let task = move || async move {
            let _ = sender.send(work(seam).await);
        };
        self.workers.run_on(0, Box::new(move || Box::pin(task())));
        outcome.recv().expect("the worker answers")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::sync::WORDS_A_PAGE;

    #[test]
    fn what_is_mapped_in_any_way_is_counted() {
        let mapped = Mapped::default();
        let slab = mapped.map_slab(3 << 20).unwrap();
        assert_eq!((slab.bytes().len(), mapped.bytes()), (3 << 20, 3 << 20));
        let _others = (mapped.map(8192).unwrap(), mapped.map_words(WORDS_A_PAGE).unwrap());
        assert_eq!(mapped.bytes(), (3 << 20) + 8192 + 4096);
    }
}
