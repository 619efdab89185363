//! SSD write cache: acknowledges at the speed of a cache device and loses nothing, over a slow origin.
//!
//! The cache device is in dm-writecache's own format (modes `s` and `p`), so that the kernel and this layer take over from each other.
//!
//! ```text
//!   write  -> blocks that follow each other are reserved -> one I/O to the cache device -> published
//!   flush  -> the keeper commits: writes under way end -> entries -> flush -> superblock, FUA -> acknowledged
//!             then it clears the entries of versions that were replaced -> flush -> their blocks are free
//!   read   -> stretches of the cache device and of the origin, each one I/O; what is read is pinned
//!   used above the high watermark -> a sweep over the origin: runs of blocks are read, written to the origin, origin flushed,
//!             handed to the keeper to be cleared
//!   full   -> what is not in the cache goes around it, as far as the origin keeps up; the rest waits
//! ```
//!
//! Promises: what a flush or FUA acknowledged survives a crash of either device's power. A version that was committed is never
//! written over, so that no block is a mixture after a crash. A request that is dropped is withdrawn: its blocks go back, and the
//! device below orders who gets them next behind what it still has in hand. The first error of the metadata or of a copy
//! sticks: writes and flushes fail from then on, reads go on, and nothing is freed, so that what was acknowledged stays on the
//! cache device.
//!
//! Needs: a cache device whose blocks are not larger than the cache's, and which flushes for real. Locks: the index, then the
//! pace; the others are leaves.
//!
//! | module | holds |
//! | --- | --- |
//! | [`mod@format`] | superblock, entries, layout, and the checks before a cache is taken for one |
//! | `recovery` | which blocks of a cache are alive after a crash |
//! | `blank`, `signatures` | what a device holds that is not a cache: named, and not formatted |
//! | `settings`, `counts`, `attributes` | options, figures, and both as the control plane sees them |
//! | `cache` | the cache itself: what its parts share |
//! | `index`, `block`, `sweep`, `laps`, `islands`, `aside` | what is where and what leaves next, without I/O |
//! | `metadata` | entries to and from the device |
//! | `keeper` | commits and clearing, one at a time |
//! | `transfer`, `pieces`, `around`, `arounds`, `workspaces` | requests of clients, through the cache and around it |
//! | `write_back`, `drain`, `pace`, `times` | copies to the origin, how fast it is, and what is too old |

pub mod format;

mod around;
mod arounds;
mod aside;
mod attributes;
mod blank;
mod block;
mod cache;
mod counts;
mod drain;
mod index;
mod islands;
mod keeper;
mod laps;
mod metadata;
mod pace;
mod pieces;
mod recovery;
mod settings;
mod signatures;
mod sweep;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
mod times;
mod transfer;
mod workspaces;
mod write_back;

use std::sync::Arc;

use spillway_core::sync::{
    AtomicBool, AtomicU64, GroupFlush, Mutex, Ordering, Semaphore, StickyError, WaitList, Watermark, Work,
};
use spillway_core::{
    Answer, BlockDevice, Budget, ByteRange, Env, Error, Extent, Geometry, Kind, Lifecycle, LocalFuture, Op,
    Request, Seam, Submission,
};

use arounds::Arounds;
use cache::{Core, Opening};
use counts::{Count, Counts};
use settings::Settings;
use workspaces::Workspaces;

pub use attributes::attributes;
pub use cache::WriteCache;
pub use settings::Config;

impl WriteCache {
    /// A cache on `cache` over `origin`. It is opened, or formatted where its device is blank, by [`Lifecycle::open`] or the
    /// first request; its index is charged to `budget` then, its buffers now.
    ///
    /// [`Kind::Invalid`] where an option is out of its range, or the block size below that of a device; [`Kind::NoSpace`] where the
    /// budget has no room for the buffers.
    pub fn new(
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        cache: Arc<dyn BlockDevice>,
        env: Arc<dyn Env>,
        budget: Arc<Budget>,
    ) -> Result<Arc<Self>, Error> {
        let settings = Settings::new(config)?;
        let (origin, cache) = (Seam::new(origin), Seam::new(cache));
        let geometry = geometry(&settings, &origin.geometry(), &cache.geometry())?;
        let core = Core {
            origin,
            cache,
            env,
            workspaces: Workspaces::new(&budget)?,
            budget,
            settings,
            geometry,
            counts: Counts::default(),
            open: Mutex::new(Opening::Closed),
            opened: WaitList::default(),
            failure: StickyError::default(),
            room: WaitList::default(),
            changes: Watermark::default(),
            wanted: Watermark::default(),
            committed: Watermark::default(),
            written: Watermark::default(),
            cleared: Watermark::default(),
            turn: Semaphore::new(1),
            keeping: Work::default(),
            copying: Work::default(),
            commit_timer: Work::default(),
            age_timer: Work::default(),
            commit_timer_us: AtomicU64::new(0),
            pace: Mutex::default(),
            arounds: Arounds::after_another_server(),
            origin_flushes: GroupFlush::default(),
            origin_flushing: Work::default(),
            flush_on_suspend: AtomicBool::new(false),
        };
        Ok(Arc::new(Self { core: Arc::new(core) }))
    }
}

impl Lifecycle for WriteCache {
    /// Reads the metadata and recovers what is there, or formats a blank device. Refused, nothing is written.
    fn open(&self) -> LocalFuture<Result<String, Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            core.be_open().await?;
            Ok(core.with(|opened| opened.found.clone()))
        })
    }

    /// Copies everything to the origin where that was asked for.
    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            if core.flush_on_suspend.swap(false, Ordering::AcqRel) {
                core.be_open().await?;
                core.drain(false)?;
                core.drained().await?;
            }
            Ok(())
        })
    }
}

/// What the cache looks like from above; [`Kind::Invalid`] where its devices do not fit.
fn geometry(settings: &Settings, origin: &Geometry, cache: &Geometry) -> Result<Geometry, Error> {
    let block = settings.block_size.bytes();
    let largest = origin.block_size.bytes().max(cache.block_size.bytes());
    if block < largest {
        return Err(Error::invalid(format!(
            "block size {block} is below that of a device: give a power of two from {largest} to 65536"
        )));
    }
    let (blocks, most) = (origin.size / block, u64::from(u32::MAX));
    if blocks == 0 || blocks > most {
        return Err(Error::invalid(format!(
            "an origin of {} bytes cannot be cached in blocks of {block}: it has to have from 1 to {most} of them",
            origin.size
        )));
    }
    if cache.read_only {
        return Err(Error::new(Kind::ReadOnly, "the cache device is read-only: it has to be written"));
    }
    Ok(Geometry {
        size: blocks * block,
        block_size: settings.block_size,
        optimal_io: origin.optimal_io.max(block as u32),
        volatile: origin.volatile || cache.volatile,
        write_through: settings.ack_committed,
        ..*origin
    })
}

impl BlockDevice for WriteCache {
    fn geometry(&self) -> Geometry {
        self.core.geometry
    }

    fn submit(&self, request: Request) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move {
            if let Err(error) = core.be_open().await {
                return request.answer(Err(error.kind));
            }
            match request.op {
                Op::Read => core.read(request).await,
                Op::Write => core.write(request).await,
                Op::WriteZeroes => core.write_zeroes(request).await,
                Op::Discard => core.discard(request).await,
                Op::Flush => {
                    core.counts.add(Count::Flushes, 1);
                    let result = core.flush().await;
                    request.answer(result)
                }
            }
        })
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let core = self.core.clone();
        Answer::pending(async move {
            core.be_open().await.map_err(|error| error.kind)?;
            core.extents(range, count_max).await
        })
    }
}

impl Core {
    /// Waits until the cache is open; opens it if nobody does.
    async fn be_open(self: &Arc<Self>) -> Result<(), Error> {
        let begin = {
            let mut open = self.open.lock();
            match &*open {
                Opening::Open(_) => return Ok(()),
                Opening::Failed(error) => return Err(error.clone()),
                Opening::Reading => false,
                Opening::Closed => {
                    *open = Opening::Reading;
                    true
                }
            }
        };
        if begin {
            let core = self.clone();
            self.env.spawn_here(Box::pin(async move {
                let opened = core.read_metadata().await;
                match &opened {
                    Ok(opened) => core.committed.advance(opened.index.committed),
                    Err(error) => tracing::debug!("the write cache cannot be used: {error}"),
                }
                *core.open.lock() =
                    opened.map_or_else(Opening::Failed, |opened| Opening::Open(Box::new(opened)));
                core.opened.wake_all();
                core.resume();
            }));
        }
        self.opened
            .until(|| match &*self.open.lock() {
                Opening::Open(_) => Some(Ok(())),
                Opening::Failed(error) => Some(Err(error.clone())),
                _ => None,
            })
            .await
    }

    /// Begins what the cache's content and the options ask for: after it was opened, and when an option has changed.
    fn resume(self: &Arc<Self>) {
        if self.look(|_| ()).is_none() {
            return;
        }
        self.want_fresh();
        self.keep_in_background();
        self.copy_if_due();
        self.age_if_due();
    }
}
