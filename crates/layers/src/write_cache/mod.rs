//! SSD write cache: acknowledges at the speed of a cache device and loses nothing, over a slow origin.
//!
//! The cache device is in dm-writecache's own format (modes `s` and `p`), so that the kernel and this layer take over from each other.
//!
//! ```text
//!   write  -> enter the epoch -> blocks that follow each other are reserved -> one I/O to the cache device -> published
//!   flush  -> the committer commits: writes in flight end -> entries -> flush -> superblock, FUA -> acknowledged
//!             then it clears the entries of versions that were replaced -> flush -> their blocks are free
//!   read   -> stretches of the cache device and of the origin, each one I/O; what is read is pinned
//!   used above the high watermark -> laps over the origin: runs of blocks are read, written to the origin, origin flushed,
//!             stale, and cleared by the committer
//!   full   -> what is not in the cache bypasses it, as far as the origin keeps up; the rest waits
//! ```
//!
//! Promises: what a flush or FUA acknowledged survives a crash of either device's power. A version that was committed is never
//! written over, so that no block is a mixture after a crash. A request that is dropped is withdrawn: its blocks go back, and the
//! device below orders who gets them next behind what it still has in flight. The first error of the metadata or of writing back
//! sticks: writes and flushes fail from then on, reads go on, and nothing is freed, so that what was acknowledged stays on the
//! cache device.
//!
//! Needs: a cache device whose blocks are not larger than the cache's, and which flushes for real. Locks: the order of laps, then a
//! shard of the index, then the ranges that bypass; the others are leaves. A cached write of a small range takes two of them, for its
//! blocks and to publish them; a read hit takes one.

pub mod format;

mod attributes;
mod bypass;
mod committer;
mod config;
mod device;
mod discard;
mod index;
mod metadata;
mod opening;
mod pieces;
mod read;
mod reservation;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
mod write;
mod writeback;

use std::sync::Arc;

use spillway_core::sync::{AtomicBool, AtomicU64, Changes, Mutex, Ordering, Room, StickyError};
use spillway_core::{
    Answer, AtRisk, BlockDevice, Budget, ByteRange, Env, Error, Extent, Geometry, Grow, Kind, LocalFuture,
    Op, Request, Submission, Suspend, Works,
};

use crate::decisions::Decisions;
use crate::file::File;
use crate::open_context::{BackingDevice, Below, Open, OpenContext, OpenDevice};
use crate::writeback::{Aging, Meter, Timer, Writeback};
use committer::Committer;
use device::Core;
use device::bypassed::Bypass;
use device::counts::{Count, Counts};
use device::drain::Drain;
use device::journal::Journal;
use device::laps::Laps;
use index::space::Space;
use opening::{Opened, Opening};

pub use attributes::{attributes, declarations};
pub use config::{Ack, Config, Mode, OldCache, OriginWrites, Placement};
pub use device::WriteCache;

impl WriteCache {
    /// The cache on `cache` over `origin`, and what was found there, for people: what it holds was recovered, or its device was blank
    /// and is formatted. Its index and its buffers are charged to `budget`; its long work is registered with `works`.
    ///
    /// [`Kind::Invalid`] where an option is out of its range, the devices do not fit, or hold something else; [`Kind::Busy`] where
    /// formatting would destroy data; [`Kind::Corrupt`] where the cache is damaged; [`Kind::NoSpace`] where the budget has no room; what
    /// the devices answer where they fail. Nothing is written where it is refused.
    pub async fn open(
        config: &Config,
        origin: Arc<dyn BlockDevice>,
        cache: Arc<dyn BlockDevice>,
        env: Arc<dyn Env>,
        budget: Arc<Budget>,
        works: Works,
    ) -> Result<(Arc<Self>, String), Error> {
        let opening = Opening::new(config, origin, cache, env, budget, works)?;
        let (opened, found) = opening.read_metadata().await?;
        let core = core(opening, opened);
        core.resume();
        Ok((Arc::new(Self { core }), found))
    }
}

/// What is shared from now on.
fn core(opening: Opening, opened: Opened) -> Arc<Core> {
    let Opened { layout, padding, blocks, index, seq_count, charge } = opened;
    let (meter, env) = (Meter::new(opening.env.clone()), opening.env);
    let space = Space::new(blocks, opening.settings.placement);
    let max_age = |core: &Core| core.settings.max_age.get();
    Arc::new_cyclic(|core| Core {
        origin: opening.origin,
        cache: opening.cache,
        workspaces: opening.workspaces,
        settings: opening.settings,
        geometry: opening.geometry,
        size: AtomicU64::new(opening.geometry.size),
        budget: opening.budget,
        counts: Counts::default(),
        layout,
        padding: Mutex::new(padding),
        index,
        space,
        journal: Journal::new(layout.n_blocks as u32, seq_count),
        writeback: Writeback::new(core.clone(), env.clone(), meter.clone()),
        ending: AtomicU64::new(0),
        decisions: Decisions::new(env.clone()),
        works: opening.works,
        laps: Laps::new(seq_count.0),
        meter,
        bypass: Bypass::after_another_server(),
        drain: Drain::default(),
        failure: StickyError::default(),
        rooms: [Room::default(), Room::default(), Room::unordered()],
        changes: Changes::default(),
        commit_timer: Timer::new(core.clone(), env.clone(), Core::autocommit_time, Core::commit_in_time),
        aging: Aging::new(core.clone(), env.clone(), seq_count.0, max_age, Core::look_at_ages),
        flush_on_suspend: AtomicBool::new(false),
        verify_calls: AtomicU64::new(0),
        env,
        _charge: charge,
    })
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        if self.path.as_os_str().is_empty() {
            return Err(Error::invalid("path is missing: give the file or block device that is the cache"));
        }
        let (device, mut notes) = File::open(&self.backing(), context).await?;
        let (env, budget, works) = (context.env.clone(), context.budget.clone(), context.works.clone());
        let (cache, found) = WriteCache::open(self, below, device, env, budget, works).await?;
        notes.push(found);
        let suspend: Option<Arc<dyn Suspend>> = Some(cache.clone());
        let grow: Option<Arc<dyn Grow>> = Some(cache.clone());
        let at_risk: Option<Arc<dyn AtRisk>> = Some(cache.clone());
        Ok(OpenDevice { suspend, grow, at_risk, notes, ..OpenDevice::new(cache, attributes) })
    }

    fn backing_devices(&self) -> Vec<BackingDevice> {
        vec![self.backing()]
    }
}

impl AtRisk for WriteCache {
    fn at_risk_bytes(&self) -> u64 {
        u64::from(self.core.journal.uncommitted()) * self.core.layout.block_size.bytes()
    }
}

impl Suspend for WriteCache {
    /// Writes everything back where that was asked for.
    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            if core.flush_on_suspend.swap(false, Ordering::AcqRel) {
                core.drain(false)?;
                core.drained().await?;
            }
            Ok(())
        })
    }

    /// Ends writing back, which ends a drain, and the clearing of entries. The log has what the origin lacks.
    fn close(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            core.writeback.end().await;
            let rests = || core.ending.load(Ordering::SeqCst) == 0 && core.journal.work.is_idle();
            core.changes.until(|| rests().then_some(())).await;
            if let Some(blocks) = core.what_stays() {
                tracing::warn!("{}: write cache: {blocks} stay on its cache device", core.works.device());
            }
            Ok(())
        })
    }
}

impl BlockDevice for WriteCache {
    fn geometry(&self) -> Geometry {
        Geometry { size: self.core.size.load(Ordering::Acquire), ..self.core.geometry }
    }

    fn submit(&self, request: Request) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move {
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
        Answer::pending(async move { core.extents(range, count_max).await })
    }

    fn verify(&self) {
        self.core.verify();
        self.core.origin.verify();
        self.core.cache.verify();
    }
}

impl Core {
    /// Begins what the cache's content and the options ask for: after it was opened, and when an option has changed.
    fn resume(self: &Arc<Self>) {
        self.want_acknowledged();
        self.run_committer(Committer::Background);
        self.write_back_if_due();
        self.age_if_due();
    }

    /// Blocks that the cache device has and the origin lacks, in words. What no commit covers may be lost.
    fn what_stays(&self) -> Option<String> {
        let (blocks, bytes) = (self.index.held(), self.block_bytes());
        let most = if self.journal.uncommitted() > 0 { "at most " } else { "" };
        (blocks > 0).then(|| format!("{most}{blocks} dirty blocks of {bytes} bytes"))
    }
}
