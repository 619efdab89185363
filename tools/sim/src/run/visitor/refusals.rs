//! What a client may be refused for want of memory, and after an error.

use spillway_core::{Attributes, Kind, Op, Value};
use spillway_layers::stack::Stack;
use spillway_sim::model::{Number, Violation};

use super::Visitor;
use crate::stacks::room::MemoryRoom;
use crate::stories::spill::Spill;

impl Visitor {
    /// After a write that found no memory, made alone since it was the step `alone`, no page is left in memory that could have left.
    pub(crate) fn judge_spilling(&self, alone: Option<u64>) {
        let spill = self.spill.as_ref().filter(|_| !self.faulty);
        let Some(spill) = spill.filter(|_| alone.is_some() && alone == self.steps.alone()) else { return };
        let left = can_leave(self.stack(), spill);
        if left > 0 {
            self.fail(Violation(format!(
                "a write found no memory, but {left} bytes in memory could have left"
            )));
        }
    }

    /// After a write that found no memory, made alone since it was the step `alone`: what all devices of the server hold is the reason, at worst.
    pub(crate) fn judge_sharing(&self, alone: Option<u64>, number: Number) {
        let limited = self.site().room.as_ref().is_none_or(|room| room.is_limited_since(number));
        if limited || self.faulty || alone.is_none() || alone != self.steps.alone() {
            return;
        }
        let left = self.others.can_leave();
        if left > 0 {
            self.fail(Violation(format!(
                "a write found no memory, but {left} bytes of another device could have left"
            )));
        }
        if let Some(left) = self.others.unexplained() {
            self.fail(Violation(format!(
                "a write found no memory, but {left} bytes more than all devices hold can be had"
            )));
        }
    }

    /// The device spills, and can free memory for others.
    pub(crate) fn join_spilling(&self) {
        let Some(spill) = self.spill.clone().filter(|_| !self.faulty) else { return };
        let site = self.site.clone();
        self.others.join_spilling(move || site.get().map_or(0, |site| can_leave(&site.stack, &spill)));
    }

    /// A device that has a size takes no spill file, and goes on with the one that it has.
    pub(crate) fn judge_attaching(&self, stored: Result<(), Kind>) {
        if stored != Err(Kind::Busy) {
            self.fail(Violation(format!("a spill file is attached to a device that has a size: {stored:?}")));
        }
    }

    /// After a write that found no memory, with nobody else about, a pass of compaction makes little room.
    pub(crate) async fn judge_refusal(&self, number: Number) {
        let alone = || self.model.borrow().is_alone(number) && !self.others.may_refuse(Kind::NoSpace);
        let Some(room) = self.site().room.as_ref().filter(|_| alone()) else { return };
        self.compact().await;
        if !alone() {
            return;
        }
        let stack = self.stack();
        let used = stack.get("mem_used_total").ok().and_then(|used| used.number());
        if let Some(left) = room.too_much_left(number, used.expect("it says what it takes")) {
            self.fail(Violation(format!("a write found no memory, but {left} bytes of it can be had")));
        }
    }

    /// Whether a write cache on top has had its first error. A page cache above it goes on to take writes.
    pub(crate) fn has_failed(&self) -> bool {
        let error = |part: &str| self.stack().get(&format!("{part}.error"));
        error("page_cache").is_err() && error("write_cache").is_ok_and(|error| error != Value::None)
    }

    /// What stands behind the error of a request that nothing makes fail: where clients are not told, want of memory.
    pub(crate) fn refusal(&self, op: Op) -> Kind {
        let told = self.network().is_none_or(|network| !network.has_one_error());
        if told || !matches!(op, Op::Write | Op::WriteZeroes) || self.durable && !self.has_no_slabs {
            return Kind::Io;
        }
        let refused = self.site().room.as_ref().is_some_and(MemoryRoom::is_refused);
        if refused || self.has_no_slabs { Kind::OutOfMemory } else { Kind::NoSpace }
    }

    /// Whether a write that began as `number` may have found no memory. A discard takes none, and what has a disk waits for it, where the system
    /// gives any.
    pub(crate) fn may_be_refused(&self, op: Op, kind: Kind, number: Number) -> bool {
        let is_write = matches!(op, Op::Write | Op::WriteZeroes);
        if is_write && self.has_no_slabs && kind == Kind::OutOfMemory {
            return true;
        }
        let takes_memory = is_write && !self.durable;
        let room = self.site().room.as_ref();
        let limited = || room.is_some_and(|room| room.may_refuse(kind, number, &self.model.borrow()));
        takes_memory && (self.others.may_refuse(kind) || limited())
    }
}

/// Bytes in memory that can leave: all objects of a device that has a spill file, unless its disk or a limit holds them back.
fn can_leave(stack: &Stack, spill: &Spill) -> u64 {
    if !stack.show("backing_dev").is_ok_and(|path| path != "none") {
        return 0;
    }
    let count = |name| stack.get(name).ok().and_then(|value| value.number());
    let count = |name| count(name).expect("what spills has this attribute");
    let (full, written) = (count("spill_full") > 0, count("spill_written_bytes"));
    if spill.may_hold_back(full, written) { 0 } else { count("compr_data_size") }
}
