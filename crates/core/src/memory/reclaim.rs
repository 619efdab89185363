//! Users of a budget that can free memory for the others, and the attempts that they are asked for.
//!
//! An attempt is bounded: a pass of compaction, a batch of pages that spills. A reclaimer serves every ask in the end, however little the
//! attempt has freed, or ends. How a request waits for attempts is in [`relief`](crate::memory::relief).
//!
//! Lock order: the list of reclaimers is a leaf.

use std::sync::{Arc, Weak};

use futures_util::future::{Either, select};

use crate::env::LocalFuture;
use crate::sync::{AtomicU64, Mutex, Ordering, Semaphore, Watermark};

/// Memory that came free while nobody waited lets one request try, when it comes to wait: at most so many.
const FREED_MAX: u64 = 16;

/// A user of a budget that can free memory for the others.
pub trait Reclaimer: Send + Sync {
    /// Begins to free memory; the attempts that are under way then, none where nothing can be freed. `anew`: the requester has asked for
    /// none before, or memory was freed since; otherwise an attempt that found nothing is not made again.
    fn reclaim(&self, anew: bool) -> Vec<Attempt>;
}

/// Attempts that one reclaimer is asked for, and those that it has made.
#[derive(Default)]
pub struct Attempts {
    asked: Watermark,
    /// Asks that had been made when an attempt began that has ended, or when it was known that none would be of use.
    served: Watermark,
}

impl Attempts {
    /// Asks for an attempt.
    pub fn ask(self: &Arc<Self>) -> Attempt {
        Attempt { number: self.asked.step(), attempts: self.clone() }
    }

    /// Asks so far.
    pub fn asked(&self) -> u64 {
        self.asked.current()
    }

    /// Whether a request waits for an attempt, or has withdrawn meanwhile.
    pub fn is_asked(&self) -> bool {
        self.asked.current() > self.served.current()
    }

    /// The first so many asks are served.
    pub fn serve(&self, asks: u64) {
        assert!(asks <= self.asked() || asks == u64::MAX, "{asks} asks are served of {}", self.asked());
        self.served.advance(asks);
    }

    /// All asks so far are served.
    pub fn serve_all(&self) {
        self.serve(self.asked());
    }

    /// The reclaimer ends: each ask is served at once.
    pub fn end(&self) {
        self.serve(u64::MAX);
    }

    /// Waits for an ask that is not served, or for `timer`; true if it was the timer.
    pub async fn asked_or(&self, timer: &mut LocalFuture<()>) -> bool {
        let next = self.served.current().saturating_add(1);
        let ended = select(self.asked.reached(next), timer).await;
        matches!(ended, Either::Right(_))
    }
}

/// An attempt that was asked for.
pub struct Attempt {
    attempts: Arc<Attempts>,
    number: u64,
}

impl Attempt {
    /// Whether it was made.
    pub fn is_made(&self) -> bool {
        self.attempts.served.current() >= self.number
    }

    /// Waits until it was made.
    pub async fn made(&self) {
        self.attempts.served.reached(self.number).await;
    }
}

/// What a budget knows of freeing memory.
pub(crate) struct Reclaim {
    reclaimers: Mutex<Vec<Weak<dyn Reclaimer>>>,
    /// A free unit for each piece of memory that came free and that no waiting request has been woken for.
    pub(crate) freed: Semaphore,
    refusals: AtomicU64,
    reclaimed: AtomicU64,
    /// Requests that wait.
    waiting: AtomicU64,
}

impl Default for Reclaim {
    fn default() -> Self {
        let freed = Semaphore::new(FREED_MAX);
        freed.force(FREED_MAX);
        let zero = || AtomicU64::new(0);
        Self { reclaimers: Mutex::default(), freed, refusals: zero(), reclaimed: zero(), waiting: zero() }
    }
}

impl Reclaim {
    pub(crate) fn register(&self, reclaimer: Weak<dyn Reclaimer>) {
        let mut reclaimers = self.reclaimers.lock();
        reclaimers.retain(|known| known.strong_count() > 0);
        reclaimers.push(reclaimer);
    }

    pub(crate) fn note_refusal(&self) {
        self.refusals.fetch_add(1, Ordering::Relaxed);
    }

    /// Charges that this budget has refused.
    pub(crate) fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    pub(crate) fn note_reclaimed(&self) {
        self.reclaimed.fetch_add(1, Ordering::Relaxed);
    }

    /// A number that grows with what reclaimers free.
    pub(crate) fn reclaimed(&self) -> u64 {
        self.reclaimed.load(Ordering::Relaxed)
    }

    /// Lets one request try that waits, or the next one that will.
    pub(crate) fn wake_one(&self) {
        self.freed.try_give(1);
    }

    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Asks all reclaimers.
    pub(crate) fn ask(&self, anew: bool) -> Vec<Attempt> {
        // The last user of a reclaimer may be this one: it is dropped with nothing locked.
        let reclaimers: Vec<_> = self.reclaimers.lock().iter().filter_map(Weak::upgrade).collect();
        reclaimers.iter().flat_map(|reclaimer| reclaimer.reclaim(anew)).collect()
    }

    /// A request waits as long as the result is there.
    pub(crate) fn wait(&self) -> ReclaimWait<'_> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        ReclaimWait(self)
    }
}

/// See [`Reclaim::wait`].
pub(crate) struct ReclaimWait<'a>(&'a Reclaim);

impl Drop for ReclaimWait<'_> {
    fn drop(&mut self) {
        let before = self.0.waiting.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "who stops waiting has waited");
    }
}
