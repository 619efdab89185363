//! What one sector may hold: the versions that a read may return, and those that a crash may leave.

use super::event::{Loss, Number};
use crate::payload::SectorValue;

#[derive(Clone, Debug)]
pub(super) struct Version {
    pub(super) value: SectorValue,
    pub(super) begin: u64,
    /// `None` in flight.
    pub(super) end: Option<u64>,
    /// It replaces others once ended.
    pub(super) sure: bool,
    /// It succeeded and replaced others, whatever came later; unless a crash may have undone it before the last one.
    pub(super) done: bool,
    /// It may still show up or vanish by itself: its answer was dropped.
    pub(super) loose: bool,
    /// It is there only if a disk has ignored a flush: something newer was durable.
    pub(super) excused: bool,
    /// A disk has stored it wrong: a read may return anything.
    pub(super) wrong: bool,
    /// Whether its block is a hole, where that is promised.
    pub(super) hole: Option<bool>,
    pub(super) write: Number,
}

impl Version {
    /// What was written before all else, until `end`, and may be there.
    pub(super) fn old(value: SectorValue, end: u64) -> Self {
        let [sure, done, loose, excused, wrong] = [false; 5];
        Self { value, begin: 0, end: Some(end), sure, done, loose, excused, wrong, hole: None, write: 0 }
    }

    pub(super) fn ended_before(&self, time: u64) -> bool {
        self.end.is_some_and(|end| end < time)
    }
}

/// What the last restart says about what a read finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// It is what is there, and durable.
    PowerCut,
    /// It is what is there, and the next flush makes it durable.
    Kill,
    /// Something was written since.
    Write,
}

#[derive(Clone)]
pub(super) struct Sector {
    pub(super) now: Vec<Version>,
    pub(super) crash: Vec<Version>,
    pub(super) since: Since,
    /// A disk has once stored it wrong.
    pub(super) spoiled: bool,
}

impl Sector {
    pub(super) fn new(value: SectorValue, hole: Option<bool>) -> Self {
        let first = Version { sure: true, done: true, hole, ..Version::old(value, 0) };
        Self { now: vec![first.clone()], crash: vec![first], since: Since::PowerCut, spoiled: false }
    }

    pub(super) fn add(&mut self, version: &Version) {
        self.now.push(version.clone());
        self.crash.push(version.clone());
        self.since = Since::Write;
    }

    /// A disk has stored it wrong.
    pub(super) fn spoil(&mut self) {
        self.both().for_each(|version| version.wrong = true);
        self.spoiled = true;
    }

    /// It may hold something that takes room.
    pub(super) fn takes_room(&self) -> bool {
        self.now.iter().any(|version| version.hole != Some(true))
    }

    pub(super) fn both(&mut self) -> impl Iterator<Item = &mut Version> {
        self.now.iter_mut().chain(&mut self.crash)
    }

    /// What was acknowledged last, where nothing else may show.
    pub(super) fn acknowledged(&self) -> Option<SectorValue> {
        match &self.now[..] {
            [only] if only.sure && only.end.is_some() && !only.loose && !only.wrong => Some(only.value),
            _ => None,
        }
    }

    /// What a read may return.
    pub(super) fn allowed(&self, losing: bool) -> Allowed {
        let crash = self.crash.iter().filter(|_| losing);
        let mut allowed = Allowed::default();
        for version in self.now.iter().chain(crash) {
            allowed.add(version);
            allowed.anything |= version.wrong;
        }
        allowed
    }

    /// The machine has stopped at `time`, after it had at `before`.
    pub(super) fn restart(&mut self, loss: Loss, time: u64, before: u64) {
        for version in self.both() {
            // What no read has shown since the crash before may have been lost in it.
            version.done &= version.end.is_some_and(|end| end >= before);
            version.sure &= loss == Loss::Nothing && version.end.is_some();
            version.end = Some(version.end.unwrap_or(time));
            version.loose = false;
        }
        if loss != Loss::Nothing {
            self.now.clone_from(&self.crash);
        }
        self.since = if loss == Loss::All { Since::PowerCut } else { Since::Kill };
    }
}

/// What a read may return.
#[derive(Clone, Default)]
pub(super) struct Allowed {
    pub(super) values: Vec<SectorValue>,
    pub(super) holes: Vec<Option<bool>>,
    pub(super) anything: bool,
}

impl Allowed {
    pub(super) fn add(&mut self, version: &Version) {
        self.values.push(version.value);
        self.holes.push(version.hole);
    }
}

/// A flush that began at `begin` succeeded.
pub(super) fn flushed(sector: &mut Sector, begin: u64) {
    let covering = sector.crash.iter().filter(|version| version.sure && version.ended_before(begin));
    let Some(latest) = covering.map(|version| version.begin).max() else { return };
    sector.crash.retain(|version| !version.ended_before(latest));
}

/// A read that began at `begin` has shown `value`. That says nothing while writes are in flight, and after those that ended
/// meanwhile.
pub(super) fn settle(sector: &mut Sector, begin: u64, value: SectorValue) {
    let stable = sector.now.iter().all(|version| version.ended_before(begin) && !version.loose);
    if !stable {
        return;
    }
    sector.now.retain(|version| version.value == value);
    match sector.since {
        Since::PowerCut => {
            for version in &mut sector.now {
                (version.end, version.done) = (Some(begin), true);
            }
            sector.crash.clone_from(&sector.now);
        }
        Since::Kill => {
            let there = Version { begin, end: Some(begin), sure: true, done: true, ..sector.now[0].clone() };
            sector.now = vec![there.clone()];
            sector.crash.push(there);
            sector.since = Since::Write;
        }
        Since::Write => {}
    }
}
