//! The same names with a count of the locks that each thread takes: in builds with debug assertions, for
//! tests, and with the feature `count-locks`, for benchmarks. Tests ask for no feature, so that they share one build with the program.

use std::cell::Cell;
use std::fmt;

pub use parking_lot::MutexGuard;
use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Locks that this thread has taken so far.
pub fn locks_taken() -> u64 {
    TAKEN.get()
}

/// Counts one.
pub(super) fn note() {
    TAKEN.set(TAKEN.get() + 1);
}

fn count<T>(guard: T) -> T {
    note();
    guard
}

/// A mutex that counts.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        count(self.0.lock())
    }

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().map(count)
    }

    /// Whether the lock is held.
    pub fn is_locked(&self) -> bool {
        self.0.is_locked()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A lock for many readers or one writer that counts.
#[derive(Default)]
pub struct RwLock<T>(parking_lot::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        count(self.0.read())
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        count(self.0.write())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lock_taken_is_counted_and_one_refused_is_not() {
        let (mutex, shared) = (Mutex::new(()), RwLock::new(()));
        let before = locks_taken();
        let held = mutex.lock();
        assert!(mutex.try_lock().is_none());
        drop((held, shared.read()));
        drop(shared.write());
        assert_eq!(locks_taken() - before, 3);
    }
}
