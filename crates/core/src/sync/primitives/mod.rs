//! Locks and atomics, or those of the checker of threads under the same names.

#[cfg(feature = "shuttle")]
mod checked;
#[cfg(all(any(feature = "count-locks", debug_assertions), not(feature = "shuttle")))]
mod counted;
#[cfg(feature = "shuttle")]
pub mod touched;

#[cfg(feature = "shuttle")]
pub use checked::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, RwLock, fence,
};
#[cfg(all(any(feature = "count-locks", debug_assertions), not(feature = "shuttle")))]
pub use counted::{Mutex, MutexGuard, RwLock, locks_taken};
#[cfg(not(feature = "shuttle"))]
pub(super) use parking_lot::Condvar;
/// A lock that the checker does not see: for what belongs to a model or outlives it, not to what it is about.
pub use parking_lot::Mutex as Unseen;
#[cfg(not(any(feature = "shuttle", feature = "count-locks", debug_assertions)))]
pub use parking_lot::{Mutex, MutexGuard, RwLock};
#[cfg(feature = "shuttle")]
pub use shuttle;
#[cfg(not(feature = "shuttle"))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Counts a lock that is not one of these types, where locks are counted.
#[inline(always)]
pub(super) fn note_lock() {
    #[cfg(all(any(feature = "count-locks", debug_assertions), not(feature = "shuttle")))]
    counted::note();
}

/// Notes an exchange of a word that failed: it may have made memory resident all the same. For models.
#[inline(always)]
pub(super) fn note_failed_exchange(word: &AtomicU64) {
    #[cfg(feature = "shuttle")]
    touched::note(word);
    #[cfg(not(feature = "shuttle"))]
    let _ = word;
}
