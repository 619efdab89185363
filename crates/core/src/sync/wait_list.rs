//! Tasks that wait for any condition.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use super::primitives::{AtomicUsize, Mutex, Ordering, fence};
use crate::mutant;

/// Tasks that wait for a condition that others make true.
///
/// The waiter checks its condition, registers, and checks again; the one that makes the condition true calls
/// [`WaitList::wake_one`] or [`WaitList::wake_all`] afterwards. The fences on both sides forbid the outcome where the
/// waiter misses the change and the waker misses the waiter.
#[derive(Default)]
pub struct WaitList {
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

/// Waiters by ticket, which is the order of arrival.
#[derive(Default)]
struct Queue {
    next: u64,
    waiters: BTreeMap<u64, Waker>,
}

impl WaitList {
    /// Waits until `ready` gives a value. Woken in the order of arrival; a waiter that is dropped passes its turn on.
    pub async fn until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> T {
        let mut queued = Queued { list: self, ticket: None };
        poll_fn(|context| {
            if let Some(value) = ready() {
                return Poll::Ready(value);
            }
            queued.register(context.waker());
            fence(Ordering::SeqCst);
            if mutant::on("wait list: register without looking again") {
                return Poll::Pending;
            }
            match ready() {
                Some(value) => Poll::Ready(value),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// Wakes the task that has waited longest. One load when nobody waits.
    pub fn wake_one(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let first = self.pop();
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Wakes every waiting task.
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        let all: Vec<Waker> = {
            let mut queue = self.queue.lock();
            self.waiting.store(0, Ordering::Relaxed);
            std::mem::take(&mut queue.waiters).into_values().collect()
        };
        all.into_iter().for_each(Waker::wake);
    }

    /// Number of registered tasks.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    fn pop(&self) -> Option<Waker> {
        let mut queue = self.queue.lock();
        let first = queue.waiters.pop_first();
        self.waiting.store(queue.waiters.len(), Ordering::Relaxed);
        first.map(|(_, waker)| waker)
    }
}

/// A place in the queue; gives it back when the waiter is dropped or served.
struct Queued<'a> {
    list: &'a WaitList,
    ticket: Option<u64>,
}

impl Queued<'_> {
    fn register(&mut self, waker: &Waker) {
        let mut queue = self.list.queue.lock();
        if let Some(known) = self.ticket.and_then(|ticket| queue.waiters.get_mut(&ticket)) {
            known.clone_from(waker);
            return;
        }
        let ticket = queue.next;
        queue.next += 1;
        queue.waiters.insert(ticket, waker.clone());
        self.ticket = Some(ticket);
        self.list.waiting.store(queue.waiters.len(), Ordering::Relaxed);
    }
}

impl Drop for Queued<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let was_queued = {
            let mut queue = self.list.queue.lock();
            let waiter = queue.waiters.remove(&ticket);
            self.list.waiting.store(queue.waiters.len(), Ordering::Relaxed);
            waiter.is_some()
        };
        // Woken but leaving: whether served or dropped, the next in line may find the condition true as well.
        if !was_queued && !mutant::on("wait list: keep a wake that comes too late") {
            self.list.wake_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::block_on;
    use crate::sync::AtomicBool;
    use std::sync::Arc;

    #[test]
    fn every_waiter_gets_its_token() {
        let state = Arc::new((WaitList::default(), AtomicUsize::new(0)));
        let take = |n: &AtomicUsize| {
            n.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |v| v.checked_sub(1)).ok().map(|_| ())
        };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let state = state.clone();
                std::thread::spawn(move || {
                    for _ in 0..2000 {
                        block_on(state.0.until(|| take(&state.1)));
                    }
                })
            })
            .collect();
        for _ in 0..8000 {
            state.1.fetch_add(1, Ordering::SeqCst);
            state.0.wake_one();
        }
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(state.0.waiting(), 0);
    }

    #[test]
    fn a_dropped_waiter_passes_its_wake_on() {
        use std::future::Future;
        use std::task::{Context, Poll};
        let list = WaitList::default();
        let mut context = Context::from_waker(Waker::noop());
        let flag = AtomicBool::new(false);
        let ready = || flag.load(Ordering::SeqCst).then_some(());
        let mut first = Box::pin(list.until(ready));
        let mut second = Box::pin(list.until(ready));
        assert!(first.as_mut().poll(&mut context).is_pending());
        assert!(second.as_mut().poll(&mut context).is_pending());
        flag.store(true, Ordering::SeqCst);
        list.wake_one();
        drop(first);
        assert_eq!(list.waiting(), 0, "the wake was passed to the second");
        assert!(matches!(second.as_mut().poll(&mut context), Poll::Ready(())));
    }
}
