//! `writeback_limit`: how many pages may still be written back.

use std::num::NonZeroU64;

use spillway_core::sync::Mutex;

/// Pages that may still be written back. Each is charged before it is; one that is not written after all is given back to the limit that
/// it was charged to, and not to one that was set meanwhile.
pub(crate) struct WritebackLimit(Mutex<State>);

struct State {
    left: u64,
    /// Grows with each limit that is set.
    number: NonZeroU64,
}

/// A page that was charged to the limit of this number.
pub(crate) struct Charged(NonZeroU64);

impl WritebackLimit {
    pub(crate) fn new(pages: u64) -> Self {
        Self(Mutex::new(State { left: pages, number: NonZeroU64::MIN }))
    }

    pub(crate) fn left(&self) -> u64 {
        self.0.lock().left
    }

    pub(crate) fn set(&self, pages: u64) {
        let state = &mut *self.0.lock();
        *state = State { left: pages, number: state.number.saturating_add(1) };
    }

    /// Charges a page; `None` where none may be written any more.
    pub(crate) fn take(&self) -> Option<Charged> {
        let state = &mut *self.0.lock();
        state.left = state.left.checked_sub(1)?;
        Some(Charged(state.number))
    }

    /// Gives back a page that was not written.
    pub(crate) fn give_back(&self, page: Charged) {
        let state = &mut *self.0.lock();
        if state.number == page.0 {
            state.left += 1;
        }
    }
}
