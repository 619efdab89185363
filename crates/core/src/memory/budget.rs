//! The memory promise.
//!
//! A [`Budget`] is a number of bytes that its users charge *before* they acknowledge, and give back when they free. A
//! budget may have a parent: a charge succeeds only where both have room, so that a device's `mem_limit` is a share of the
//! process's `--memory`. A limit may be changed while in use; lowering it below what is charged refuses new charges and
//! frees nothing. Who was refused waits as `relief` says.

use std::sync::{Arc, Weak};

use crate::error::Kind;
use crate::mutant;
use crate::reclaim::{Reclaim, Reclaimer};
use crate::sync::{AtomicU64, Ordering};

/// A limit on bytes, and how much of it is in use.
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    parent: Option<Arc<Budget>>,
    pub(crate) reclaim: Reclaim,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: u64 = u64::MAX;

    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Arc<Self> {
        Self::build(limit, None)
    }

    /// A share of `parent`, itself limited to `limit` bytes.
    pub fn share(parent: &Arc<Budget>, limit: u64) -> Arc<Self> {
        Self::build(limit, Some(parent.clone()))
    }

    fn build(limit: u64, parent: Option<Arc<Budget>>) -> Arc<Self> {
        let zero = || AtomicU64::new(0);
        let (limit, reclaim) = (AtomicU64::new(limit), Reclaim::default());
        Arc::new(Self { limit, used: zero(), peak: zero(), parent, reclaim })
    }

    /// Takes `bytes`, or [`Kind::NoSpace`] where this budget or one above it has no room; then nothing is taken.
    pub fn charge(&self, bytes: u64) -> Result<(), Kind> {
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        if mutant::on("budget: look, then charge") && fits(self.used()).is_some() {
            self.used.fetch_add(bytes, Ordering::Relaxed);
            return self.parent.as_ref().map_or(Ok(()), |parent| parent.charge(bytes));
        }
        let before = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| {
            self.reclaim.note_refusal();
            Kind::NoSpace
        })?;
        if let Some(parent) = &self.parent
            && let Err(kind) = parent.charge(bytes)
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(kind);
        }
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Gives `bytes` back. Giving back more than was charged is a bug, and asserted.
    pub fn uncharge(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        assert!(before >= bytes, "uncharged {bytes} bytes of {before}");
        if let Some(parent) = &self.parent {
            parent.uncharge(bytes);
        }
    }

    /// Charges `bytes` for as long as the guard lives; fails as [`Budget::charge`] does.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Result<Charge, Kind> {
        self.charge(bytes)?;
        Ok(Charge { budget: self.clone(), bytes })
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The limit in bytes; [`Budget::UNLIMITED`] for none.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that a charge could still take, here and in every budget above.
    pub fn room(&self) -> u64 {
        let own = self.limit().saturating_sub(self.used());
        self.parent.as_ref().map_or(own, |parent| own.min(parent.room()))
    }

    /// Most bytes in use at once since the last [`Budget::reset_peak`].
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Starts the peak again from what is in use now.
    pub fn reset_peak(&self) {
        self.peak.store(self.used(), Ordering::Relaxed);
    }

    /// Has `reclaimer` be asked when charges are refused, here or in a budget above.
    pub fn register(&self, reclaimer: &Weak<dyn Reclaimer>) {
        self.chain().for_each(|budget| budget.reclaim.register(reclaimer.clone()));
    }

    /// A reclaimer has freed some of what it was charged with.
    pub fn note_reclaimed(&self) {
        self.chain().for_each(|budget| budget.reclaim.note_reclaimed());
    }

    /// Memory came free: one request that waits for it here tries again, and one in each budget above.
    pub fn wake_one(&self) {
        self.chain().for_each(|budget| budget.reclaim.wake_one());
    }

    /// Whether requests wait for memory of this budget.
    pub fn is_waited_for(&self) -> bool {
        self.reclaim.is_waited_for()
    }

    /// The budget that this one is a share of, or a share of a share; itself if it is none.
    pub(crate) fn outermost(&self) -> &Budget {
        self.chain().last().expect("it begins with this one")
    }

    /// This budget and all above.
    fn chain(&self) -> impl Iterator<Item = &Budget> {
        std::iter::successors(Some(self), |budget| budget.parent.as_deref())
    }
}

/// A share whose users are all gone holds nothing any more: its parent gets back what is left of it.
impl Drop for Budget {
    fn drop(&mut self) {
        if let Some(parent) = &self.parent {
            parent.uncharge(self.used());
        }
    }
}

/// Bytes of a budget, given back on drop.
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.uncharge(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_that_goes_away_gives_back_what_it_held() {
        let parent = Budget::new(100);
        let share = Budget::share(&parent, 80);
        share.charge(60).unwrap();
        assert_eq!(parent.used(), 60);
        drop(share);
        assert_eq!(parent.used(), 0);
    }

    #[test]
    fn a_share_is_refused_where_its_parent_is_full_and_takes_nothing() {
        let whole = Budget::new(100);
        let share = Budget::share(&whole, 80);
        whole.charge(50).unwrap();
        assert_eq!(share.charge(60), Err(Kind::NoSpace));
        assert_eq!((share.used(), whole.used()), (0, 50));
        let held = share.hold(50).unwrap();
        assert_eq!((share.room(), whole.room()), (0, 0));
        drop(held);
        assert_eq!((share.used(), whole.used(), share.peak()), (0, 50, 50));
    }

    #[test]
    fn threads_never_exceed_the_limit() {
        let budget = Budget::new(1000);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        if budget.charge(300).is_ok() {
                            assert!(budget.used() <= 1000);
                            budget.uncharge(300);
                        }
                    }
                });
            }
        });
        assert_eq!(budget.used(), 0);
        assert!(budget.peak() <= 900);
    }
}
