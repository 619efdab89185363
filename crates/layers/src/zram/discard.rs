//! Freeing slots, and telling which are in use.
//!
//! A range is walked by the leaves that exist in it, so that discarding terabytes of nothing costs nothing; many slots in
//! use are freed in turns.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Answer, ByteRange, Extent, Kind, Op, Reply, Request, Submission, mutant};

use super::table::{LEAF_SLOTS, Slot};
use super::{Core, Count, PAGE, slots};

/// Leaves that are freed on the caller's stack.
const LEAVES_AT_ONCE: usize = 4;

/// Slots that one call of [`extents`] looks at: a client may ask about terabytes.
const EXTENT_SLOTS_MAX: u64 = 1 << 24;

pub(super) fn submit(core: &Arc<Core>, request: Request) -> Submission {
    let (first, count) = slots(request.range);
    if request.op == Op::WriteZeroes && request.flags.no_hole {
        return Answer::pending(write_zero_words(core.clone(), request));
    }
    core.count(Count::NotifyFree, count);
    let range = first..first + count;
    let leaves = core.table.leaves_within(leaves_of(&range));
    if leaves.len() > LEAVES_AT_ONCE {
        return Answer::pending(free_in_turns(core.clone(), request, leaves));
    }
    leaves.into_iter().for_each(|leaf| core.free_slots(leaf, &range));
    Answer::Done(request.answer(Ok(())))
}

async fn free_in_turns(core: Arc<Core>, request: Request, leaves: Vec<u64>) -> Reply {
    let (first, count) = slots(request.range);
    for turn in leaves.chunks(LEAVES_AT_ONCE) {
        turn.iter().for_each(|&leaf| core.free_slots(leaf, &(first..first + count)));
        core.env.sleep(Duration::ZERO).await;
    }
    request.answer(Ok(()))
}

/// `WriteZeroes` that keeps the range allocated: a same-filled page of zero in each slot.
async fn write_zero_words(core: Arc<Core>, request: Request) -> Reply {
    let (first, count) = slots(request.range);
    core.count(Count::PagesWritten, count);
    for index in first..first + count {
        if (index - first) % LEAF_SLOTS == LEAF_SLOTS - 1 {
            core.env.sleep(Duration::ZERO).await;
        }
        if let Err(kind) = core.publish(index, Slot::Same(0), core.seconds()) {
            core.count(Count::FailedWrites, 1);
            return request.answer(Err(kind));
        }
    }
    request.answer(Ok(()))
}

fn leaves_of(range: &Range<u64>) -> Range<u64> {
    range.start / LEAF_SLOTS..range.end.div_ceil(LEAF_SLOTS)
}

impl Core {
    /// Frees the slots of one leaf that lie in `range`.
    fn free_slots(&self, leaf: u64, range: &Range<u64>) {
        let start = range.start.max(leaf * LEAF_SLOTS);
        let end = range.end + u64::from(mutant::on("zram: discard a page too many"));
        for index in start..end.min((leaf + 1) * LEAF_SLOTS) {
            let freed: Result<(), Kind> = self.publish(index, Slot::Empty, 0);
            freed.expect("emptying a slot takes no memory");
        }
    }

    /// Frees every slot.
    pub(super) fn free_all(&self) {
        let all = 0..u64::MAX / LEAF_SLOTS / 2;
        for leaf in self.table.leaves_within(all) {
            self.free_slots(leaf, &(0..u64::MAX));
        }
    }
}

pub(super) fn extents(core: &Core, range: ByteRange, count_max: usize) -> Vec<Extent> {
    let (first, count) = slots(range);
    let end = first + count.min(EXTENT_SLOTS_MAX);
    let mut list = Vec::new();
    let mut at = first;
    for leaf in core.table.leaves_within(leaves_of(&(first..end))) {
        hole(&mut list, at, (leaf * LEAF_SLOTS).max(at));
        let start = first.max(leaf * LEAF_SLOTS);
        at = end.min((leaf + 1) * LEAF_SLOTS);
        (start..at).for_each(|index| nature(core.table.lock(index).get()).append_to(&mut list));
        if list.len() > count_max {
            list.truncate(count_max);
            return list;
        }
    }
    hole(&mut list, at, end);
    list.truncate(count_max);
    list
}

fn hole(list: &mut Vec<Extent>, from: u64, to: u64) {
    Extent::hole((to - from) * PAGE as u64).append_to(list);
}

fn nature(slot: Slot) -> Extent {
    let len = PAGE as u64;
    match slot {
        Slot::Empty => Extent::hole(len),
        Slot::Same(word) => Extent { len, hole: false, zero: word == 0 },
        Slot::Stored(_) => Extent::stored(len),
    }
}
