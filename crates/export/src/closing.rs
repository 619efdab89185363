//! Asking the clients of one export to leave, while others on the same socket stay.
//!
//! A session notes its task's waker once and looks at the demand at every poll, which is one load. What closes the
//! export raises the demand, wakes the sessions and waits until the last of them is gone.

use std::collections::BTreeMap;
use std::task::Waker;

use spillway_core::sync::{AtomicU32, Mutex, Ordering, WaitList};

/// What an export demands of its sessions; only ever rises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Demand {
    /// Nothing.
    Stay,
    /// Finish what was received, then close.
    WindDown,
    /// Close.
    HangUp,
}

#[derive(Default)]
pub(crate) struct Closing {
    demand: AtomicU32,
    watchers: Mutex<BTreeMap<u64, Waker>>,
    /// Woken whenever a client has left.
    pub(crate) left: WaitList,
}

impl Closing {
    pub(crate) fn demand(&self) -> Demand {
        match self.demand.load(Ordering::Relaxed) {
            0 => Demand::Stay,
            1 => Demand::WindDown,
            _ => Demand::HangUp,
        }
    }

    pub(crate) fn raise(&self, demand: Demand) {
        self.demand.fetch_max(demand as u32, Ordering::Relaxed);
        let wakers: Vec<Waker> = self.watchers.lock().values().cloned().collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes `waker` when the demand rises, until [`Closing::forget`].
    pub(crate) fn watch(&self, ticket: u64, waker: &Waker) {
        self.watchers.lock().insert(ticket, waker.clone());
    }

    pub(crate) fn forget(&self, ticket: u64) {
        self.watchers.lock().remove(&ticket);
    }
}
