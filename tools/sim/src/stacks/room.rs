//! Whether a device that keeps everything in memory may refuse a write for want of it.
//!
//! The rule knows nothing of how full the device says that it is. What the clients have written may take, at worst: for each block of
//! it a span of its own with what is known of it, whatever it compresses to; for each page of the table that it touches that page; and
//! for the write itself a span more, and one that objects are moved to. A refusal while that is below the limit
//! is a broken promise: memory that was freed is not free, or is kept where nobody gets it.
//!
//! And a refusal comes after a pass of compaction: where nobody else has written meanwhile, the device is at its own limit then, and
//! still is after another pass.

use std::cell::RefCell;

use spillway_core::size::memparse;
use spillway_core::{Budget, Kind};

use spillway_sim::model::{Model, Number};

/// Most that a block takes: a span of 8 pages, and what is known of it and its 256 cells.
const BLOCK_BYTES: u64 = (32 << 10) + (2 << 10);

/// Most that the table takes for a block: a page of slots.
const SLOTS_BYTES: u64 = 4 << 10;

/// What the table takes of the process's budget with the first slots that are written in two stretches of 512 MiB.
const TABLE_BYTES: u64 = 24 << 10;

/// The span of the write itself and the one that objects are moved to.
const SPARE_BYTES: u64 = 2 * BLOCK_BYTES;

/// What a pass may leave below the limit: memory that is never worth any work, a share of the whole, and what the write needs.
const NOT_WORTH_BYTES: u64 = (256 << 10) + SPARE_BYTES;
const NOT_WORTH_PERMILLE: u64 = 25;

/// What streams may take of a budget after the device was made: four more of lz4's. Those of zstd may take all that is left.
const STREAMS_BYTES: u64 = 96 << 10;

/// What a device may take for other reasons than what it holds.
const BESIDE_BYTES: u64 = STREAMS_BYTES + TABLE_BYTES + SPARE_BYTES;

/// What a device takes at worst for what it holds now.
pub(crate) fn worst(model: &Model) -> u64 {
    model.blocks_taken_since(Number::MAX) * (BLOCK_BYTES + SLOTS_BYTES)
}

/// What so many devices may take beside that.
pub(crate) fn kept(devices: u64) -> u64 {
    devices * BESIDE_BYTES
}

/// What a device may have.
pub struct MemoryRoom {
    /// Of the budget that it shares.
    room: u64,
    /// The system gives no memory at all.
    refused: bool,
    /// Its own limits, and from which moment on.
    limits: RefCell<Vec<(Number, u64)>>,
}

impl MemoryRoom {
    /// For a device that has just been made.
    pub fn new(budget: &Budget, refused: bool) -> Self {
        let room = budget.room().saturating_sub(STREAMS_BYTES + TABLE_BYTES);
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
                let worst = model.blocks_taken_since(begin) * (BLOCK_BYTES + SLOTS_BYTES);
                worst + SPARE_BYTES > self.least_since(begin)
            }
            _ => false,
        }
    }

    /// Whether the system gives no memory.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// Whether a write that began at `begin` may have met a limit of the device's own.
    pub fn is_limited_since(&self, begin: Number) -> bool {
        self.least_since(begin) < self.room || self.refused
    }

    /// What is left below the device's own limit, if that is too much after a refusal of a write that began at `begin`.
    pub fn too_much_left(&self, begin: Number, used: u64) -> Option<u64> {
        let limit = self.least_since(begin);
        let left = limit.saturating_sub(used);
        let own = limit < self.room;
        (own && left > NOT_WORTH_BYTES + limit * NOT_WORTH_PERMILLE / 1000).then_some(left)
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
                let (mut model, room) = (row.model(false), MemoryRoom::new(&row.budget(false), false));
                room.set_limit(model.moment(), limit);
                let write = model.begin_write(0, 8, Change::To(4));
                assert!(!room.may_refuse(Kind::NoSpace, write, &model), "{}: {limit}", row.name);
            }
        }
    }

    #[test]
    fn a_refusal_is_allowed_by_what_was_written_and_the_least_limit_of_its_time() {
        let mut model = Model::new(64 << 12, false).freeing(8);
        let room = MemoryRoom::new(&Budget::new(16 << 20), false);
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

    #[test]
    fn a_refusal_leaves_little_below_the_limit() {
        let room = MemoryRoom::new(&Budget::new(16 << 20), false);
        assert_eq!(room.too_much_left(1, 0), None, "it has no limit of its own");
        room.set_limit(2, "2M");
        assert_eq!(room.too_much_left(3, 1 << 20), Some(1 << 20));
        assert_eq!(room.too_much_left(3, 1800 << 10), None);
        assert_eq!(room.too_much_left(3, 3 << 20), None);
        room.set_limit(4, "4M");
        assert_eq!(room.too_much_left(3, 1800 << 10), None, "it began under the lower one");
        assert_eq!(room.too_much_left(5, 1 << 20), Some(3 << 20));
    }
}
