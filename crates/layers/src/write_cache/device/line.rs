//! Who waits for blocks of the cache: first come, first served, so that small writes do not keep a block from a long one for ever.

use std::collections::BTreeSet;

use spillway_core::sync::{AtomicUsize, Mutex, Ordering};

/// A place in a [`Line`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

/// Tickets in the order of arrival. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct Line {
    waiting: AtomicUsize,
    tickets: Mutex<Tickets>,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    waiting: BTreeSet<Ticket>,
}

impl Line {
    /// Whether it is the turn of who has `ticket`, or of a newcomer. One load where nobody waits.
    pub(crate) fn is_next(&self, ticket: Option<Ticket>) -> bool {
        if self.waiting.load(Ordering::Acquire) == 0 {
            return true;
        }
        let first = self.tickets.lock().waiting.first().copied();
        first.is_none() || first == ticket
    }

    /// A place at the end.
    pub(crate) fn enter(&self) -> Ticket {
        let mut tickets = self.tickets.lock();
        let ticket = Ticket(tickets.next);
        tickets.next += 1;
        tickets.waiting.insert(ticket);
        self.waiting.store(tickets.waiting.len(), Ordering::Release);
        ticket
    }

    /// Gives up a place; whether anybody else waits.
    pub(crate) fn leave(&self, ticket: Ticket) -> bool {
        let mut tickets = self.tickets.lock();
        assert!(tickets.waiting.remove(&ticket), "{ticket:?} leaves once");
        self.waiting.store(tickets.waiting.len(), Ordering::Release);
        !tickets.waiting.is_empty()
    }
}
