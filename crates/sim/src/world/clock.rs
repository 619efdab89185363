//! A clock that stands still until it is moved on, and those who wait for a later time.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::sync::{AtomicU64, Mutex, Ordering};

/// The time, and who waits for a later one.
#[derive(Default)]
pub(super) struct Clock {
    nanos: AtomicU64,
    tickets: AtomicU64,
    pub(super) sleepers: Mutex<BTreeMap<(u64, u64), Waker>>,
}

impl Clock {
    pub(super) fn nanos(&self) -> u64 {
        self.nanos.load(Ordering::Relaxed)
    }

    /// Moves on and wakes whose time has come.
    pub(super) fn advance_to(&self, nanos: u64) {
        let now = self.nanos.fetch_max(nanos, Ordering::Relaxed).max(nanos);
        let due: Vec<Waker> = {
            let mut sleepers = self.sleepers.lock();
            let later = sleepers.split_off(&(now + 1, 0));
            std::mem::replace(&mut *sleepers, later).into_values().collect()
        };
        due.into_iter().for_each(Waker::wake);
    }

    /// Moves on to the earliest deadline; false if nobody sleeps.
    pub(super) fn skip(&self) -> bool {
        let first = self.sleepers.lock().keys().next().copied();
        first.is_some_and(|(deadline, _)| {
            self.advance_to(deadline);
            true
        })
    }

    /// Over once `duration` has passed.
    pub(super) fn sleep(self: &Arc<Self>, duration: Duration) -> Sleep {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let deadline = self.nanos() + duration.as_nanos() as u64;
        Sleep { clock: self.clone(), deadline, ticket, polled: false }
    }
}

pub(super) struct Sleep {
    clock: Arc<Clock>,
    deadline: u64,
    ticket: u64,
    polled: bool,
}

impl Future for Sleep {
    type Output = ();

    /// Pending at least once, so that others have their turn even for a sleep of zero.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let due = self.clock.nanos() >= self.deadline;
        if std::mem::replace(&mut self.polled, true) && due {
            return Poll::Ready(());
        }
        if due {
            context.waker().wake_by_ref();
        } else {
            self.clock.sleepers.lock().insert((self.deadline, self.ticket), context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.clock.sleepers.lock().remove(&(self.deadline, self.ticket));
    }
}
