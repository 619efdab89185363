//! How much one poll may do.
//!
//! A worker serves many clients, so a request works in *slices* of about 200 us and yields between them. Work is counted,
//! not timed: a hit reads no clock, and tests can count the same way. What a connection could not guess from a request's length
//! (walks, slow codecs) also counts for its turn, [`spillway_core::work`].

use std::time::Duration;

use spillway_core::Env;

use super::page::PAGE;

/// Units of 100 ns in a slice.
pub(super) const SLICE: u32 = 2000;

/// Units for a slot that is emptied, or filled with a word: with what was there, and now and then a span, going back.
pub(super) const SLOT: u32 = 3;

/// Units for a page that is filled with a word, searched for one or copied.
pub(super) const COPY: u32 = (PAGE / spillway_core::work::BYTES_COPIED) as u32;

/// Units for looking at a page of slots.
pub(super) const LOOK: u32 = 10;

/// Slots that are locked and read, or whose mark is changed, in a unit.
pub(super) const LOCKS: u32 = 4;

/// What is left of a slice, and what its requests took of memory.
pub(super) struct Slice {
    left: u32,
    grown: u64,
}

impl Slice {
    pub(super) const fn new() -> Self {
        Self { left: SLICE, grown: 0 }
    }

    /// Notes bytes by which objects have become more.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.grown += bytes;
    }

    /// These bytes, once.
    pub(super) fn take_growth(&mut self) -> u64 {
        std::mem::take(&mut self.grown)
    }

    /// Counts work for the slice and for the turn of the connection.
    pub(super) fn spend(&mut self, units: u32) {
        spillway_core::work::spend(units);
        self.count(units);
    }

    /// Counts work for the slice alone: what the connection reckons a page, or has counted already.
    pub(super) fn count(&mut self, units: u32) {
        self.left = self.left.saturating_sub(units);
    }

    /// How many times `units` are left, and once at least.
    pub(super) fn room_for(&self, units: u32) -> u64 {
        assert!(units > 0, "each step is work");
        u64::from(self.left.div_ceil(units).max(1))
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0
    }

    /// Lets others have their turn and begins the next slice.
    pub(super) async fn renew(&mut self, env: &dyn Env) {
        env.sleep(Duration::ZERO).await;
        self.left = SLICE;
    }
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn note(_units: u32) {}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn note_look() {}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn note_compression() {}

#[cfg(test)]
pub(super) use meter::{note, note_compression, note_look};

/// Counts what is really done, at the places that do it, for tests: it knows nothing of slices.
#[cfg(test)]
pub(super) mod meter {
    use std::cell::Cell;

    thread_local! {
        static UNITS: Cell<u64> = const { Cell::new(0) };
        static LOOKS: Cell<u64> = const { Cell::new(0) };
        static COMPRESSIONS: Cell<u64> = const { Cell::new(0) };
    }

    /// Notes a look at what is known of a span.
    pub(in super::super) fn note_look() {
        LOOKS.with(|sum| sum.set(sum.get() + 1));
    }

    /// Notes that a page is compressed.
    pub(in super::super) fn note_compression() {
        COMPRESSIONS.with(|sum| sum.set(sum.get() + 1));
    }

    /// Compressions noted on this thread so far.
    pub(in super::super) fn compressions() -> u64 {
        COMPRESSIONS.with(Cell::get)
    }

    /// Looks noted on this thread since the last call.
    pub(in super::super) fn take_looks() -> u64 {
        LOOKS.with(|sum| sum.replace(0))
    }

    /// Notes work done on this thread.
    pub(in super::super) fn note(units: u32) {
        UNITS.with(|sum| sum.set(sum.get() + u64::from(units)));
    }

    /// Units noted on this thread since the last call.
    pub(in super::super) fn take() -> u64 {
        UNITS.with(|sum| sum.replace(0))
    }
}
