//! A disk that keeps what a device stores: all of it is there after a stop, and after a cut all of it or nothing.

use spillway_core::{Attributes, SECTOR, Value};

use super::House;
use crate::stacks::row::Left;

/// What a device says of a disk that has kept its content.
const KEPT: &str = "pages that it stored before it was stopped";

impl House {
    /// Whether the content is there, as the device says: it is held against what was stored, or against zeroes.
    pub(super) fn find_kept(&self) {
        let (Some(_), stack) = (self.left, self.visitor.stack()) else { return };
        let bytes = stack.device.geometry().size;
        let keeps = stack.get("keep").is_ok_and(|keep| keep == Value::Switch(true));
        self.leaves.set(keeps.then_some(Left { bytes, sure: false }));
        if stack.notes.iter().any(|note| note.contains(KEPT)) {
            return;
        }
        let mut fresh = self.row.model(false);
        fresh.set_late(self.network.is_some());
        fresh.ask_for(bytes / SECTOR);
        self.visitor.model.replace(fresh);
    }

    /// Whether the stack was opened.
    pub(crate) fn is_open(&self) -> bool {
        self.visitor.site.get().is_some()
    }

    /// What a stop leaves, in order or not.
    pub(super) fn note_left(&self) {
        let bytes = self.visitor.stack().device.geometry().size;
        let sure = self.stopped.get() && !self.visitor.faulty && !self.force;
        self.leaves.set(self.leaves.get().map(|_| Left { bytes, sure }));
    }
}
