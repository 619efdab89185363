//! The cache itself: what its parts share, and how they look at it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::{
    AtomicBool, AtomicU64, GroupFlush, Mutex, Semaphore, StickyError, WaitList, Watermark, Work,
};
use spillway_core::{Budget, Charge, Env, Error, Geometry, IoBuf, Kind, Place, Reply, Seam};

use super::arounds::Arounds;
use super::counts::Counts;
use super::format::{Layout, PADDING_LEN};
use super::index::Index;
use super::pace::Pace;
use super::settings::Settings;
use super::times::CommitTimes;
use super::workspaces::Workspaces;

/// See the head of this module.
pub struct WriteCache {
    pub(super) core: Arc<Core>,
}

pub(super) struct Core {
    pub(super) origin: Seam,
    pub(super) cache: Seam,
    pub(super) env: Arc<dyn Env>,
    pub(super) budget: Arc<Budget>,
    pub(super) workspaces: Workspaces,
    pub(super) settings: Settings,
    pub(super) geometry: Geometry,
    pub(super) counts: Counts,
    /// Absent until the cache is open.
    pub(super) open: Mutex<Opening>,
    pub(super) opened: WaitList,
    /// The first error of the metadata or of a copy.
    pub(super) failure: StickyError,
    /// Something was freed.
    pub(super) room: WaitList,
    /// Counts what may make a copy possible, and whatever else somebody waits for: the end of a write, a commit, a clearing, a
    /// copy. Counted after the change, so that who reads it first and then looks misses nothing.
    pub(super) changes: Watermark,
    /// A commit up to here is wanted: the seq_count it is to leave.
    pub(super) wanted: Watermark,
    /// The seq_count up to which commits are complete.
    pub(super) committed: Watermark,
    /// Writes of every epoch below this one have ended.
    pub(super) written: Watermark,
    /// Entries up to this number in the order of marking are clear.
    pub(super) cleared: Watermark,
    /// Who flushes alone, where flushes do not share commits.
    pub(super) turn: Semaphore,
    pub(super) keeping: Work,
    pub(super) copying: Work,
    /// Timers that run: for the next commit, for blocks that become too old.
    pub(super) commit_timer: Work,
    pub(super) age_timer: Work,
    /// When the timer for the next commit was set, in microseconds.
    pub(super) commit_timer_us: AtomicU64,
    pub(super) pace: Mutex<Pace>,
    pub(super) arounds: Arounds,
    pub(super) origin_flushes: GroupFlush,
    /// A flush for writes that wait to go around the cache.
    pub(super) origin_flushing: Work,
    /// One shot: everything is to be copied when the device is stopped.
    pub(super) flush_on_suspend: AtomicBool,
}

pub(super) enum Opening {
    Closed,
    Reading,
    Open(Box<Opened>),
    Failed(Error),
}

/// A cache in use.
pub(super) struct Opened {
    pub(super) layout: Layout,
    /// Of the superblock.
    pub(super) padding: [u8; PADDING_LEN],
    pub(super) index: Index,
    pub(super) drain: Drain,
    /// What was found when it was opened.
    pub(super) found: String,
    /// Versions of epochs below this one are too old.
    pub(super) aged: Option<u64>,
    /// The same of those that could not be copied yet.
    pub(super) aged_again: Option<u64>,
    pub(super) commit_times: CommitTimes,
    pub(super) _charge: Charge,
}

impl Opened {
    /// Free blocks at this share of used ones.
    pub(super) fn free_at(&self, percent: u64) -> u32 {
        self.layout.free_at(percent) as u32
    }
}

/// How far a drain is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Drain {
    /// Nobody asked, or it was asked for once and is over.
    #[default]
    Off,
    /// Blocks that were there at its begin, and the lap that was under way.
    Running {
        total: u32,
        lap: u64,
        stays_clean: bool,
        /// Asked for again meanwhile: what was written before that has to be on the origin, too.
        again: bool,
    },
    /// The cache is empty and stays so.
    Complete,
    Failed(Kind),
}

impl Drain {
    pub(super) fn is_running(&self) -> bool {
        matches!(self, Drain::Running { .. })
    }
}

impl Core {
    /// Looks at the cache if it is open.
    pub(super) fn look<T>(&self, work: impl FnOnce(&mut Opened) -> T) -> Option<T> {
        match &mut *self.open.lock() {
            Opening::Open(opened) => Some(work(opened)),
            _ => None,
        }
    }

    /// Looks at the open cache, or changes it.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Opened) -> T) -> T {
        self.look(work).expect("requests wait until the cache is open")
    }

    /// The first error sticks.
    pub(super) fn fail(&self, what: &str, kind: Kind) {
        if self.failure.set(kind) {
            tracing::error!("write cache: {what} failed ({}): writes fail from now on", kind.errno_name());
        }
        self.wake();
    }

    /// Ends a slice of a longer work: others have their turn.
    pub(super) async fn give_way(&self) {
        self.env.sleep(Duration::ZERO).await;
    }

    /// Something has changed.
    pub(super) fn wake(&self) {
        self.room.wake_all();
        self.changes.step();
    }

    /// Does `work` after `delay`, and again after what it returns; `work` ends the timer before its last look.
    pub(super) fn later(self: &Arc<Self>, timer: &Work, delay: Duration, work: TimedWork) {
        if !timer.queue() {
            return;
        }
        let (weak, env) = (Arc::downgrade(self), self.env.clone());
        let task = move || repeat(weak, env, delay, work);
        self.env.spawn(Place::Background, Box::new(move || Box::pin(task())));
    }
}

/// What a timer does; returns when to do it again.
pub(super) type TimedWork = fn(&Arc<Core>) -> Option<Duration>;

/// Longest sleep of a timer: a setting that changes meanwhile is seen after that.
const TIMER_MAX: Duration = Duration::from_secs(1);

async fn repeat(weak: Weak<Core>, env: Arc<dyn Env>, delay: Duration, work: TimedWork) {
    let mut delay = Some(delay);
    while let Some(time) = delay {
        env.sleep(time.min(TIMER_MAX)).await;
        let Some(core) = weak.upgrade() else { return };
        delay = work(&core);
    }
}

/// The buffer of a request that succeeded.
pub(super) fn result_of(reply: Reply) -> Result<IoBuf, Kind> {
    reply.result.map(|()| reply.buf)
}
