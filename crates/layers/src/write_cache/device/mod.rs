//! The cache itself: what its parts share, and how they look at it.

pub(super) mod bypassed;
pub(super) mod counts;
pub(super) mod drain;
pub(super) mod journal;
pub(super) mod laps;
pub(super) mod workspaces;

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicBool, AtomicU64, Changes, Mutex, Ordering, Room, StickyError};
use spillway_core::{Budget, Charge, Env, Geometry, IoBuf, Kind, Reply, Seam, Works};
use spillway_policy::watermarks::CacheLoad;

use super::config::Settings;
use super::format::{Layout, PADDING_LEN};
use super::index::Index;
use super::index::space::Space;
use crate::decisions::{Decision, Decisions};
use crate::writeback::{Aging, Meter, Timer, Writeback};
use bypassed::Bypass;
use counts::Counts;
use drain::Drain;
use journal::Journal;
use laps::Laps;
use workspaces::Workspaces;

/// See the head of this module.
pub struct WriteCache {
    pub(super) core: Arc<Core>,
}

/// What a write waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wants {
    /// Blocks of the cache.
    Blocks,
    /// That more may bypass the cache.
    Bypass,
    /// That the cache has its blocks no more: it is drained.
    Gone,
}

/// The parts; each owns its state.
pub(super) struct Core {
    pub(super) origin: Seam,
    pub(super) cache: Seam,
    pub(super) env: Arc<dyn Env>,
    pub(super) workspaces: Workspaces,
    pub(super) settings: Settings,
    /// As it was opened.
    pub(super) geometry: Geometry,
    /// Bytes that clients see.
    pub(super) size: AtomicU64,
    pub(super) budget: Arc<Budget>,
    pub(super) counts: Counts,
    pub(super) layout: Layout,
    /// Of the next superblock that is written.
    pub(super) padding: Mutex<[u8; PADDING_LEN]>,
    pub(super) index: Index,
    pub(super) space: Space,
    pub(super) journal: Journal,
    pub(super) writeback: Writeback<Core>,
    /// Batches that were dropped and end by themselves.
    pub(super) ending: AtomicU64,
    pub(super) decisions: Decisions,
    pub(super) works: Works,
    pub(super) laps: Laps,
    /// Of the origin.
    pub(super) meter: Arc<Meter>,
    pub(super) bypass: Bypass,
    pub(super) drain: Drain,
    /// The first error of the metadata, or of writing back.
    pub(super) failure: StickyError,
    /// For writes, by what each [`Wants`].
    pub(super) rooms: [Room; 3],
    /// What others may wait for: the end of a write, of a commit, of a clearing, of a batch; blocks that are free again.
    pub(super) changes: Changes,
    /// Runs while something is in no commit.
    pub(super) commit_timer: Timer<Core>,
    /// Its timer runs while blocks are held that become too old.
    pub(super) aging: Aging<Core>,
    /// One shot: everything is to be written back when the device is stopped.
    pub(super) flush_on_suspend: AtomicBool,
    pub(super) verify_calls: AtomicU64,
    pub(super) _charge: Charge,
}

/// Blocks that a call of [`Core::verify`] looks at, on average.
const VERIFIED_BLOCKS: u64 = 256;

impl Core {
    /// How full the cache is.
    pub(super) fn load(&self, cleaning: bool, waiting: bool) -> CacheLoad {
        let expired = self.aging.ages.lock().expired();
        CacheLoad { expired, ..self.fill(cleaning, waiting) }
    }

    /// The same without ages. Takes no lock.
    pub(super) fn fill(&self, cleaning: bool, waiting: bool) -> CacheLoad {
        CacheLoad {
            blocks: self.layout.n_blocks,
            used: self.index.held().into(),
            free_soon: self.free_soon().into(),
            waiting,
            cleaning,
            expired: None,
        }
    }

    /// Blocks that are free, or will be without another batch.
    pub(super) fn free_soon(&self) -> u32 {
        self.space.count() + self.index.writing_back() + self.journal.stale()
    }

    /// The first error sticks.
    pub(super) fn fail(&self, what: &'static str, kind: Kind) {
        if self.failure.set(kind) {
            self.decisions
                .note(Decision("fail writes", what), 0, || format!("failed with {}", kind.errno_name()));
            tracing::error!("write cache: {what} failed ({}): writes fail from now on", kind.errno_name());
        }
        self.changes.wake_all();
    }

    /// Where those wait that want this.
    pub(super) fn room(&self, wants: Wants) -> &Room {
        &self.rooms[wants as usize]
    }

    /// Ends a slice of a longer work: others have their turn.
    pub(super) async fn give_way(&self) {
        self.env.sleep(Duration::ZERO).await;
    }

    /// Asserts that the parts agree with each other. A large cache is looked at now and then, so that many calls stay cheap.
    pub(super) fn verify(&self) {
        let calls = self.verify_calls.fetch_add(1, Ordering::Relaxed);
        if !calls.is_multiple_of(1 + self.layout.n_blocks / VERIFIED_BLOCKS) {
            return;
        }
        let used = self.index.verify();
        self.space.verify();
        let others = [self.space.count(), self.space.bad(), self.space.reserved()].map(u64::from);
        let all = u64::from(used) + others.iter().sum::<u64>();
        assert_eq!(all, self.layout.n_blocks, "every block is used, free, in quarantine or reserved");
    }
}

/// The buffer of a request that succeeded.
pub(super) fn result_of(reply: Reply) -> Result<IoBuf, Kind> {
    reply.result.map(|()| reply.buf)
}
