//! How far the spilling that a device does by itself has come.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicBool, AtomicU32, AtomicU64, Mutex, Ordering};
use spillway_core::{Attempts, mutant};
use spillway_policy::allowance::Allowance;
use spillway_policy::spill::REST;

/// A spill file that was full is taken to be so for this long.
const FULL_FOR: Duration = Duration::from_secs(1);

/// What is known of spilling under pressure of memory.
#[derive(Default)]
pub(crate) struct Pressure {
    /// The slot that is looked at next.
    pub(crate) hand: AtomicU64,
    /// Laps of the hand since it found a page that may leave, or rested.
    pub(crate) vain_laps: AtomicU32,
    /// The last attempt, where no page has left in it.
    vain: Mutex<Option<FailedAttempt>>,
    /// Pages that have left.
    pub(crate) left: AtomicU64,
    /// Pages leave, until the low watermark.
    pub(crate) leaves: AtomicBool,
    /// The spill file had no room, until something of it is released, or something lands there: when it is tried again all the same, in
    /// milliseconds, for others may have made room in the file system that it lies on. 0 where it may have room.
    full_until: AtomicU64,
    /// Batches wait for room in that file system; until something lands.
    stalled: AtomicBool,
    /// Bytes that the hand has chosen, and that have not left yet.
    pub(crate) leaving: AtomicU64,
    /// Batches that are gathered or written, by command too.
    pub(crate) batches: AtomicU32,
    /// Batches that requests wait for; served with each that has ended, and where nothing can leave.
    pub(crate) attempts: Arc<Attempts>,
    /// Writers look at how full memory is once so much is charged,
    look_from: AtomicU64,
    /// and objects have become more by so many bytes.
    look_after: AtomicU64,
    /// When a writer has paused last, in milliseconds; 0 for never.
    paused_at: AtomicU64,
    pub(crate) daily: Mutex<DailyWrites>,
    /// When to look for old pages next, in milliseconds,
    old_at: AtomicU64,
    /// and whether that is being done.
    spilling_old: AtomicBool,
}

/// The bytes of a day, and how many had been written when they were counted last.
#[derive(Default)]
pub(crate) struct DailyWrites {
    pub(crate) allowance: Allowance,
    pub(crate) written: u64,
}

/// An attempt in which no page has left.
struct FailedAttempt {
    at: Duration,
    /// Pages that are accessed all the time might have left too.
    any: bool,
}

impl Pressure {
    /// Of a device without a spill file.
    pub(crate) fn none() -> Self {
        let pressure = Self::default();
        pressure.end();
        pressure
    }

    /// The device has a spill file from now on, of which nothing is known yet.
    pub(crate) fn begin(&self) {
        self.vain_laps.store(0, Ordering::Relaxed);
        self.full_until.store(0, Ordering::Relaxed);
        *self.vain.lock() = None;
        if !mutant::on("zram: the daily limit forgets a new file") {
            self.daily.lock().written = 0;
        }
        self.looked(0, 0);
    }

    /// The device has none any more: nothing leaves, and nobody looks.
    pub(crate) fn end(&self) {
        self.leaves.store(false, Ordering::Relaxed);
        self.looked(u64::MAX, 0);
    }

    /// An attempt has ended, before which `left` pages had left.
    pub(crate) fn tried(&self, left: u64, any: bool, now: Duration) {
        let vain = self.left.load(Ordering::Relaxed) == left;
        *self.vain.lock() = vain.then_some(FailedAttempt { at: now, any });
    }

    /// Whether any page leaves in the next attempt, because requests wait and none was cold in the last one; or the time until it may
    /// begin: a second one in vain, and one that nobody waits for, would find the same again.
    pub(crate) fn next_attempt(&self, now: Duration) -> Result<bool, Duration> {
        let (waited_for, vain) = (self.is_waited_for(), self.vain.lock());
        let Some(FailedAttempt { at, any }) = *vain else { return Ok(false) };
        let rest = (at + REST).saturating_sub(now);
        if rest.is_zero() || waited_for && !any { Ok(waited_for) } else { Err(rest) }
    }

    /// Nothing can leave: who waits for a batch is served by those that are on their way, or at once.
    pub(crate) fn nothing_leaves(&self) -> bool {
        // In this order, after an ask: a batch that ends after this look serves it.
        let nothing = self.batches.load(Ordering::SeqCst) == 0 || self.is_stalled();
        if nothing {
            self.attempts.serve_all();
        }
        nothing
    }

    /// Whether pages leave, or writers wait for it.
    pub(crate) fn is_felt(&self) -> bool {
        self.leaves.load(Ordering::Relaxed) || self.is_waited_for()
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.attempts.is_asked()
    }

    /// There was no room in the spill file; whether that is news.
    pub(crate) fn filled(&self, now: Duration) -> bool {
        self.full_until.swap((now + FULL_FOR).as_millis() as u64, Ordering::Relaxed) == 0
    }

    /// A batch waits for room on a full host, for minutes perhaps: nobody waits for it.
    pub(crate) fn stall(&self) {
        self.stalled.store(true, Ordering::SeqCst);
        self.attempts.serve_all();
    }

    /// Whether batches wait for room on a full host.
    pub(crate) fn is_stalled(&self) -> bool {
        self.stalled.load(Ordering::SeqCst)
    }

    /// Something of the spill file was released, or has landed there.
    pub(crate) fn has_found_room(&self) {
        if self.is_stalled() {
            self.stalled.store(false, Ordering::SeqCst);
        }
        if self.is_full() {
            self.full_until.store(0, Ordering::Relaxed);
        }
    }

    /// Whether there was no room when it was tried last.
    pub(crate) fn is_full(&self) -> bool {
        self.full_until.load(Ordering::Relaxed) > 0
    }

    /// Whether there may be room.
    pub(crate) fn may_have_room(&self, now: Duration) -> bool {
        now >= Duration::from_millis(self.full_until.load(Ordering::Relaxed))
    }

    /// Counts bytes by which a writer has made memory fuller, where so many are charged; whether it is to look how full that is.
    pub(crate) fn grew(&self, bytes: u64, charged: u64) -> bool {
        if charged < self.look_from.load(Ordering::Relaxed) {
            return false;
        }
        let less = |left: u64| Some(left.saturating_sub(bytes));
        let before = self.look_after.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        before.is_ok_and(|before| before <= bytes)
    }

    /// The next look is due once `charged` bytes are, and objects have grown by `growth`.
    pub(crate) fn looked(&self, charged: u64, growth: u64) {
        self.look_from.store(charged, Ordering::Relaxed);
        self.look_after.store(growth, Ordering::Relaxed);
    }

    /// When to look for old pages next.
    pub(crate) fn old_at(&self) -> Duration {
        Duration::from_millis(self.old_at.load(Ordering::Relaxed))
    }

    /// Begins to look for old pages, which is to be done again at `next`; false while it is still done.
    pub(crate) fn begin_old(&self, next: Duration) -> bool {
        self.old_at.store(next.as_millis() as u64, Ordering::Relaxed);
        !self.spilling_old.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn end_old(&self) {
        let before = self.spilling_old.swap(false, Ordering::Relaxed);
        assert!(before, "what ends has begun");
    }

    pub(crate) fn paused(&self, now: Duration) {
        self.paused_at.store(now.as_millis() as u64, Ordering::Relaxed);
    }

    /// Whether a writer has paused within the last second.
    pub(crate) fn has_paused(&self, now: Duration) -> bool {
        let at = self.paused_at.load(Ordering::Relaxed);
        at > 0 && now.saturating_sub(Duration::from_millis(at)) < Duration::from_secs(1)
    }
}
