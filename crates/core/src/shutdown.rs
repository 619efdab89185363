//! Shutdown: how far it is, for the tasks that it ends.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::pin::pin;
use std::task::{Poll, Waker};

use crate::sync::{AtomicU32, Mutex, Ordering};

/// What is asked of a task; it only gets stricter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Go on.
    Serving,
    /// Take no further requests, complete those that were received, then end.
    Draining,
    /// End.
    Aborting,
}

/// Asks tasks to end. A task watches it, and then looks at its phase whenever it is woken, which is one load.
#[derive(Default)]
pub struct Shutdown {
    phase: AtomicU32,
    watchers: Mutex<BTreeMap<u64, Waker>>,
}

impl Shutdown {
    /// How far it is.
    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Serving,
            1 => Phase::Draining,
            _ => Phase::Aborting,
        }
    }

    /// Asks for `phase`, unless a stricter one was asked for.
    pub fn ask(&self, phase: Phase) {
        self.phase.fetch_max(phase as u32, Ordering::AcqRel);
        self.wake();
    }

    /// Has the watchers look around.
    pub fn wake(&self) {
        let watchers: Vec<Waker> = self.watchers.lock().values().cloned().collect();
        watchers.into_iter().for_each(Waker::wake);
    }

    /// Wakes this task from now on, which is the only one of its `number`. The phase is read after this.
    pub fn watch(&self, number: u64, waker: &Waker) {
        self.watchers.lock().insert(number, waker.clone());
    }

    /// Wakes the task of that number no more.
    pub fn forget(&self, number: u64) {
        self.watchers.lock().remove(&number);
    }

    /// What `work` comes to, unless `phase` or a stricter one is asked for before. For the one task that watches, as number 0.
    pub async fn unless<T>(&self, phase: Phase, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        poll_fn(|context| {
            self.watch(0, context.waker());
            if self.phase() >= phase { Poll::Ready(None) } else { work.as_mut().poll(context).map(Some) }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Wakes;
    use std::future::pending;
    use std::sync::Arc;
    use std::task::Context;

    #[test]
    fn it_only_gets_stricter_and_wakes_its_watchers() {
        let (shutdown, wakes) = (Shutdown::default(), Arc::<Wakes>::default());
        assert_eq!(shutdown.phase(), Phase::Serving);
        shutdown.watch(7, &wakes.waker());
        shutdown.ask(Phase::Aborting);
        shutdown.ask(Phase::Draining);
        assert_eq!((shutdown.phase(), wakes.count()), (Phase::Aborting, 2));
        shutdown.forget(7);
        shutdown.wake();
        assert_eq!(wakes.count(), 2);
    }

    #[test]
    fn what_waits_beside_it_ends_once_that_phase_is_asked_for() {
        let (shutdown, wakes) = (Shutdown::default(), Arc::<Wakes>::default());
        let waker = wakes.waker();
        let mut context = Context::from_waker(&waker);
        let mut work = pin!(shutdown.unless(Phase::Aborting, pending::<()>()));
        for (phase, ends) in [(Phase::Serving, false), (Phase::Draining, false), (Phase::Aborting, true)] {
            shutdown.ask(phase);
            assert_eq!(
                work.as_mut().poll(&mut context),
                if ends { Poll::Ready(None) } else { Poll::Pending }
            );
        }
        assert_eq!(wakes.count(), 2, "the first phase comes before it waits");
        let mut done = pin!(shutdown.unless(Phase::Aborting, async {}));
        assert_eq!(done.as_mut().poll(&mut context), Poll::Ready(None));
    }
}
