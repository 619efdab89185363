//! What is clear, who is woken, and who goes first.

use std::future::Future;
use std::task::Context;

use super::*;
use crate::block_device::contract::Wakes;
use crate::random::Random;

#[test]
fn only_those_that_find_their_range_clear_are_woken() {
    let set = RangeSet::new(usize::MAX);
    assert!(set.is_empty());
    let (low, high) = (set.hold(ByteRange::new(0, 8)), set.hold(ByteRange::new(4, 8)));
    let mut waits: Vec<_> = [(0, 4), (0, 8), (8, 4), (12, 4)]
        .map(|(offset, len)| (Box::pin(set.clear_of(ByteRange::new(offset, len))), Arc::<Wakes>::default()))
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
    let wakes = Arc::<Wakes>::default();
    let waker = wakes.waker();
    let mut context = Context::from_waker(&waker);
    assert!(wait.as_mut().poll(&mut context).is_pending());
    drop(held);
    assert_eq!(wakes.count(), 1, "it was woken");
    assert!(wait.as_mut().poll(&mut context).is_ready());
}

#[test]
fn a_waiter_that_is_dropped_is_forgotten() {
    let set = RangeSet::new(usize::MAX);
    let _held = set.hold(ByteRange::new(0, 8));
    let mut wait = Box::pin(set.clear_of(ByteRange::new(0, 1)));
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(set.0.state.lock().line.len(), 1);
    drop(wait);
    assert_eq!(set.0.state.lock().line.len(), 0);
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
    let looks = || set.0.state.lock().held.looks.get();
    let before = looks();
    drop(others);
    assert_eq!(looks(), before);
    drop(last);
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut context).is_ready()));
}

/// A future, and who polls it.
struct Polled<F> {
    future: std::pin::Pin<Box<F>>,
    wakes: Arc<Wakes>,
}

impl<F: Future> Polled<F> {
    fn new(future: F) -> Self {
        Self { future: Box::pin(future), wakes: Arc::default() }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        self.future.as_mut().poll(&mut Context::from_waker(&self.wakes.waker()))
    }

    fn ready(&mut self) -> F::Output {
        let Poll::Ready(output) = self.poll() else { panic!("it waits") };
        output
    }
}

const RANGE: ByteRange = ByteRange::new(0, 8);

#[test]
fn a_range_is_held_only_after_the_turns_that_came_before() {
    let set = RangeSet::new(usize::MAX);
    let held = set.hold(RANGE);
    let mut turn = set.line_up(ByteRange::new(4, 1));
    let mut late = Polled::new(set.hold_in_turn(RANGE));
    assert!(late.poll().is_pending());
    assert!(Polled::new(turn.clear()).poll().is_pending());
    drop(held);
    assert!(late.poll().is_pending() && set.is_empty(), "the owner of the turn has not looked");
    Polled::new(turn.clear()).ready();
    assert!(late.poll().is_pending() && late.wakes.count() == 0, "nor has it done what it came for");
    drop(turn);
    assert_eq!(late.wakes.count(), 1);
    let _held = late.ready();
    assert!(set.overlaps(RANGE) && set.0.state.lock().line.len() == 0);
}

#[test]
fn turns_elsewhere_and_later_ones_are_in_nobodys_way_and_equal_ranges_are_held_together() {
    let set = RangeSet::new(usize::MAX);
    let _elsewhere = set.line_up(ByteRange::new(8, 8));
    let mut first = set.line_up(ByteRange::new(0, 1));
    let mut waits = [RANGE, RANGE].map(|range| Polled::new(set.hold_in_turn(range)));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()));
    let mut later = set.line_up(ByteRange::new(1, 1));
    Polled::new(later.clear()).ready();
    Polled::new(first.clear()).ready();
    drop(first);
    let held = waits.each_mut().map(Polled::ready);
    let mut again = Polled::new(later.clear());
    assert!(again.poll().is_pending(), "what came before it is held");
    drop(held);
    assert_eq!(again.wakes.count(), 1);
    again.ready();
}

/// It meets each of those that came before it once.
#[test]
fn a_turn_that_has_to_wait_again_is_still_before_those_that_came_after_it() {
    let set = RangeSet::new(usize::MAX);
    let first = set.line_up(ByteRange::new(0, 1));
    let mut before = Polled::new(set.hold_in_turn(RANGE));
    assert!(before.poll().is_pending());
    let mut turn = set.line_up(RANGE);
    let mut after = Polled::new(set.hold_in_turn(RANGE));
    assert!(after.poll().is_pending());
    drop(first);
    let before = before.ready();
    let mut clear = Polled::new(turn.clear());
    assert!(clear.poll().is_pending());
    drop(before);
    assert!(after.poll().is_pending());
    clear.ready();
    drop(clear);
    drop(turn);
    after.ready();
}

#[test]
fn who_leaves_the_line_lets_those_behind_go_on() {
    let set = RangeSet::new(usize::MAX);
    let _held = set.hold(RANGE);
    let turns = [1, 2].map(|at| set.line_up(ByteRange::new(at, 1)));
    let mut waits = [0, 1].map(|at| Polled::new(set.hold_in_turn(ByteRange::new(at, 2))));
    let mut gone = Polled::new(set.hold_in_turn(RANGE));
    assert!(waits.iter_mut().all(|wait| wait.poll().is_pending()) && gone.poll().is_pending());
    drop(gone);
    let [one, two] = turns;
    drop(one);
    assert_eq!(waits.each_ref().map(|wait| wait.wakes.count()), [1, 0], "the second waits for both");
    drop(two);
    assert_eq!(waits.each_ref().map(|wait| wait.wakes.count()), [1, 1]);
    let _held = waits.each_mut().map(Polled::ready);
    assert_eq!(set.0.state.lock().line.len(), 0);
}

/// One who holds a range alone, or waits for that. It looks once it comes, and when it was woken.
struct Alone<F> {
    range: ByteRange,
    wait: Polled<F>,
    looks: usize,
    held: Option<HeldRange>,
}

impl<F: Future<Output = HeldRange>> Alone<F> {
    fn new(range: ByteRange, hold: F) -> Self {
        Self { range, wait: Polled::new(hold), looks: 0, held: None }
    }

    fn waits(&mut self) -> bool {
        if self.held.is_none() && self.looks <= self.wait.wakes.count() {
            self.looks = self.wait.wakes.count() + 1;
            if let Poll::Ready(held) = self.wait.poll() {
                self.held = Some(held);
            }
        }
        self.held.is_none()
    }
}

/// Each begins as soon as none that came before overlaps it, beside a list of them. Some go without having begun.
#[test]
fn who_holds_a_range_alone_waits_for_those_before_and_for_no_other() {
    let mut random = Random(1);
    for _ in 0..500 {
        let set = RangeSet::new(usize::MAX);
        let mut present = Vec::new();
        for _ in 0..60 {
            if random.below(2) == 0 || present.is_empty() {
                let start = random.below(20);
                let range = ByteRange::new(start, 1 + random.below(20 - start));
                present.push(Alone::new(range, set.hold_alone(range)));
            } else {
                present.remove(random.below(present.len() as u64) as usize);
            }
            for at in 0..present.len() {
                let range = present[at].range;
                let behind = present[..at].iter().any(|before| before.range.overlaps(range));
                assert_eq!(present[at].waits(), behind, "{range:?}");
            }
        }
        drop(present);
        assert!(set.is_empty() && set.0.state.lock().line.len() == 0);
    }
}

/// Two hold the same ranges without end: the next of one comes before the last of the other is over.
#[test]
fn a_large_range_is_held_alone_once_those_that_came_before_it_are_over() {
    let set = RangeSet::new(usize::MAX);
    let alone = |offset, len| Polled::new(set.hold_alone(ByteRange::new(offset, len)));
    let first = [10, 50].map(|at| alone(at, 1).ready());
    let mut large = alone(0, 64);
    assert!(large.poll().is_pending());
    let mut next = [10, 50].map(|at| alone(at, 1));
    assert!(next.iter_mut().all(|next| next.poll().is_pending()), "a later one begins before it");
    let _apart = alone(64, 1).ready();
    drop(first);
    let large = large.ready();
    assert!(next.iter_mut().all(|next| next.poll().is_pending()));
    drop(large);
    let _held = next.each_mut().map(Polled::ready);
}

/// Else ranges elsewhere would keep it full for ever.
#[test]
fn a_range_that_would_fill_the_set_waits_for_every_turn() {
    let set = RangeSet::new(2);
    let held = [8, 9].map(|at| set.hold(ByteRange::new(at, 1)));
    let mut turn = set.line_up(ByteRange::new(0, 1));
    let mut late = Polled::new(set.hold_in_turn(ByteRange::new(8, 1)));
    let mut clear = Polled::new(turn.clear());
    assert!(late.poll().is_pending() && clear.poll().is_pending());
    drop(held);
    assert!(late.poll().is_pending());
    clear.ready();
    drop(clear);
    drop(turn);
    late.ready();
}
