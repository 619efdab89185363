//! One flush for all who ask for one at the same time.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::task::{Poll, Waker};

use super::primitives::Mutex;
use crate::error::Kind;
use crate::mutant;

/// Flushes, one at a time: the first to ask leads, those who ask while it flushes share the next.
///
/// Each is answered with the result of the first flush that began after it asked: a flush that was under way may have passed
/// over what was written since. A leader that is dropped answers nobody, and the next in line leads.
///
/// Locks: the state is a leaf.
#[derive(Default)]
pub struct GroupFlush {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Tickets drawn so far.
    drawn: u64,
    /// A leader flushes.
    busy: bool,
    /// Who has asked and is neither leading nor gone, by ticket.
    waiting: BTreeMap<u64, Waiter>,
}

#[derive(Default)]
struct Waiter {
    /// Absent until it was polled.
    waker: Option<Waker>,
    result: Option<Result<(), Kind>>,
}

impl GroupFlush {
    /// Makes durable what was written before the first poll, by `flush` or by that of another caller. Fails as the flush did that
    /// was to cover it.
    pub async fn through(&self, flush: impl Future<Output = Result<(), Kind>>) -> Result<(), Kind> {
        let mut ticket = self.draw();
        let lead = match poll_fn(|context| ticket.poll(context.waker())).await {
            Leadership::Shares(result) => return result,
            Leadership::Leads(lead) => lead,
        };
        let result = flush.await;
        lead.end(result);
        result
    }

    fn draw(&self) -> Ticket<'_> {
        let mut state = self.state.lock();
        state.drawn += 1;
        let number = state.drawn;
        state.waiting.insert(number, Waiter::default());
        Ticket { flushes: self, number }
    }
}

impl State {
    /// The next leader: the first that waits without a result.
    fn next_leader(&self) -> Option<Waker> {
        if self.busy {
            return None;
        }
        self.waiting.values().find(|waiter| waiter.result.is_none())?.waker.clone()
    }

    /// Answers all who asked before the flush began; returns whom to wake.
    fn answer(&mut self, covers: u64, result: Result<(), Kind>) -> Vec<Waker> {
        let covers = if mutant::on("group flush: share a flush that had begun") { u64::MAX } else { covers };
        let covered = self.waiting.range_mut(..=covers).map(|(_, waiter)| waiter);
        covered
            .filter(|waiter| waiter.result.is_none())
            .filter_map(|waiter| {
                waiter.result = Some(result);
                waiter.waker.take()
            })
            .collect()
    }
}

/// How a caller gets the result: of a flush by another, or by its own.
enum Leadership<'a> {
    Shares(Result<(), Kind>),
    Leads(Lead<'a>),
}

/// A caller in line. Dropped when it was to lead next, it wakes the one behind it.
struct Ticket<'a> {
    flushes: &'a GroupFlush,
    number: u64,
}

impl<'a> Ticket<'a> {
    fn poll(&mut self, waker: &Waker) -> Poll<Leadership<'a>> {
        let mut state = self.flushes.state.lock();
        let busy = state.busy;
        let waiter = state.waiting.get_mut(&self.number).expect("it waits until it leads");
        if let Some(result) = waiter.result {
            return Poll::Ready(Leadership::Shares(result));
        }
        if busy {
            waiter.waker = Some(waker.clone());
            return Poll::Pending;
        }
        state.waiting.remove(&self.number);
        state.busy = true;
        Poll::Ready(Leadership::Leads(Lead { flushes: self.flushes, covers: state.drawn, result: None }))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let next = {
            let mut state = self.flushes.state.lock();
            let unanswered = state.waiting.remove(&self.number).filter(|waiter| waiter.result.is_none());
            unanswered.and_then(|_| state.next_leader())
        };
        if !mutant::on("group flush: keep the turn that comes too late") {
            next.into_iter().for_each(Waker::wake);
        }
    }
}

/// The one flush that is under way.
struct Lead<'a> {
    flushes: &'a GroupFlush,
    /// It covers the tickets up to this one.
    covers: u64,
    /// Absent if it is dropped before its end.
    result: Option<Result<(), Kind>>,
}

impl Lead<'_> {
    fn end(mut self, result: Result<(), Kind>) {
        self.result = Some(result);
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        if self.result.is_none() && mutant::on("group flush: a leader that leaves keeps its turn") {
            return;
        }
        let (answered, next) = {
            let mut state = self.flushes.state.lock();
            let led = std::mem::take(&mut state.busy);
            assert!(led, "a flush ends that nobody leads");
            let answered = self.result.map(|result| state.answer(self.covers, result));
            (answered.unwrap_or_default(), state.next_leader())
        };
        answered.into_iter().chain(next).for_each(Waker::wake);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds, leave_early};
    use crate::sync::primitives::{AtomicU64, Ordering};
    use shuttle::future::block_on;
    use shuttle::thread;
    use std::sync::Arc;

    /// A device that forgets what no flush has covered.
    #[derive(Default)]
    struct Disk {
        flushes: GroupFlush,
        written: AtomicU64,
        durable: AtomicU64,
    }

    impl Disk {
        /// Writes, and flushes in two steps: what is written between them is not covered.
        async fn flush(&self) -> Result<(), Kind> {
            let covered = self.written.load(Ordering::SeqCst);
            shuttle::future::yield_now().await;
            self.durable.fetch_max(covered, Ordering::SeqCst);
            Ok(())
        }
    }

    /// Three write and flush, two others ask for a flush and may leave, whatever they are doing then.
    fn writers() {
        let disk = Arc::new(Disk::default());
        let writer = |_| {
            let disk = disk.clone();
            thread::spawn(move || {
                let written = disk.written.fetch_add(1, Ordering::SeqCst) + 1;
                assert_eq!(block_on(disk.flushes.through(disk.flush())), Ok(()));
                let durable = disk.durable.load(Ordering::SeqCst);
                assert!(durable >= written, "{written} was flushed, {durable} is durable");
            })
        };
        let hasty = |_| {
            let disk = disk.clone();
            thread::spawn(move || block_on(leave_early(disk.flushes.through(disk.flush()))))
        };
        let all: Vec<_> = (0..2).map(hasty).chain((0..3).map(writer)).collect();
        all.into_iter().for_each(|thread| thread.join().expect("everybody is answered"));
        assert!(disk.flushes.state.lock().waiting.is_empty());
    }

    #[test]
    fn everybody_gets_a_flush_that_began_after_it_asked() {
        every_order(20_000, writers);
    }

    fn bites(mutant: &str) {
        finds(mutant, everybody_gets_a_flush_that_began_after_it_asked);
    }

    #[test]
    fn the_checker_finds_a_flush_that_is_shared_too_late() {
        bites("group flush: share a flush that had begun");
    }

    #[test]
    fn the_checker_finds_a_leader_that_leaves_with_its_turn() {
        bites("group flush: a leader that leaves keeps its turn");
    }

    #[test]
    fn the_checker_finds_a_waiter_that_leaves_with_its_turn() {
        bites("group flush: keep the turn that comes too late");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::pin::{Pin, pin};
    use std::task::Context;

    type Flush<'a> = Pin<Box<dyn Future<Output = Result<(), Kind>> + 'a>>;

    fn poll(flush: &mut Flush) -> Poll<Result<(), Kind>> {
        flush.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    /// A flush that ends once `result` is there; counts those that have begun.
    async fn flush(begun: &Cell<u32>, result: &Cell<Option<Result<(), Kind>>>) -> Result<(), Kind> {
        begun.set(begun.get() + 1);
        poll_fn(|_| result.take().map_or(Poll::Pending, Poll::Ready)).await
    }

    #[test]
    fn who_asks_while_a_flush_runs_shares_the_next_and_its_result() {
        let (flushes, begun, result) = (GroupFlush::default(), Cell::new(0), Cell::new(None));
        let ask = || -> Flush { Box::pin(flushes.through(flush(&begun, &result))) };
        let mut all = [ask(), ask(), ask()];
        assert!(all.iter_mut().all(|flush| poll(flush).is_pending()));
        result.set(Some(Ok(())));
        assert_eq!(poll(&mut all[0]), Poll::Ready(Ok(())));
        assert!(all[1..].iter_mut().all(|flush| poll(flush).is_pending()));
        assert_eq!(begun.get(), 2, "the other two had asked too late for the first");
        result.set(Some(Err(Kind::Io)));
        assert_eq!(poll(&mut all[1]), Poll::Ready(Err(Kind::Io)));
        let mut late = ask();
        assert!(poll(&mut late).is_pending());
        result.set(Some(Ok(())));
        assert_eq!(poll(&mut late), Poll::Ready(Ok(())));
        assert_eq!(
            poll(&mut all[2]),
            Poll::Ready(Err(Kind::Io)),
            "its own flush failed, whatever came later"
        );
        assert_eq!(begun.get(), 3);
    }

    #[test]
    fn a_leader_that_is_dropped_answers_nobody() {
        let (flushes, begun, result) = (GroupFlush::default(), Cell::new(0), Cell::new(None));
        let ask = || -> Flush { Box::pin(flushes.through(flush(&begun, &result))) };
        let (mut first, mut second) = (ask(), ask());
        assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
        drop(first);
        assert!(poll(&mut second).is_pending());
        assert_eq!(begun.get(), 2);
        result.set(Some(Ok(())));
        assert_eq!(poll(&mut second), Poll::Ready(Ok(())));
        assert!(
            pin!(flushes.through(async { Ok(()) })).poll(&mut Context::from_waker(Waker::noop())).is_ready()
        );
    }
}
