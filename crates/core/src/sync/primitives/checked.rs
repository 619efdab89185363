//! The same names over shuttle, a checker that runs threads in the orders of its choice, for the feature `shuttle`.
//!
//! Every operation on these types is a point where another thread may go on. Only sequentially consistent executions are
//! explored. They work inside `shuttle::check` alone.

use std::fmt;

pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
pub use shuttle::sync::{Condvar, MutexGuard};
use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

const UNPOISONED: &str = "a model ends with its first panic";

/// A mutex with the interface of parking_lot's.
#[derive(Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// A mutex around `value`.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect(UNPOISONED)
    }

    /// The lock, if nobody has it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }

    /// Whether the lock is held.
    pub fn is_locked(&self) -> bool {
        self.0.try_lock().is_err()
    }
}

impl<T> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mutex")
    }
}

/// A lock for many readers or one writer, with the interface of parking_lot's.
#[derive(Default)]
pub struct RwLock<T>(shuttle::sync::RwLock<T>);

impl<T> RwLock<T> {
    /// A lock around `value`.
    pub const fn new(value: T) -> Self {
        Self(shuttle::sync::RwLock::new(value))
    }

    /// Waits until nobody writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().expect(UNPOISONED)
    }

    /// Waits until nobody reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().expect(UNPOISONED)
    }
}
