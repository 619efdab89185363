//! Who waits for a range, in the order of arrival.

use std::collections::BTreeMap;
use std::ops::Range;
use std::task::Waker;

use super::held::HeldRanges;
use crate::block::ByteRange;
use crate::mutant;

/// Turns, whose owners need their ranges clear; and those who want to hold a range, after the turns before theirs.
///
/// A ticket is a place in the order of arrival. Who wants to hold a range waits for one turn at a time: the first in its way. Once that has
/// left it looks at those after it, so that it looks at each turn once.
#[derive(Default)]
pub(super) struct TurnQueue {
    next: u64,
    turns: BTreeMap<u64, Turn>,
    holders: BTreeMap<u64, Holder>,
}

struct Turn {
    range: ByteRange,
    /// Present while its owner waits.
    waker: Option<Waker>,
}

/// One who wants to hold a range.
struct Holder {
    range: ByteRange,
    /// The turn that it waits for.
    behind: u64,
    waker: Waker,
}

impl TurnQueue {
    /// A turn behind everyone else.
    pub(super) fn enter(&mut self, range: ByteRange) -> u64 {
        let ticket = self.next;
        self.next += 1;
        self.turns.insert(ticket, Turn { range, waker: None });
        ticket
    }

    /// The owner of a turn waits from now on, or no longer.
    pub(super) fn set_waiting(&mut self, ticket: u64, waker: Option<&Waker>) {
        let turn = self.turns.get_mut(&ticket).expect("it has not left");
        turn.waker = waker.cloned();
    }

    /// `range` is no longer held: wakers of those whose ranges are clear now. Where the set was not full these overlap the range.
    pub(super) fn take_clear(&mut self, held: &HeldRanges, range: ByteRange, was_full: bool) -> Vec<Waker> {
        let concerned = |turn: &Turn| turn.waker.is_some() && (was_full || turn.range.overlaps(range));
        let clear = self.turns.values_mut().filter(|turn| concerned(turn) && held.is_clear(turn.range));
        clear.filter_map(|turn| turn.waker.take()).collect()
    }

    /// A turn is over: wakers of those who may hold their ranges now.
    pub(super) fn leave(&mut self, ticket: u64, held: &HeldRanges) -> Vec<Waker> {
        let left = self.turns.remove(&ticket);
        assert!(left.is_some(), "a turn leaves once");
        // Its owner may wait for turns itself.
        self.holders.remove(&ticket);
        let crowded = held.is_almost_full();
        let mut free = Vec::new();
        for (&own, holder) in self.holders.iter_mut().filter(|(_, holder)| holder.behind == ticket) {
            match Self::in_the_way(&self.turns, ticket + 1..own, holder.range, crowded) {
                Some(behind) => holder.behind = behind,
                None => free.push(own),
            }
        }
        let taken = free.into_iter().filter_map(|own| self.holders.remove(&own));
        taken.map(|holder| holder.waker).collect()
    }

    /// The first of these turns that overlaps the range; where one more range fills the set, the first of all.
    fn in_the_way(
        turns: &BTreeMap<u64, Turn>,
        tickets: Range<u64>,
        range: ByteRange,
        crowded: bool,
    ) -> Option<u64> {
        if mutant::on("range set: hold without waiting for those before") {
            return None;
        }
        let mut before = turns.range(tickets);
        before.find(|(_, turn)| crowded || turn.range.overlaps(range)).map(|(&ticket, _)| ticket)
    }

    /// The ticket of one who wants to hold `range` and waits; none where no turn is in the way.
    pub(super) fn queue(&mut self, range: ByteRange, held: &HeldRanges, waker: &Waker) -> Option<u64> {
        let ticket = self.next;
        let waits = self.is_behind(ticket, range, held, waker);
        self.next += u64::from(waits);
        waits.then_some(ticket)
    }

    /// Whether one with that ticket who wants to hold `range` waits for a turn before it.
    pub(super) fn is_behind(
        &mut self,
        ticket: u64,
        range: ByteRange,
        held: &HeldRanges,
        waker: &Waker,
    ) -> bool {
        let Some(behind) = Self::in_the_way(&self.turns, 0..ticket, range, held.is_almost_full()) else {
            return false;
        };
        self.holders.insert(ticket, Holder { range, behind, waker: waker.clone() });
        true
    }

    /// Whether one who wants to hold a range still waits.
    pub(super) fn is_queued(&mut self, ticket: u64, waker: &Waker) -> bool {
        let holder = self.holders.get_mut(&ticket);
        holder.map(|holder| holder.waker.clone_from(waker)).is_some()
    }

    /// One who wanted to hold a range no longer does, or may already.
    pub(super) fn forget(&mut self, ticket: u64) {
        self.holders.remove(&ticket);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.turns.len() + self.holders.len()
    }
}
