//! What pages and slots cost, in units of a slice ([`crate::slice`]).

use std::ops::{Deref, DerefMut};

use super::page::PAGE;
use crate::slice;

pub(super) use crate::slice::note;

/// Units for a slot that is emptied, or filled with a word: with what was there, and now and then a span, going back.
pub(super) const SLOT: u32 = 3;

/// Units for a page that is filled with a word, searched for one or copied.
pub(super) const COPY: u32 = (PAGE / spillway_core::work::BYTES_COPIED) as u32;

/// Units for looking at a page of slots.
pub(super) const LOOK: u32 = 10;

/// Slots that are locked and read, or whose mark is changed, in a unit.
pub(super) const LOCKS: u32 = 4;

/// A slice, and what its requests took of memory.
pub(super) struct Slice {
    slice: slice::Slice,
    grown: u64,
}

impl Slice {
    pub(super) const fn new() -> Self {
        Self { slice: slice::Slice::new(), grown: 0 }
    }

    /// Notes bytes by which objects have become more.
    pub(super) fn grow(&mut self, bytes: u64) {
        self.grown += bytes;
    }

    /// These bytes, once.
    pub(super) fn take_growth(&mut self) -> u64 {
        std::mem::take(&mut self.grown)
    }
}

impl Deref for Slice {
    type Target = slice::Slice;

    fn deref(&self) -> &slice::Slice {
        &self.slice
    }
}

impl DerefMut for Slice {
    fn deref_mut(&mut self) -> &mut slice::Slice {
        &mut self.slice
    }
}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn note_look() {}

#[cfg(not(test))]
#[inline(always)]
pub(super) fn note_compression() {}

#[cfg(test)]
pub(super) use meter::{note_compression, note_look};

/// Counts what tests ask for beside the units.
#[cfg(test)]
pub(super) mod meter {
    use std::cell::Cell;

    thread_local! {
        static LOOKS: Cell<u64> = const { Cell::new(0) };
        static COMPRESSIONS: Cell<u64> = const { Cell::new(0) };
    }

    /// Notes a look at what is known of a span.
    pub(crate) fn note_look() {
        LOOKS.with(|sum| sum.set(sum.get() + 1));
    }

    /// Notes that a page is compressed.
    pub(crate) fn note_compression() {
        COMPRESSIONS.with(|sum| sum.set(sum.get() + 1));
    }

    /// Compressions noted on this thread so far.
    pub(crate) fn compressions() -> u64 {
        COMPRESSIONS.with(Cell::get)
    }

    /// Looks noted on this thread since the last call.
    pub(crate) fn take_looks() -> u64 {
        LOOKS.with(|sum| sum.replace(0))
    }
}
