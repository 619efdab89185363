//! Whether a device that keeps everything in memory may refuse a write for want of it.
//!
//! The rule knows nothing of how full the device says that it is. What the clients have written may take, at worst: for each block of
//! it a span of its own with what is known of it, whatever it compresses to; for each leaf of the table that it touches a page and its
//! place in a map; and for the write itself a span more, and one that objects are moved to. A refusal while that is below the limit
//! is a broken promise: memory that was freed is not free, or is kept where nobody gets it.

use std::cell::RefCell;

use spillway_core::size::memparse;
use spillway_core::{Budget, Kind};

use spillway_sim::model::{Model, Number};

/// Most that a block takes: a span of 8 pages, and what is known of it and its 256 cells.
const BLOCK_BYTES: u64 = (32 << 10) + (2 << 10);

/// Most that the table takes for a block: a leaf, and the growth of a map of leaves.
const LEAF_BYTES: u64 = (4 << 10) + (2 << 10);

/// The span of the write itself and the one that objects are moved to.
const SPARE_BYTES: u64 = 2 * BLOCK_BYTES;

/// What streams may take of a budget after the device was made: four more of lz4's. Those of zstd may take all that is left.
const STREAMS_BYTES: u64 = 96 << 10;

/// What a device may have.
pub struct Room {
    /// Of the budget that it shares.
    room: u64,
    /// The system gives no memory at all.
    refused: bool,
    /// Its own limits, and from which moment on.
    limits: RefCell<Vec<(Number, u64)>>,
}

impl Room {
    /// For a device that has just been made.
    pub fn new(budget: &Budget, refused: bool) -> Self {
        let room = budget.room().saturating_sub(STREAMS_BYTES);
        Self { room, refused, limits: RefCell::new(vec![(0, u64::MAX)]) }
    }

    /// From `moment` on the device's own limit is what `text` says.
    pub fn set_limit(&self, moment: Number, text: &str) {
        let limit = memparse(text).expect("the table has valid limits");
        self.limits.borrow_mut().push((moment, if limit == 0 { u64::MAX } else { limit }));
    }

    /// Whether a write that began at `begin` may fail with `kind` now.
    pub fn may_refuse(&self, kind: Kind, begin: Number, model: &Model) -> bool {
        match kind {
            Kind::OutOfMemory => self.refused,
            Kind::NoSpace => {
                let worst = model.blocks_taken_since(begin) * (BLOCK_BYTES + LEAF_BYTES);
                worst + SPARE_BYTES > self.least_since(begin)
            }
            _ => false,
        }
    }

    /// The least limit at any moment since `begin`.
    fn least_since(&self, begin: Number) -> u64 {
        let limits = self.limits.borrow();
        let before = limits.iter().rposition(|(moment, _)| *moment < begin).unwrap_or(0);
        let least = limits[before..].iter().map(|(_, limit)| *limit).min();
        least.expect("there is a limit from the beginning").min(self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::STACKS;
    use spillway_sim::model::{Change, End};

    const DONE: End = End::Done { durable: false };

    #[test]
    fn every_limit_of_the_table_has_room_for_a_block() {
        for row in STACKS.iter().filter(|row| row.exact) {
            let limits = row.knobs.iter().filter(|(name, _)| *name == "mem_limit");
            for limit in limits.flat_map(|(_, limits)| *limits) {
                let (mut model, room) = (row.model(), Room::new(&row.budget(false), false));
                room.set_limit(model.moment(), limit);
                let write = model.begin_write(0, 8, Change::To(4));
                assert!(!room.may_refuse(Kind::NoSpace, write, &model), "{}: {limit}", row.name);
            }
        }
    }

    #[test]
    fn a_refusal_is_allowed_by_what_was_written_and_the_least_limit_of_its_time() {
        let mut model = Model::new(64 << 12, false).freeing(8);
        let room = Room::new(&Budget::new(16 << 20), false);
        let write = model.begin_write(0, 8 * 8, Change::To(4));
        model.end_write(write, DONE);
        let begin = model.moment();
        assert!(!room.may_refuse(Kind::NoSpace, begin, &model), "16 MiB for 8 blocks");
        room.set_limit(model.moment(), "256K");
        assert!(room.may_refuse(Kind::NoSpace, begin, &model));
        room.set_limit(model.moment(), "0");
        assert!(room.may_refuse(Kind::NoSpace, begin, &model), "it began under the limit");
        room.set_limit(model.moment(), "256K");
        let discard = model.begin_write(0, 8 * 8, Change::Discarded);
        model.end_write(discard, DONE);
        assert!(room.may_refuse(Kind::NoSpace, begin, &model), "it began before the discard had ended");
        let begin = model.moment();
        assert!(!room.may_refuse(Kind::NoSpace, begin, &model), "nothing is left");
        assert!(!room.may_refuse(Kind::OutOfMemory, begin, &model), "the system refuses nothing");
    }
}
