//! Ranges held exclusively, and the tasks that wait until they are free.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::primitives::{AtomicUsize, Mutex, Ordering};
use crate::block::ByteRange;
use crate::mutant;

/// Ranges held by guards.
///
/// Holding one is at once, so that it can be done where nothing waits, as in a drop; held ranges may overlap. Who needs a range
/// that nobody holds looks, or waits until it is clear. Costs one load while nothing is held, which is nearly always.
///
/// While as many ranges are held as fill the set, no range is clear: those who look first begin nothing that could add to
/// them. Holding itself is never refused.
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
    /// So many ranges fill the set.
    full: usize,
    held: Held,
    next: u64,
    /// By ticket, which is the order of arrival.
    waiting: BTreeMap<u64, (ByteRange, Waker)>,
    /// How often a range was compared with all that are held.
    #[cfg(test)]
    looks: std::cell::Cell<usize>,
}

/// What is held, by size: how many hold each range.
///
/// Ranges of a class differ in length by less than the double. One that overlaps another range begins in that or less than the
/// longest length of its class before it, so that few others are looked at, however many are held.
#[derive(Default)]
struct Held {
    count: usize,
    classes: BTreeMap<u32, BTreeMap<(u64, u64), usize>>,
    /// How many ranges were compared with another.
    #[cfg(test)]
    compared: std::cell::Cell<usize>,
}

impl Held {
    /// Ranges of class n are shorter than 2^n bytes, and not of class n - 1.
    fn class(len: u64) -> u32 {
        u64::BITS - len.leading_zeros()
    }

    fn add(&mut self, range: ByteRange) {
        self.count += 1;
        let class = self.classes.entry(Self::class(range.len)).or_default();
        *class.entry((range.offset, range.len)).or_default() += 1;
    }

    fn remove(&mut self, range: ByteRange) {
        let number = Self::class(range.len);
        let class = self.classes.get_mut(&number).expect("held once, dropped once");
        let holders = class.get_mut(&(range.offset, range.len)).expect("held once, dropped once");
        let gone = if mutant::on("range set: drop what another holds as well") { *holders } else { 1 };
        *holders -= gone;
        self.count -= gone;
        if *holders == 0 {
            class.remove(&(range.offset, range.len));
        }
        if class.is_empty() {
            self.classes.remove(&number);
        }
    }

    fn overlaps(&self, range: ByteRange) -> bool {
        self.classes.iter().any(|(&number, class)| {
            let reach = 1u64.checked_shl(number).unwrap_or(u64::MAX) - 1;
            let near = class.range((range.offset.saturating_sub(reach), 0)..(range.offset + range.len, 0));
            near.map(|(&(offset, len), _)| ByteRange::new(offset, len)).any(|held| {
                #[cfg(test)]
                self.compared.set(self.compared.get() + 1);
                held.overlaps(range)
            })
        })
    }
}

impl State {
    fn is_clear(&self, range: ByteRange) -> bool {
        #[cfg(test)]
        self.looks.set(self.looks.get() + 1);
        self.held.count < self.full && !self.held.overlaps(range)
    }

    /// Lets go of one range; takes out those whose ranges are clear now. Where the set was not full these overlap the range.
    fn release(&mut self, range: ByteRange) -> Vec<Waker> {
        let was_full = self.held.count >= self.full;
        self.held.remove(range);
        let concerned = |waiting: &ByteRange| was_full || waiting.overlaps(range);
        let clear =
            self.waiting.iter().filter(|(_, (waiting, _))| concerned(waiting) && self.is_clear(*waiting));
        let tickets: Vec<u64> = clear.map(|(ticket, _)| *ticket).collect();
        let taken = tickets.into_iter().filter_map(|ticket| self.waiting.remove(&ticket));
        taken.map(|(_, waker)| waker).collect()
    }
}

impl RangeSet {
    /// A set that `full` ranges fill.
    pub fn new(full: usize) -> Self {
        let state = State {
            full,
            held: Held::default(),
            next: 0,
            waiting: BTreeMap::new(),
            #[cfg(test)]
            looks: std::cell::Cell::new(0),
        };
        Self(Arc::new(Shared { count: AtomicUsize::new(0), state: Mutex::new(state) }))
    }

    /// Holds `range` until the result is dropped.
    pub fn hold(&self, range: ByteRange) -> HeldRange {
        let mut state = self.0.state.lock();
        state.held.add(range);
        self.0.count.store(state.held.count, Ordering::Release);
        HeldRange { set: self.0.clone(), range }
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

    /// Waits until nobody holds a part of `range` and the set is not full.
    pub async fn clear_of(&self, range: ByteRange) {
        let mut wait = Wait { set: &self.0, range, ticket: None };
        poll_fn(|context| wait.poll(context.waker())).await;
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
            let mut state = self.set.state.lock();
            let clear = state.release(self.range);
            self.set.count.store(state.held.count, Ordering::Release);
            clear
        };
        clear.into_iter().for_each(Waker::wake);
    }
}

/// A waiter for a range.
struct Wait<'a> {
    set: &'a Shared,
    range: ByteRange,
    ticket: Option<u64>,
}

impl Wait<'_> {
    fn poll(&mut self, waker: &Waker) -> Poll<()> {
        let mut state = self.set.state.lock();
        if state.is_clear(self.range) {
            return Poll::Ready(());
        }
        if mutant::on("range set: look, then wait") {
            drop(state);
            state = self.set.state.lock();
        }
        let ticket = self.ticket.unwrap_or(state.next);
        state.next += u64::from(self.ticket.replace(ticket).is_none());
        state.waiting.insert(ticket, (self.range, waker.clone()));
        Poll::Pending
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.set.state.lock().waiting.remove(&ticket);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::future::block_on;
    use shuttle::thread;

    fn add(counts: &[AtomicUsize], by: isize) {
        for count in counts {
            count.fetch_add(by as usize, Ordering::SeqCst);
        }
    }

    /// Three are at work on ranges held for them, two of these the same; three others wait until they may begin.
    fn workers() {
        let set = RangeSet::new(3);
        let at_work: Arc<[AtomicUsize; 3]> = Arc::default();
        let range = |first: usize, len: usize| ByteRange::new(first as u64, len as u64);
        let holders = [(0, 2), (0, 2), (1, 2)].map(|(first, len)| {
            add(&at_work[first..first + len], 1);
            let (held, at_work) = (set.hold(range(first, len)), at_work.clone());
            thread::spawn(move || {
                add(&at_work[first..first + len], -1);
                drop(held);
            })
        });
        let waiters = [(0, 1), (1, 1), (0, 3)].map(|(first, len)| {
            let (set, at_work) = (set.clone(), at_work.clone());
            thread::spawn(move || {
                block_on(set.clear_of(range(first, len)));
                let busy = (first..first + len).find(|&byte| at_work[byte].load(Ordering::SeqCst) > 0);
                assert_eq!(busy, None, "the range is held");
            })
        });
        holders.into_iter().chain(waiters).for_each(|thread| thread.join().expect("everybody ends"));
        assert!(set.is_empty() && set.0.state.lock().waiting.is_empty());
    }

    #[test]
    fn who_waits_begins_when_nobody_is_at_work_on_its_range() {
        every_order(20_000, workers);
    }

    fn bites(mutant: &str) {
        finds(mutant, "sync::range_set::threads::who_waits_begins_when_nobody_is_at_work_on_its_range");
    }

    #[test]
    fn the_checker_finds_a_set_that_takes_equal_ranges_for_one() {
        bites("range set: drop what another holds as well");
    }

    #[test]
    fn the_checker_finds_a_set_in_which_a_wait_begins_too_late() {
        bites("range set: look, then wait");
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::Context;

    use super::*;
    use crate::contract::Wakes;
    use crate::random::Random;

    #[test]
    fn only_those_that_find_their_range_clear_are_woken() {
        let set = RangeSet::new(usize::MAX);
        assert!(set.is_empty());
        let (low, high) = (set.hold(ByteRange::new(0, 8)), set.hold(ByteRange::new(4, 8)));
        let mut waits: Vec<_> = [(0, 4), (0, 8), (8, 4), (12, 4)]
            .map(|(offset, len)| {
                (Box::pin(set.clear_of(ByteRange::new(offset, len))), Arc::<Wakes>::default())
            })
            .into();
        let ready: Vec<bool> = waits
            .iter_mut()
            .map(|(wait, wakes)| wait.as_mut().poll(&mut Context::from_waker(&wakes.waker())).is_ready())
            .collect();
        assert_eq!(ready, [false, false, false, true]);
        let woken = || -> Vec<_> { waits.iter().map(|(_, wakes)| wakes.count()).collect() };
        drop(low);
        assert_eq!(woken(), [1, 0, 0, 0], "the second waits for the other range as well");
        drop(high);
        assert_eq!(woken(), [1, 1, 1, 0]);
        assert!(set.is_empty());
    }

    #[test]
    fn while_a_set_is_full_no_range_is_clear() {
        let set = RangeSet::new(2);
        let held = [0, 0].map(|offset| set.hold(ByteRange::new(offset, 0)));
        let mut wait = Box::pin(set.clear_of(ByteRange::new(8, 8)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(set.0.state.lock().waiting.is_empty(), "it was woken");
        assert!(wait.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn a_waiter_that_is_dropped_is_forgotten() {
        let set = RangeSet::new(usize::MAX);
        let _held = set.hold(ByteRange::new(0, 8));
        let mut wait = Box::pin(set.clear_of(ByteRange::new(0, 1)));
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(set.0.state.lock().waiting.len(), 1);
        drop(wait);
        assert!(set.0.state.lock().waiting.is_empty());
    }

    /// Of 16,000 ranges, short ones and long ones, those near another are compared with it.
    #[test]
    fn what_is_held_elsewhere_is_not_compared() {
        let set = RangeSet::new(usize::MAX);
        let short = (0..16_000).map(|at| ByteRange::new(at * 8, 1));
        let long = (0..4).map(|at| ByteRange::new(200_000 + at * 100_000, 50_000));
        let held: Vec<_> = short.chain(long).map(|range| set.hold(range)).collect();
        let (mut bare, mut random) = (Vec::new(), Random(7));
        bare.extend(held.iter().map(|held| held.range));
        for _ in 0..2000 {
            let range = ByteRange::new(random.below(700_000), random.below(100));
            let before = set.0.state.lock().held.compared.get();
            assert_eq!(set.overlaps(range), bare.iter().any(|held| held.overlaps(range)), "{range:?}");
            let compared = set.0.state.lock().held.compared.get() - before;
            assert!(compared <= 20, "{range:?} is compared with {compared} others");
        }
        drop(held);
        assert!(!set.overlaps(ByteRange::new(0, u64::MAX)) && set.is_empty());
    }

    #[test]
    fn who_waits_for_another_range_is_not_looked_at() {
        let set = RangeSet::new(usize::MAX);
        let last = set.hold(ByteRange::new(1000, 1));
        let others: Vec<_> = (0..1000).map(|at| set.hold(ByteRange::new(at, 1))).collect();
        let mut waits: Vec<_> = (0..1000).map(|_| Box::pin(set.clear_of(ByteRange::new(1000, 1)))).collect();
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_pending()));
        let looks = || set.0.state.lock().looks.get();
        let before = looks();
        drop(others);
        assert_eq!(looks(), before);
        drop(last);
        assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_ready()));
    }
}
