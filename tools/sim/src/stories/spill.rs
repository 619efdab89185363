//! Stacks that spill: what their clients do so that pages leave memory and come back, what goes wrong with the disk, and when an error
//! that it makes may be seen.
//!
//! What lies on the disk is read as it was written, or not at all: anything may go wrong there, and every page has a checksum. An error
//! needs a reason, though. A page that was written after the last write to the disk had begun is in memory, whatever the disk does.

use std::cell::Cell;

use spillway_core::random::Random;
use spillway_core::{ByteRange, Kind, Op, SECTOR};
use spillway_sim::disk::Plan;
use spillway_sim::model::{Model, Number};
use spillway_sim::workload::{Act, Step};

use crate::stacks::others::OTHERS;
use crate::stacks::row::{Row, is_command};

/// Sectors of a page.
const PAGE: u64 = 8;

/// Most rounds of writing and writing back in a phase.
const ROUNDS_MAX: u64 = 6;

/// Most resets of a phase that has some, and most commands that are begun before one.
const RESETS_MAX: u64 = 3;
const COMMANDS_MAX: u64 = 4;

/// Most turns of others in a phase that has others.
const TURNS_MAX: u64 = 4;

/// Boundaries of an opening, about.
const OPENING: u64 = 24;

/// Bytes that a disk takes at least before it may say that it is full: a part of its room.
const ROOM_PART: u64 = 3;

/// Puts rounds into `steps`: a client writes pages, writes back all there are, and mostly reads what it wrote. The first attribute of
/// the row, set to its first value, writes everything back.
pub(crate) fn put_rounds(random: &mut Random, row: &Row, steps: &mut Vec<Step>) {
    let (clients, pages) =
        (steps.iter().map(|step| step.client).max().unwrap_or(0) + 1, row.sectors() / PAGE);
    for _ in 0..random.below(ROUNDS_MAX + 1) {
        let client = random.below(clients.into()) as u8;
        let first = random.below(pages);
        let most = [8, 32, pages][random.below(3) as usize];
        let count = (1 + random.below(most)).min(pages - first);
        let withdraw = (random.below(8) == 0).then(|| random.below(4) as u8);
        let step = |act, withdraw| Step { client, act, first: first * PAGE, count: count * PAGE, withdraw };
        let write = step(Act::Write { look: 1 + random.below(2), fua: false }, None);
        let write_back = step(Act::Set { attribute: 0, value: 0 }, withdraw);
        let read = (random.below(4) > 0).then(|| step(Act::Read, None));
        let at = random.below(steps.len() as u64 + 1) as usize;
        steps.splice(at..at, [write, write_back].into_iter().chain(read));
    }
}

/// Puts turns of others into `steps`: they take memory or leave it, and a client reads all that it has, more than once, and writes.
pub(crate) fn put_turns(random: &mut Random, row: &Row, steps: &mut Vec<Step>) {
    let Some(attribute) = row.knobs.iter().position(|(name, _)| *name == OTHERS) else { return };
    let (clients, pages) =
        (steps.iter().map(|step| step.client).max().unwrap_or(0) + 1, row.sectors() / PAGE);
    let values = row.knobs[attribute].1.len() as u64;
    for _ in 0..random.below(TURNS_MAX + 1) {
        let client = random.below(clients.into()) as u8;
        let step = |act, first, count| Step {
            client,
            act,
            first: first * PAGE,
            count: count * PAGE,
            withdraw: None,
        };
        let first = random.below(pages);
        let write =
            step(Act::Write { look: random.below(4), fua: false }, first, 1 + random.below(pages - first));
        let turn = step(Act::Set { attribute, value: random.below(values) as usize }, 0, 1);
        let reads = vec![step(Act::Read, 0, pages); random.below(4) as usize];
        let at = random.below(steps.len() as u64 + 1) as usize;
        steps.splice(at..at, [turn].into_iter().chain(reads).chain([write]));
    }
}

/// Puts resets into `steps`: a client writes pages, begins commands and mostly waits for none of them, resets the device, which is set up
/// again, and writes and reads.
pub(crate) fn put_resets(random: &mut Random, row: &Row, steps: &mut Vec<Step>) {
    let clients = steps.iter().map(|step| step.client).max().unwrap_or(0) + 1;
    let commands = row.knobs.iter().enumerate().filter(|(_, (name, _))| is_command(name));
    let commands: Vec<(usize, usize)> =
        commands.map(|(attribute, (_, values))| (attribute, values.len())).collect();
    for _ in 0..1 + random.below(RESETS_MAX) {
        let client = random.below(clients.into()) as u8;
        let pages = row.sectors() / PAGE;
        let step = |act, first, count, withdraw| Step { client, act, first, count, withdraw };
        let written = |random: &mut Random| {
            let first = random.below(pages);
            let count = 1 + random.below(pages - first);
            let act = Act::Write { look: random.below(4), fua: false };
            step(act, first * PAGE, count * PAGE, None)
        };
        let mut round = vec![written(random)];
        for _ in 0..random.below(COMMANDS_MAX + 1) {
            let (attribute, values) = commands[random.below(commands.len() as u64) as usize];
            let act = Act::Set { attribute, value: random.below(values as u64) as usize };
            let withdraw = (random.below(4) > 0).then(|| random.below(4) as u8);
            round.push(step(act, 0, 1, withdraw));
        }
        let unheeded = (random.below(3) == 0).then(|| random.below(4) as u8);
        let setup = random.below(row.setups.len() as u64) as usize;
        round.push(step(Act::Reset { setup }, 0, 1, unheeded));
        let (again, all) = (written(random), step(Act::Read, 0, row.sectors(), None));
        round.extend([again, all].into_iter().take(random.below(3) as usize));
        let at = random.below(steps.len() as u64 + 1) as usize;
        steps.splice(at..at, round);
    }
}

/// Of a plan for any disk, that of one which takes many calls to open, and mostly keeps its power.
pub(crate) fn stretch(random: &mut Random, plan: &mut Plan) {
    for fault in &mut plan.faults {
        let most = [6, 24, 96][random.below(3) as usize];
        fault.nth = random.below(most);
    }
    let stays = !plan.alone && random.below(3) > 0;
    plan.cut_at = plan.cut_at.filter(|_| !stays).map(|at| at + random.below(2) * OPENING);
}

/// What is known of the disk of a stack that is open.
pub(crate) struct Spill {
    /// Bytes of the disk.
    bytes: u64,
    /// The disk may give something else than was written, or nothing.
    pub(crate) spoils: bool,
    /// It has pages from the start that no write of this phase has put there.
    kept: bool,
    /// A disk may be one that was not let go in order: it is refused.
    pub(crate) left: bool,
    /// When a write to the disk began for the last time, or soon after.
    last_write: Cell<Number>,
    /// Write-back was limited, or what leaves by itself.
    limited: Cell<bool>,
    held_back: Cell<bool>,
}

impl Spill {
    pub(crate) fn new(bytes: u64, spoils: bool, left: bool) -> Self {
        let (limited, held_back) = (Cell::default(), Cell::default());
        Self { bytes, spoils, kept: false, left, last_write: Cell::default(), limited, held_back }
    }

    /// The same of a disk that keeps pages from phase to phase, or not.
    pub(crate) fn keeping(self, kept: bool) -> Self {
        Self { kept, ..self }
    }

    /// A write to the disk has begun since this was last said.
    pub(crate) fn note_write(&self, model: &mut Model) {
        self.last_write.set(model.moment());
    }

    /// An attribute is about to be set.
    pub(crate) fn note_setting(&self, name: &str, value: &str) {
        if (name, value) == ("writeback_limit_enable", "1") {
            self.limited.set(true);
        }
        if name == "spill_daily_bytes" && value != "0" {
            self.held_back.set(true);
        }
    }

    /// Why a request to `range` may fail that begins now.
    pub(crate) fn doubt(&self, op: Op, range: ByteRange, model: &Model) -> Doubt {
        Doubt { since: self.last_write.get(), needs: self.may_miss(op, range, model) }
    }

    /// Whether a request to `range` that began with this doubt may fail.
    pub(crate) fn may_fail(&self, doubt: Doubt, op: Op) -> bool {
        let reads = matches!(op, Op::Read | Op::Write | Op::WriteZeroes);
        self.spoils && reads && (self.kept || doubt.needs || doubt.since != self.last_write.get())
    }

    /// Whether a request needs a page that may lie on the disk.
    fn may_miss(&self, op: Op, range: ByteRange, model: &Model) -> bool {
        let (first, end) = (range.offset / SECTOR, (range.offset + range.len) / SECTOR);
        let pages = first / PAGE..end.div_ceil(PAGE);
        let whole = |page: u64| page * PAGE >= first && (page + 1) * PAGE <= end;
        let needed = pages.filter(|&page| match op {
            Op::Read => true,
            // Of these the pages at the edges are read.
            Op::Write | Op::WriteZeroes => !whole(page),
            Op::Discard | Op::Flush => false,
        });
        needed
            .map(|page| page * PAGE)
            .any(|page| !model.was_replaced_since(page, PAGE, self.last_write.get()))
    }

    /// Whether pages may stay in memory though a write waits for them to leave, where no disk fails: for a limit, or because the disk found no
    /// room and so many bytes were written to it that this may be so.
    pub(crate) fn may_hold_back(&self, found_none: bool, written: u64) -> bool {
        self.limited.get() || self.held_back.get() || found_none && written > self.bytes / ROOM_PART
    }

    /// Whether an attribute may answer `kind`, where no disk fails, and so many bytes were written to the disk.
    pub(crate) fn may_refuse(&self, name: &str, kind: Kind, written: u64) -> bool {
        match (name, kind) {
            ("writeback", Kind::NoSpace) => written > self.bytes / ROOM_PART,
            ("writeback", Kind::Io) => self.limited.get(),
            // At a limit there may be no room for a page that would be smaller.
            ("recompress", Kind::NoSpace) => true,
            _ => false,
        }
    }
}

/// Whether a request may have needed something of the disk.
#[derive(Clone, Copy)]
pub(crate) struct Doubt {
    since: Number,
    needs: bool,
}
