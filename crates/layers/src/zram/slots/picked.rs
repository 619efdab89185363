//! What is said of an object that is moved elsewhere, and of one that was replaced: see `table`.

use spillway_core::mutant;

use super::mark::{Away, Slot};
use crate::zram::codec::CodecIndex;
use crate::zram::limit::Charged;
use crate::zram::pool::cell::{Cell, SlotIndex};

/// An object that a thread has picked: to be published elsewhere, or unpicked.
#[must_use]
pub(crate) struct Picked {
    pub(crate) index: SlotIndex,
    /// What the slot held.
    pub(crate) object: Slot,
}

impl Picked {
    /// The cell of the object.
    pub(crate) fn cell(&self) -> Cell {
        self.object.cell().expect("an object in memory is picked")
    }

    /// What a slot holds that has the same object in `cell`.
    pub(crate) fn moved_to(&self, cell: Cell) -> Slot {
        assert_eq!(cell.len(), self.cell().len(), "an object keeps its length when it moves");
        match self.object {
            Slot::Deferred(_) => Slot::Deferred(cell),
            _ => Slot::Stored(cell, self.codec()),
        }
    }

    /// The codec of the object; any will do for one that is as long as a page.
    pub(crate) fn codec(&self) -> CodecIndex {
        match self.object {
            Slot::Stored(_, codec) => codec,
            _ => CodecIndex::PRIMARY,
        }
    }
}

/// An object that was picked for a batch that goes to the spill file.
pub(crate) struct Gather {
    pub(crate) picked: Picked,
    /// What was charged to `writeback_limit`.
    pub(crate) charged: Option<Charged>,
}

/// Bytes that a batch keeps for each of its objects.
pub(crate) const KEPT_BYTES: usize = size_of::<Option<Gather>>();

/// Whether an object that was read since it was picked is put elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishIf {
    Always,
    /// Not then.
    Untouched,
}

/// What became of a picked object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PickOutcome {
    /// The new object is in the slot.
    InPlace,
    /// The slot was read meanwhile and holds what it held.
    Touched,
    /// The slot was written or freed meanwhile.
    Replaced,
}

/// What a slot held before.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub(crate) index: SlotIndex,
    pub(crate) slot: Slot,
    pub(crate) picked: bool,
    /// The record that was kept of it.
    pub(crate) copy: Option<Away>,
}

impl Replaced {
    /// The cell that the caller frees; that of a picked object is freed by its picker.
    pub(crate) fn to_free(self) -> Option<Cell> {
        self.slot.cell().filter(|_| !self.picked || mutant::on("zram: free what was picked"))
    }
}
