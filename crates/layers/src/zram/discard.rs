//! Freeing slots, and telling which are in use.
//!
//! A range is walked by the pages of slots that are in use, so that discarding terabytes of nothing costs nothing. Long walks are cut
//! into slices: a discard or a zeroing yields in between, a question about extents is answered as far as one slice goes.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::{Answer, ByteRange, Extent, Kind, Op, Reply, Request, Submission, mutant};

use super::device::{Core, Count};
use super::page::{PAGE, slots};
use super::slots::mark::Slot;
use super::work::{self, Slice};

pub(super) fn submit(core: &Arc<Core>, request: Request) -> Submission {
    let (first, count) = slots(request.range);
    let keeps_room = request.flags.no_hole || mutant::on("zram: zeroes keep their room");
    if request.op == Op::WriteZeroes && keeps_room {
        return Answer::pending(write_zero_words(core.clone(), request));
    }
    core.count(Count::NotifyFree, count);
    let mut left = first..first + count;
    core.free_some(&mut left);
    if left.is_empty() || mutant::on("zram: end a discard after its first slice") {
        return Answer::Done(request.answer(Ok(())));
    }
    let core = core.clone();
    Answer::pending(async move {
        while !left.is_empty() {
            core.env.sleep(Duration::ZERO).await;
            core.free_some(&mut left);
        }
        request.answer(Ok(()))
    })
}

/// `WriteZeroes` that keeps the range allocated: a same-filled page of zero in each slot. Waits for memory as a write does.
async fn write_zero_words(core: Arc<Core>, request: Request) -> Reply {
    let (first, count) = slots(request.range);
    core.count(Count::PagesWritten, count);
    let (mut index, mut relief) = (first, core.relief());
    loop {
        let (stored, result) = core.zero_some(index..first + count);
        index += stored;
        assert!(index <= first + count, "{stored} zeroes, up to slot {index} of {first} + {count}");
        if stored > 0 {
            relief.progress();
        }
        match result {
            Ok(()) if index == first + count => return request.answer(Ok(())),
            Ok(()) => core.env.sleep(Duration::ZERO).await,
            Err(kind) if !core.relieve(kind, &mut relief).await => {
                core.count(Count::FailedWrites, 1);
                return request.answer(Err(kind));
            }
            Err(_) => {}
        }
    }
}

impl Core {
    /// Frees slots of `left` for one slice, and leaves the rest of the range there.
    fn free_some(&self, left: &mut Range<u64>) {
        let mut slice = Slice::new();
        while !left.is_empty() && !slice.is_over() {
            left.start = match self.table.next_slots(left.clone()) {
                Some(slots) => self.free_slots(slots, &mut slice),
                None => left.end,
            };
        }
    }

    /// Frees `slots`, which lie in one page, as many as the slice is good for; returns the first slot after them.
    fn free_slots(&self, slots: Range<u64>, slice: &mut Slice) -> u64 {
        let (start, end) = (slots.start, slots.end.min(slots.start + slice.room_for(work::SLOT)));
        let freed = self.clear(start..end);
        assert!(freed <= end - start, "{freed} slots of {start}..{end} were in use");
        slice.spend(work::LOOK + work::SLOT * freed as u32);
        if mutant::on("zram: discard a page too many") {
            self.clear(end..end + 1);
        }
        end
    }

    /// Puts zeroes into the slots of `range` for one slice; returns how many.
    fn zero_some(&self, range: Range<u64>) -> (u64, Result<(), Kind>) {
        let (mut slice, now) = (Slice::new(), self.seconds());
        for index in range.clone() {
            if slice.is_over() {
                return (index - range.start, Ok(()));
            }
            slice.spend(work::SLOT);
            if let Err(kind) = self.publish(index, Slot::Same(0), now) {
                return (index - range.start, Err(kind));
            }
        }
        (range.end - range.start, Ok(()))
    }

    /// Frees every slot, in slices; the end is waited for.
    pub(super) async fn free_all(&self) -> Result<(), Kind> {
        let mut all = 0..u64::MAX / 2;
        while !all.is_empty() {
            self.go_on()?;
            self.free_some(&mut all);
            self.env.give_way(true).await;
        }
        Ok(())
    }
}

/// What the start of `range` holds, as far as one slice of work goes: the client asks on from there.
pub(super) fn extents(core: &Core, range: ByteRange, count_max: usize) -> Vec<Extent> {
    let (first, count) = slots(range);
    let (end, mut at, mut list, mut slice) = (first + count, first, Vec::new(), Slice::new());
    while at < end && !slice.is_over() && list.len() <= count_max {
        let slots = core.table.next_slots(at..end).unwrap_or(end..end);
        Extent::hole((slots.start - at) * PAGE as u64).append_to(&mut list);
        at = slots.end;
        if !slots.is_empty() {
            slice.spend(core.table.look(slots, |slot| nature(slot).append_to(&mut list)));
        }
    }
    list.truncate(count_max);
    list
}

fn nature(slot: Slot) -> Extent {
    let len = PAGE as u64;
    match slot {
        Slot::Empty if mutant::on("zram: say that a freed page is stored") => {
            Extent { len, hole: false, zero: true }
        }
        Slot::Empty => Extent::hole(len),
        Slot::Same(word) => Extent { len, hole: false, zero: word == 0 },
        Slot::Stored(..) | Slot::Deferred(_) | Slot::Spilled(_) | Slot::Lost => Extent::stored(len),
    }
}
