//! How many pages are deferred, and near which slots they are.
//!
//! A page that is deferred lies in its cell as it was written, and is compressed later: see `deferring`. It has taken a unit of *room*,
//! which the writer takes before it publishes the page and which comes back with whatever replaces it. A bit for each page of slots
//! says that some of these may be deferred. It is set after such a slot was published, and taken out before the slots are looked at:
//! so whichever is later sees the other, and no page is forgotten.
//!
//! Lock order: `places`, a leaf.

use std::ops::Range;
use std::sync::Arc;

use spillway_core::sync::{Marks, Permit, RwLock, Semaphore};
use spillway_core::{Budget, Charge, Kind};

use super::blocks::PAGE_SLOTS;
use crate::zram::pool::cell::SlotIndex;

/// Which pages of slots may have deferred ones.
#[derive(Default)]
struct Places {
    /// Pages of slots that there are.
    bound: u64,
    /// Made when pages are deferred for the first time.
    marks: Option<(Marks, Charge)>,
}

impl Places {
    /// Makes marks for all pages of slots. [`Kind::NoSpace`] where `fixed` has no room for them.
    fn make(&mut self, fixed: &Arc<Budget>) -> Result<(), Kind> {
        let charge = fixed.hold(Marks::bytes(self.bound))?;
        // Of slots that are gone, marks say nothing.
        let old = self.marks.as_mut().filter(|_| self.bound > 0);
        let marks = old.map_or_else(|| Marks::new(self.bound), |(marks, _)| marks.resized(self.bound));
        self.marks = Some((marks, charge));
        Ok(())
    }
}

/// What is deferred in one table.
pub(crate) struct Deferred {
    /// A unit for each page that is deferred, or about to be.
    room: Semaphore,
    places: RwLock<Places>,
    /// Held by who compresses deferred pages.
    turn: Semaphore,
}

impl Default for Deferred {
    fn default() -> Self {
        Self { room: Semaphore::new(0), places: RwLock::default(), turn: Semaphore::new(1) }
    }
}

impl Deferred {
    /// Most pages that may be deferred; 0 for none.
    pub(crate) fn pages_max(&self) -> u64 {
        self.room.limit()
    }

    /// Changes that. What is above it is compressed in the background. [`Kind::NoSpace`] where `fixed` has no room for a bit for each page of
    /// slots.
    pub(crate) fn set_pages_max(&self, pages: u64, fixed: &Arc<Budget>) -> Result<(), Kind> {
        let mut places = self.places.write();
        if pages > 0 && places.marks.is_none() {
            places.make(fixed)?;
        }
        self.room.set_limit(pages);
        Ok(())
    }

    /// Pages that are deferred or about to be.
    pub(crate) fn pages(&self) -> u64 {
        self.room.used()
    }

    /// Takes room for a page; false where there is none.
    pub(crate) fn take(&self) -> bool {
        self.room.try_take(1)
    }

    /// Gives back the room of a page.
    pub(crate) fn give(&self) {
        self.room.give(1);
    }

    /// There are `pages` pages of slots; none behind them has anything. [`Kind::NoSpace`] where `fixed` has no room for a bit for each.
    pub(crate) fn resize(&self, pages: u64, fixed: &Arc<Budget>) -> Result<(), Kind> {
        let mut places = self.places.write();
        let before = std::mem::replace(&mut places.bound, pages);
        let made = if places.marks.is_some() { places.make(fixed) } else { Ok(()) };
        if made.is_err() {
            places.bound = before;
        }
        made
    }

    /// Notes that the page of slots may have deferred ones: after one was published.
    pub(crate) fn note(&self, index: SlotIndex) {
        let place = u64::from(index.0) / PAGE_SLOTS;
        let places = self.places.read();
        // A reset may have taken the slots away.
        if let Some((marks, _)) = &places.marks
            && place < places.bound
        {
            marks.mark(place);
        }
    }

    /// Takes the next place from `from` on; the caller looks at its slots.
    fn take_place(&self, from: u64) -> Option<u64> {
        // Alone: one thread at a time may walk.
        let places = self.places.write();
        let (marks, _) = places.marks.as_ref()?;
        let place = marks.next(from)?;
        assert!(place < places.bound, "page {place} of {} is noted", places.bound);
        marks.unmark(place);
        Some(place)
    }

    /// Waits until nobody else makes a lap, and begins one.
    pub(crate) async fn lap(&self) -> DeferredLap<'_> {
        DeferredLap { _turn: self.turn.hold().await, deferred: self, next: 0, slots: 0..0, stays: false }
    }

    /// Whether a task waits until it can begin a lap.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.turn.waiting() > 0
    }

    /// Asserts that `pages` have room: while no writer is at work.
    pub(crate) fn verify(&self, pages: u64) {
        assert_eq!(pages, self.pages(), "pages that are deferred, and their room");
    }
}

/// A way through all places. What it has not come to stays noted.
pub(crate) struct DeferredLap<'a> {
    _turn: Permit<'a>,
    deferred: &'a Deferred,
    /// The place to look for next.
    next: u64,
    /// Slots of the present one that are left.
    slots: Range<u64>,
    /// Some of the present place stays deferred.
    stays: bool,
}

impl DeferredLap<'_> {
    /// The next slot that may be deferred.
    pub(crate) fn next(&mut self) -> Option<SlotIndex> {
        if self.slots.is_empty() {
            self.end_place();
            let place = self.deferred.take_place(self.next)?;
            self.next = place + 1;
            self.slots = place * PAGE_SLOTS..(place + 1) * PAGE_SLOTS;
        }
        self.slots.next().map(SlotIndex::new)
    }

    /// The slot that came last is deferred still.
    pub(crate) fn keep(&mut self) {
        self.stays = true;
    }

    fn end_place(&mut self) {
        let left = !std::mem::take(&mut self.slots).is_empty();
        if std::mem::take(&mut self.stays) || left {
            self.deferred.note(SlotIndex::new((self.next - 1) * PAGE_SLOTS));
        }
    }
}

impl Drop for DeferredLap<'_> {
    fn drop(&mut self) {
        self.end_place();
    }
}
