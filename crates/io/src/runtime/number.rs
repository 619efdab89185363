//! The place of a thread in its pool.

use std::cell::Cell;

thread_local! {
    static NUMBER: Cell<usize> = const { Cell::new(0) };
}

/// That of the calling thread: workers come first. 0 outside a pool.
pub(crate) fn of_thread() -> usize {
    NUMBER.get()
}

/// The calling thread has that place.
pub(crate) fn set(number: usize) {
    NUMBER.set(number);
}
