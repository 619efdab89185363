//! A number that only grows, and the tasks that wait until it has reached theirs.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::primitives::{AtomicU64, AtomicUsize, Mutex, Ordering};
use crate::mutant;

/// A sequence number that only grows: of the last commit, of the last pass that has ended.
///
/// Tasks wait for a number; only those whose number is reached are woken. Once reached, a number stays reached, so a waiter
/// that is dropped has nothing to pass on.
///
/// Why no waiter is forgotten: `current` and `waiting` are changed and read in one order that all threads agree on. Either
/// the waiter, which has counted itself in `waiting`, sees the new number; or the thread that advances sees the waiter.
#[derive(Default)]
pub struct Watermark {
    current: AtomicU64,
    waiting: AtomicUsize,
    queue: Mutex<Queue>,
}

/// Waiters by number, then by ticket.
#[derive(Default)]
struct Queue {
    next: u64,
    waiters: BTreeMap<(u64, u64), Waker>,
}

impl Watermark {
    /// The number reached. One load.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::SeqCst)
    }

    /// Advances to `number`; does nothing where that is reached already.
    pub fn advance(&self, number: u64) {
        if mutant::on("watermark: go back to a lower number") {
            self.current.store(number, Ordering::SeqCst);
            return self.wake();
        }
        if self.current() < number && self.current.fetch_max(number, Ordering::SeqCst) < number {
            self.wake();
        }
    }

    /// Advances by one; returns the number that is reached with this step.
    pub fn step(&self) -> u64 {
        let before = self.current.fetch_add(1, Ordering::SeqCst);
        assert!(before < u64::MAX, "a watermark steps from its last number back to the first");
        self.wake();
        before + 1
    }

    /// Waits until `number` is reached.
    pub fn reached(&self, number: u64) -> impl Future<Output = ()> + Unpin {
        Reached { watermark: self, number, ticket: None }
    }

    /// Tasks that wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    fn wake(&self) {
        if self.waiting() == 0 {
            return;
        }
        let mut reached = Vec::new();
        {
            let (mut queue, current) = (self.queue.lock(), self.current());
            while let Some(first) = queue.waiters.first_entry() {
                if first.key().0 > current {
                    break;
                }
                reached.push(first.remove());
            }
            self.waiting.store(queue.waiters.len(), Ordering::SeqCst);
        }
        let all = if mutant::on("watermark: wake one of those it has reached") { 1 } else { reached.len() };
        reached.into_iter().take(all).for_each(Waker::wake);
    }
}

/// Waits for a number of a [`Watermark`].
struct Reached<'a> {
    watermark: &'a Watermark,
    number: u64,
    ticket: Option<u64>,
}

impl Reached<'_> {
    fn is_reached(&self) -> bool {
        self.watermark.current() >= self.number
    }

    fn register(&mut self, waker: &Waker) {
        let mut queue = self.watermark.queue.lock();
        let ticket = self.ticket.unwrap_or(queue.next);
        queue.next += u64::from(self.ticket.replace(ticket).is_none());
        queue.waiters.insert((self.number, ticket), waker.clone());
        self.watermark.waiting.store(queue.waiters.len(), Ordering::SeqCst);
    }
}

impl Future for Reached<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.is_reached() {
            return Poll::Ready(());
        }
        self.register(context.waker());
        let blind = mutant::on("watermark: wait without looking again");
        if !blind && self.is_reached() { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Reached<'_> {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket else { return };
        let mut queue = self.watermark.queue.lock();
        queue.waiters.remove(&(self.number, ticket));
        self.watermark.waiting.store(queue.waiters.len(), Ordering::SeqCst);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::future::block_on;
    use shuttle::thread;
    use std::sync::Arc;

    /// Three wait, two of them for the same number; two advance, one of them late with a number that is behind.
    fn waits() {
        let watermark = Arc::new(Watermark::default());
        let waiters: Vec<_> = [1, 3, 3]
            .map(|number| {
                let watermark = watermark.clone();
                thread::spawn(move || {
                    block_on(watermark.reached(number));
                    assert!(watermark.current() >= number, "it went back behind {number}");
                })
            })
            .into();
        let advance = |numbers: &'static [u64]| {
            let watermark = watermark.clone();
            thread::spawn(move || numbers.iter().for_each(|&number| watermark.advance(number)))
        };
        let advances = [advance(&[1, 3]), advance(&[2])];
        waiters.into_iter().chain(advances).for_each(|thread| thread.join().expect("everybody ends"));
        assert_eq!((watermark.current(), watermark.waiting()), (3, 0));
    }

    #[test]
    fn who_waits_for_a_number_that_is_reached_goes_on() {
        every_order(20_000, waits);
    }

    #[test]
    fn two_steps_never_reach_the_same_number() {
        every_order(2000, || {
            let watermark = Arc::new(Watermark::default());
            let steps = [(); 3].map(|()| {
                let watermark = watermark.clone();
                thread::spawn(move || watermark.step())
            });
            block_on(watermark.reached(3));
            let mut numbers = steps.map(|thread| thread.join().expect("a step is made"));
            numbers.sort_unstable();
            assert_eq!(numbers, [1, 2, 3]);
        });
    }

    fn bites(mutant: &str) {
        finds(mutant, who_waits_for_a_number_that_is_reached_goes_on);
    }

    #[test]
    fn the_checker_finds_a_watermark_that_goes_back() {
        bites("watermark: go back to a lower number");
    }

    #[test]
    fn the_checker_finds_a_watermark_that_does_not_look_again() {
        bites("watermark: wait without looking again");
    }

    #[test]
    fn the_checker_finds_a_watermark_that_wakes_one_of_two() {
        bites("watermark: wake one of those it has reached");
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;

    use super::*;
    use crate::block_device::contract::Wakes;

    #[test]
    fn only_those_whose_number_is_reached_are_woken() {
        let watermark = Watermark::default();
        let mut waits: Vec<_> =
            [2, 5, 5, 6].map(|number| (Box::pin(watermark.reached(number)), Arc::<Wakes>::default())).into();
        for (wait, wakes) in &mut waits {
            assert!(wait.as_mut().poll(&mut Context::from_waker(&wakes.waker())).is_pending());
        }
        let woken = || -> Vec<_> { waits.iter().map(|(_, wakes)| wakes.count()).collect() };
        watermark.advance(1);
        assert_eq!(woken(), [0, 0, 0, 0]);
        watermark.advance(5);
        assert_eq!(woken(), [1, 1, 1, 0]);
        watermark.advance(4);
        assert_eq!((watermark.step(), watermark.current()), (6, 6));
        assert_eq!(woken(), [1, 1, 1, 1]);
    }

    #[test]
    fn a_number_that_is_reached_is_not_waited_for_and_a_dropped_waiter_is_gone() {
        let watermark = Watermark::default();
        let mut context = Context::from_waker(Waker::noop());
        assert!(pin!(watermark.reached(0)).poll(&mut context).is_ready());
        let mut wait = Box::pin(watermark.reached(1));
        assert!(wait.as_mut().poll(&mut context).is_pending());
        assert!(wait.as_mut().poll(&mut context).is_pending(), "polled twice, it waits once");
        assert_eq!(watermark.waiting(), 1);
        drop(wait);
        assert_eq!(watermark.waiting(), 0);
    }
}
