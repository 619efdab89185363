//! Taking an object out of its cell and putting it elsewhere while clients read and write its page.
//!
//! An object is picked, its bytes are copied out, and the result is published if the slot still names what was picked (see
//! `table`). This file frees what is left over, on every way out: who picks frees.

use spillway_core::mutant;

use crate::zram::codec::CodecIndex;
use crate::zram::device::Core;
use crate::zram::pool::cell::{Cell, Scratch, SlotIndex};
use crate::zram::slots::mark::{Mark, Slot};
use crate::zram::slots::picked::{PickOutcome, Picked, PublishIf};

/// An object that this thread has picked. Dropped, it stays where it is.
pub(crate) struct Pick<'a> {
    core: &'a Core,
    cell: Cell,
    /// Absent once it was published.
    picked: Option<Picked>,
}

impl Core {
    /// Picks the object that slot `index` holds, if it is `wanted` and no thread has picked it, and copies it out.
    pub(crate) fn pick<'s>(
        &self,
        index: SlotIndex,
        wanted: impl FnOnce(Mark, Cell) -> bool,
        scratch: &'s mut Scratch,
    ) -> Option<(Pick<'_>, &'s [u8])> {
        let (picked, bytes) = self
            .table
            .pick(index, wanted, |locked, cell| locked.copy_to(&self.pool, &self.pages, cell, scratch))?;
        Some((Pick::resume(self, picked), bytes))
    }

    /// The same, copied to the start of `room`, which takes a page.
    pub(crate) fn pick_into(
        &self,
        index: SlotIndex,
        wanted: impl FnOnce(Mark, Cell) -> bool,
        room: &mut [u8],
    ) -> Option<Pick<'_>> {
        let (picked, ()) = self.table.pick(index, wanted, |locked, cell| {
            locked.copy_into(&self.pool, &self.pages, cell, &mut room[..cell.len()]);
        })?;
        Some(Pick::resume(self, picked))
    }
}

impl<'a> Pick<'a> {
    /// Goes on with an object that is picked, by who else has none of it.
    pub(crate) fn resume(core: &'a Core, picked: Picked) -> Self {
        Self { core, cell: picked.cell(), picked: Some(picked) }
    }

    /// Leaves the object picked: the caller sees to it that it is resumed.
    pub(crate) fn pause(mut self) -> Picked {
        self.picked.take().expect("it was not published yet")
    }

    /// The cell of the object.
    pub(crate) fn cell(&self) -> Cell {
        self.cell
    }

    /// The codec of the object.
    pub(crate) fn codec(&self) -> CodecIndex {
        self.picked.as_ref().expect("it was not published yet").codec()
    }

    /// The same object in another cell.
    pub(crate) fn moved_to(&self, cell: Cell) -> Slot {
        self.picked.as_ref().expect("it was not published yet").moved_to(cell)
    }

    /// Has the slot hold `new`, with its mark `changed`, unless its page was written meanwhile, or read, if that matters. Frees what no slot
    /// holds then: the object that was picked, or that of `new`, or both.
    pub(crate) fn publish(
        mut self,
        new: Slot,
        when: PublishIf,
        changed: impl FnOnce(Mark) -> Mark,
    ) -> PickOutcome {
        let picked = self.picked.take().expect("it is published once");
        let published = self.core.table.publish(picked, new, when, changed);
        let kept = match published {
            PickOutcome::InPlace => new.cell(),
            PickOutcome::Touched => Some(self.cell),
            PickOutcome::Replaced => None,
        };
        // It may stay in its cell, and become something else.
        let fresh = new.cell().filter(|cell| *cell != self.cell);
        let forget = fresh.is_some_and(|cell| cell.len() < self.cell.len())
            && mutant::on("zram: forget the raw page of what was compressed");
        let freed = [self.cell].into_iter().chain(fresh).filter(|cell| kept != Some(*cell));
        freed.skip(usize::from(forget)).for_each(|cell| self.free(cell));
        published
    }

    /// Leaves the object where it is, with its mark `changed`.
    pub(crate) fn stay(mut self, changed: impl FnOnce(Mark) -> Mark) {
        self.unpick(changed);
    }

    fn unpick(&mut self, changed: impl FnOnce(Mark) -> Mark) {
        let Some(picked) = self.picked.take() else { return };
        if !self.core.table.unpick(picked, changed)
            && !mutant::on("zram: forget what was picked and replaced")
        {
            self.free(self.cell);
        }
    }

    fn free(&self, cell: Cell) {
        self.core.pool.free(&self.core.pages, cell);
    }
}

impl Drop for Pick<'_> {
    fn drop(&mut self) {
        self.unpick(|mark| mark);
    }
}
