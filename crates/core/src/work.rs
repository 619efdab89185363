//! How much a thread does in one turn of a task, counted instead of timed.
//!
//! A worker serves many connections, so each gets a turn of about 200 us at a time. What works notes what it did, in
//! *units* of about 100 ns; what could go on for long looks whether the turn is spent, and then leaves the rest for the
//! next one. A hit reads no clock, and tests count exactly what the workers count.
//!
//! ```text
//!   connection   turn(TURN) ─┬─ session: spend(a request), device: spend(what it did), spent()? ... stop
//!                            └─ spent: wake itself, let others have their turn
//! ```
//!
//! A request that works for long does so in slices of about a turn, and yields after each by `Env::sleep(Duration::ZERO)`, which
//! spends the turn: of many such requests of one client, one gets a slice in each of the client's turns.
//!
//! Outside of a turn nothing is ever spent: tasks of the background yield by themselves.

use std::cell::Cell;
use std::marker::PhantomData;

/// Units of a turn: about 200 us.
pub const TURN: u32 = 2000;

/// Units for taking a request and answering it, whatever it is.
pub const REQUEST: u32 = 10;

/// Bytes that are copied, within the process or by the kernel, in one unit.
pub const BYTES_COPIED: usize = 1024;

/// Bytes that a device reads or writes at once in one unit: as a fast codec does.
pub const BYTES_STORED: usize = 256;

thread_local! {
    static LEFT: Cell<i64> = const { Cell::new(i64::MAX) };
    /// What was left when the turn began.
    static WHOLE: Cell<i64> = const { Cell::new(i64::MAX) };
}

/// Notes work of this thread.
#[inline]
pub fn spend(units: u32) {
    LEFT.set(LEFT.get().saturating_sub(i64::from(units)));
}

/// Notes `bytes` of which `bytes_a_unit` are one unit.
#[inline]
pub fn spend_bytes(bytes: usize, bytes_a_unit: usize) {
    spend(u32::try_from(bytes / bytes_a_unit).unwrap_or(u32::MAX));
}

/// Whether the turn's work is done: what is left is for the next one.
#[inline]
pub fn spent() -> bool {
    LEFT.get() <= 0
}

/// Units that were spent in the turn; 0 outside of one.
pub fn so_far() -> u64 {
    match WHOLE.get() {
        i64::MAX => 0,
        whole => whole.abs_diff(LEFT.get()),
    }
}

/// Begins a turn of `units` on this thread; it ends when the guard is dropped.
pub fn turn(units: u32) -> Turn {
    let units = i64::from(units);
    Turn { outer: (LEFT.replace(units), WHOLE.replace(units)), here: PhantomData }
}

/// A turn of this thread.
#[must_use]
pub struct Turn {
    outer: (i64, i64),
    here: PhantomData<*const ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        LEFT.set(self.outer.0);
        WHOLE.set(self.outer.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_is_spent_by_what_is_done_in_it() {
        let first = turn(3);
        spend(2);
        assert!(!spent());
        spend_bytes(BYTES_COPIED, BYTES_COPIED);
        assert!(spent());
        assert_eq!(so_far(), 3);
        drop(first);
        let _second = turn(1);
        assert!(!spent() && so_far() == 0, "each turn begins anew");
    }

    #[test]
    fn outside_of_a_turn_nothing_is_spent() {
        (0..1000).for_each(|_| spend(u32::MAX));
        assert!(!spent() && so_far() == 0);
    }
}
