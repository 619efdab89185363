//! Ranges held exclusively, and the tasks that wait until they are free.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::primitives::{AtomicUsize, Mutex, Ordering};
use crate::block::ByteRange;
use crate::mutant;

mod held;
mod line;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;

use held::HeldRanges;
use line::TurnQueue;

/// Ranges held by guards.
///
/// [`RangeSet::hold`] is at once, so that it can be done where nothing waits, as in a drop; held ranges may overlap. Who needs a range
/// that nobody holds looks, or waits until it is clear. Costs one load while nothing is held, which is nearly always.
///
/// While as many ranges are held as fill the set, no range is clear: those who look first begin nothing that could add to
/// them. [`RangeSet::hold`] itself is never refused.
///
/// Where ranges are held again and again, who waits for a clear one would wait for ever. So there is a line: who needs a range clear
/// takes a [`RangeTurn`], and who holds ranges by [`RangeSet::hold_in_turn`] waits first for the turns in its range that came before, until
/// they are dropped. A turn lasts while its owner looks, does what it needs a clear range for, or waits for something else. It waits for
/// ranges that are held, and for no other turn; who holds a range waits for nobody here: so no two wait for each other, as long as who wants
/// to hold a range has nothing that the owner of a turn may wait for.
///
/// Who is to hold its range alone, by [`RangeSet::hold_alone`], has a turn until it does, and waits for earlier ones in its range too.
///
/// The owner of a turn meets only ranges whose holders came before it, each once. Where the next range would fill the set, holders wait for all
/// turns before theirs, whatever their ranges.
///
/// Clones are handles to the same set. Locks: the state is a leaf.
#[derive(Clone)]
pub struct RangeSet(Arc<Shared>);

struct Shared {
    /// Ranges held.
    count: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    held: HeldRanges,
    line: TurnQueue,
}

impl RangeSet {
    /// A set that `full` ranges fill.
    pub fn new(full: usize) -> Self {
        assert!(full > 0, "no range of a set that is always full is ever clear");
        let state = State { held: HeldRanges::new(full), line: TurnQueue::default() };
        Self(Arc::new(Shared { count: AtomicUsize::new(0), state: Mutex::new(state) }))
    }

    /// Holds `range` until the result is dropped, also where others wait for it to be clear.
    pub fn hold(&self, range: ByteRange) -> HeldRange {
        self.0.hold(&mut self.0.state.lock().held, range)
    }

    /// Holds `range` until the result is dropped, once the turns that came before and overlap it are over. Others may hold parts of it as well.
    pub async fn hold_in_turn(&self, range: ByteRange) -> HeldRange {
        let mut wait = Wait { set: &self.0, range, ticket: None };
        poll_fn(|context| wait.poll(context.waker())).await
    }

    /// Holds `range` until the result is dropped, once the turns that came before and overlap it are over and nobody holds a part of
    /// it. Those who hold ranges by nothing else hold them alone, first come, first served where they overlap.
    pub async fn hold_alone(&self, range: ByteRange) -> HeldRange {
        let turn = self.line_up(range);
        poll_fn(|context| turn.poll_alone(context.waker())).await
    }

    /// Whether nothing is held. One load.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.count.load(Ordering::Acquire) == 0
    }

    /// Whether a part of `range` is held.
    pub fn overlaps(&self, range: ByteRange) -> bool {
        self.0.state.lock().held.overlaps(range)
    }

    /// A turn for `range`: those who come from now on to [`RangeSet::hold_in_turn`] wait until it is dropped.
    pub fn line_up(&self, range: ByteRange) -> RangeTurn {
        let ticket = self.0.state.lock().line.enter(range);
        RangeTurn { set: self.0.clone(), range, ticket }
    }

    /// Waits until nobody holds a part of `range` and the set is not full. It may be held again at once: see [`RangeSet::line_up`].
    pub async fn clear_of(&self, range: ByteRange) {
        self.line_up(range).clear().await;
    }
}

impl Shared {
    fn hold(self: &Arc<Self>, held: &mut HeldRanges, range: ByteRange) -> HeldRange {
        held.add(range);
        self.count.store(held.count, Ordering::Release);
        HeldRange { set: self.clone(), range }
    }
}

/// A range of a [`RangeSet`], held until dropped.
pub struct HeldRange {
    set: Arc<Shared>,
    range: ByteRange,
}

impl Drop for HeldRange {
    fn drop(&mut self) {
        let clear = {
            let State { held, line } = &mut *self.set.state.lock();
            let was_full = held.is_full();
            held.remove(self.range);
            self.set.count.store(held.count, Ordering::Release);
            line.take_clear(held, self.range, was_full)
        };
        clear.into_iter().for_each(Waker::wake);
    }
}

/// A turn of one who needs a range of a [`RangeSet`] clear; over when dropped.
#[must_use]
pub struct RangeTurn {
    set: Arc<Shared>,
    range: ByteRange,
    ticket: u64,
}

impl RangeTurn {
    /// Waits until nobody holds a part of the range and the set is not full. It may be held again by one who came before, or did not wait for
    /// its turn: then this can be waited for once more, and the turn stays what it is.
    pub async fn clear(&mut self) {
        poll_fn(|context| self.poll(context.waker())).await;
    }

    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut state = self.set.state.lock();
        let clear = state.held.is_clear(self.range);
        if mutant::on("range set: look, then wait") {
            drop(state);
            state = self.set.state.lock();
        }
        state.line.set_waiting(self.ticket, (!clear).then_some(waker));
        if clear { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Holds the range once the turns before this one are over that overlap it, and it is clear.
    fn poll_alone(&self, waker: &Waker) -> Poll<HeldRange> {
        let State { held, line } = &mut *self.set.state.lock();
        if line.is_behind(self.ticket, self.range, held, waker) {
            return Poll::Pending;
        }
        let clear = held.is_clear(self.range);
        line.set_waiting(self.ticket, (!clear).then_some(waker));
        if clear { Poll::Ready(self.set.hold(held, self.range)) } else { Poll::Pending }
    }
}

impl Drop for RangeTurn {
    fn drop(&mut self) {
        let free = {
            let State { held, line } = &mut *self.set.state.lock();
            line.leave(self.ticket, held)
        };
        if !mutant::on("range set: leave without a word") {
            free.into_iter().for_each(Waker::wake);
        }
    }
}

/// One who wants to hold a range.
struct Wait<'a> {
    set: &'a Arc<Shared>,
    range: ByteRange,
    ticket: Option<u64>,
}

impl Wait<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<HeldRange> {
        let State { held, line } = &mut *self.set.state.lock();
        let waits = match self.ticket {
            Some(ticket) => line.is_queued(ticket, waker),
            None => {
                self.ticket = line.queue(self.range, held, waker);
                self.ticket.is_some()
            }
        };
        if waits { Poll::Pending } else { Poll::Ready(self.set.hold(held, self.range)) }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.set.state.lock().line.forget(ticket);
        }
    }
}
