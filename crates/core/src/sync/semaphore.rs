//! A counting semaphore: units are taken and given back, first come, first served.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::primitives::{AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::mutant;

/// Units of something that there is a limited number of.
///
/// Waiters are served in the order of arrival, also where a later and smaller request would fit: a large one is never
/// starved. Units that come back are handed to the first waiters that they suffice for; nobody else is woken. A waiter that
/// is dropped gives back what it was handed. As a lock, one unit is a share and all of them the whole.
///
/// Why no waiter is forgotten: `used` and `waiting` are changed and read in one order that all threads agree on. Either the
/// waiter, which has counted itself in `waiting`, then sees the units that came back; or who gave them back sees the waiter.
pub struct Semaphore {
    limit: AtomicU64,
    used: AtomicU64,
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

struct Queue {
    next: u64,
    waiters: BTreeMap<u64, Waiter>,
}

struct Waiter {
    units: u64,
    waker: Waker,
}

impl Semaphore {
    /// `limit` units, all of them free.
    pub const fn new(limit: u64) -> Self {
        let queue = Mutex::new(Queue { next: 0, waiters: BTreeMap::new() });
        Self { limit: AtomicU64::new(limit), used: AtomicU64::new(0), waiting: AtomicUsize::new(0), queue }
    }

    /// Changes the limit. Below what is taken it refuses newcomers until enough has come back.
    pub fn set_limit(&self, units: u64) {
        self.limit.store(units, Ordering::Relaxed);
        self.serve();
    }

    /// The limit.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Units taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Tasks that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Takes `units` unless they are not free or others wait.
    #[inline]
    pub fn try_take(&self, units: u64) -> bool {
        self.waiting() == 0 && self.claim(units)
    }

    /// Takes `units` whatever the limit is.
    pub fn force(&self, units: u64) {
        self.used.fetch_add(units, Ordering::SeqCst);
    }

    /// Takes `units`, after everybody who asked before.
    pub fn take(&self, units: u64) -> impl Future<Output = ()> + Unpin {
        SemaphoreTake { semaphore: self, units, ticket: None }
    }

    /// Takes a unit that is given back by dropping it.
    pub async fn hold(&self) -> Permit<'_> {
        self.take(1).await;
        Permit(self)
    }

    /// The same, unless none is free or others wait.
    pub fn try_hold(&self) -> Option<Permit<'_>> {
        self.try_take(1).then(|| Permit(self))
    }

    /// Gives `units` back. More than were taken is a bug, and asserted.
    #[inline]
    pub fn give(&self, units: u64) {
        let before = self.used.fetch_sub(units, Ordering::SeqCst);
        assert!(before >= units, "{units} units were given back of {before}");
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve();
        }
    }

    /// Gives `units` back unless fewer are taken; then none.
    pub fn try_give(&self, units: u64) -> bool {
        let less = |used: u64| used.checked_sub(units);
        let given = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok();
        if given && self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve();
        }
        given
    }

    /// Gives back what a waiter was handed and did not use. Others may have given all back meanwhile, by [`Semaphore::try_give`].
    fn hand_back(&self, units: u64) {
        let less = |used: u64| Some(used.saturating_sub(units));
        let _ = self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.serve();
        }
    }

    #[inline]
    fn claim(&self, units: u64) -> bool {
        let limit = self.limit.load(Ordering::Relaxed);
        let fits = |used: u64| used.checked_add(units).filter(|&sum| sum <= limit);
        self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    /// Hands free units to the first waiters.
    #[cold]
    fn serve(&self) {
        let mut served = Vec::new();
        {
            let mut queue = self.queue.lock();
            while let Some(first) = queue.waiters.first_entry() {
                if !self.claim(first.get().units) {
                    break;
                }
                served.push(first.remove().waker);
            }
            self.waiting.store(queue.waiters.len(), Ordering::Relaxed);
        }
        served.into_iter().for_each(Waker::wake);
    }
}

/// A unit of a semaphore, given back on drop.
#[must_use]
pub struct Permit<'a>(&'a Semaphore);

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.0.give(1);
    }
}

/// Waits for units of a [`Semaphore`]; they belong to the caller once it is ready.
struct SemaphoreTake<'a> {
    semaphore: &'a Semaphore,
    units: u64,
    ticket: Option<u64>,
}

impl SemaphoreTake<'_> {
    fn enter(&mut self, waker: &Waker) -> u64 {
        let ticket = {
            let mut queue = self.semaphore.queue.lock();
            let ticket = queue.next;
            queue.next += 1;
            queue.waiters.insert(ticket, Waiter { units: self.units, waker: waker.clone() });
            self.semaphore.waiting.store(queue.waiters.len(), Ordering::SeqCst);
            ticket
        };
        self.ticket = Some(ticket);
        if !mutant::on("semaphore: wait without looking again") {
            self.semaphore.serve();
        }
        ticket
    }
}

impl Future for SemaphoreTake<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let ticket = match self.ticket {
            Some(ticket) => ticket,
            None if self.semaphore.try_take(self.units) => return Poll::Ready(()),
            None => self.enter(context.waker()),
        };
        let mut queue = self.semaphore.queue.lock();
        if let Some(waiter) = queue.waiters.get_mut(&ticket) {
            waiter.waker.clone_from(context.waker());
            return Poll::Pending;
        }
        drop(queue);
        self.ticket = None;
        Poll::Ready(())
    }
}

impl Drop for SemaphoreTake<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let still_waits = {
            let mut queue = self.semaphore.queue.lock();
            let waiter = queue.waiters.remove(&ticket);
            self.semaphore.waiting.store(queue.waiters.len(), Ordering::Relaxed);
            waiter.is_some()
        };
        match still_waits {
            // What did not suffice for this one may suffice for the next.
            true => self.semaphore.serve(),
            false if mutant::on("semaphore: keep what a waiter left") => {}
            false => self.semaphore.hand_back(self.units),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use super::*;
    use crate::block_device::contract::Wakes;

    #[test]
    fn a_large_request_is_not_starved_by_small_ones_behind_it() {
        let semaphore = Semaphore::new(10);
        let mut context = Context::from_waker(Waker::noop());
        assert!(semaphore.try_take(5));
        let mut large = pin!(semaphore.take(8));
        let mut small = pin!(semaphore.take(1));
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(small.as_mut().poll(&mut context).is_pending(), "it would fit, but is not the first");
        assert!(!semaphore.try_take(1));
        semaphore.give(5);
        assert!(large.as_mut().poll(&mut context).is_ready());
        assert!(small.as_mut().poll(&mut context).is_ready());
        assert_eq!((semaphore.used(), semaphore.waiting()), (9, 0));
    }

    #[test]
    fn only_the_first_that_fit_are_woken() {
        let semaphore = Semaphore::new(10);
        assert!(semaphore.try_take(10));
        let wakes = [2, 2, 5, 1].map(|units| (units, Arc::<Wakes>::default()));
        let mut waiters: Vec<_> = wakes.iter().map(|(units, _)| Box::pin(semaphore.take(*units))).collect();
        for (waiter, (_, wakes)) in waiters.iter_mut().zip(&wakes) {
            assert!(waiter.as_mut().poll(&mut Context::from_waker(&wakes.waker())).is_pending());
        }
        semaphore.give(4);
        semaphore.give(1);
        let woken: Vec<_> = wakes.iter().map(|(_, wakes)| wakes.count()).collect();
        assert_eq!(woken, [1, 1, 0, 0]);
        drop(waiters);
        assert_eq!((semaphore.used(), semaphore.waiting()), (5, 0), "what they were handed came back");
    }

    #[test]
    fn a_waiter_that_leaves_the_head_lets_the_next_one_in() {
        let semaphore = Semaphore::new(10);
        let mut context = Context::from_waker(Waker::noop());
        assert!(semaphore.try_take(5));
        let mut large = Box::pin(semaphore.take(8));
        let mut small = pin!(semaphore.take(3));
        assert!(large.as_mut().poll(&mut context).is_pending());
        assert!(small.as_mut().poll(&mut context).is_pending());
        drop(large);
        assert!(small.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn no_more_is_given_back_than_was_taken_where_that_is_asked_for() {
        let semaphore = Semaphore::new(2);
        semaphore.force(2);
        let mut take = pin!(semaphore.take(1));
        assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(
            semaphore.try_give(1) && take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
        );
        assert_eq!([(); 3].map(|()| semaphore.try_give(1)), [true, true, false]);
        assert_eq!(semaphore.used(), 0);
    }

    #[test]
    fn what_a_waiter_was_handed_comes_back_though_all_was_given_back_meanwhile() {
        let semaphore = Semaphore::new(2);
        semaphore.force(2);
        let mut take = Box::pin(semaphore.take(1));
        assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!([(); 4].map(|()| semaphore.try_give(1)), [true, true, true, false]);
        drop(take);
        assert_eq!((semaphore.used(), semaphore.waiting()), (0, 0));
    }

    #[test]
    fn a_raised_limit_serves_who_waits() {
        let semaphore = Semaphore::new(1);
        let mut take = pin!(semaphore.take(2));
        assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        semaphore.set_limit(2);
        assert!(take.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
    }
}
