//! Taking an object out of its cell and putting it elsewhere while clients read and write its page.
//!
//! An object is picked, its bytes are copied out, and the result is published if the slot still names what was picked (see
//! `table`). This file frees what is left over, on every way out: who picks frees.

use spillway_core::mutant;

use crate::zram::codec::CodecIndex;
use crate::zram::device::Core;
use crate::zram::pool::cell::{Cell, Fresh, Scratch, SlotIndex};
use crate::zram::slots::mark::{Away, Mark, Slot};
use crate::zram::slots::picked::{Picked, Published, When};
use crate::zram::slots::table::Table;

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

    /// Has the slot name what was written to the spill file, unless its page was written meanwhile, or read, if that matters; true if it
    /// does.
    pub(crate) fn spill_to(mut self, away: Away, when: When) -> bool {
        let picked = self.picked.take().expect("it is published once");
        let spilled = Slot::Spilled(away);
        let published = self.core.table.publish_changed(picked, spilled, when, Mark::has_left);
        if published != Published::Touched {
            self.free(self.cell);
        }
        published == Published::InPlace
    }

    /// Puts the same object into `fresh`, which is filled with it, unless the slot was written meanwhile.
    pub(crate) fn move_to(self, fresh: Fresh, when: When) -> Published {
        assert_eq!(fresh.cell().len(), self.cell.len(), "an object keeps its length when it moves");
        let moved = self.picked.as_ref().expect("it was not published yet").moved_to(fresh.cell());
        self.put(fresh, moved, |table, picked, object| table.publish(picked, object, when))
    }

    /// Puts what the page was compressed to into its place, unless the slot was written meanwhile. `fresh` is filled with it.
    pub(crate) fn compress_to(self, fresh: Fresh, codec: CodecIndex) -> Published {
        self.recompress_to(fresh, codec, |mark| mark)
    }

    /// The same, of a page that was compressed before; its mark is `changed` then. Reads do not matter.
    pub(crate) fn recompress_to(
        self,
        fresh: Fresh,
        codec: CodecIndex,
        changed: impl FnOnce(Mark) -> Mark,
    ) -> Published {
        let codec =
            if mutant::on("zram: keep the codec of what was recompressed") { self.codec() } else { codec };
        let compressed = Slot::Stored(fresh.cell(), codec);
        self.put(fresh, compressed, |table, picked, object| {
            table.publish_changed(picked, object, When::Always, changed)
        })
    }

    /// The page does not compress: it stays in its cell, unless the slot was written meanwhile.
    pub(crate) fn keep_raw(mut self, codec: CodecIndex) -> Published {
        let picked = self.picked.take().expect("it is published once");
        let published = self.core.table.publish(picked, Slot::Stored(self.cell, codec), When::Always);
        if published == Published::Replaced {
            self.free(self.cell);
        }
        published
    }

    /// Puts `object`, which lies in `fresh`, in place of the one that was picked, and frees what no slot names then.
    fn put(
        mut self,
        fresh: Fresh,
        object: Slot,
        publish: impl FnOnce(&Table, Picked, Slot) -> Published,
    ) -> Published {
        let picked = self.picked.take().expect("it is published once");
        let new = fresh.publish();
        let published = publish(&self.core.table, picked, object);
        let kept = match published {
            Published::InPlace => Some(new),
            Published::Touched => Some(self.cell),
            Published::Replaced => None,
        };
        let forget =
            new.len() < self.cell.len() && mutant::on("zram: forget the raw page of what was compressed");
        let freed = [self.cell, new].into_iter().filter(|cell| kept != Some(*cell));
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
