//! What a device may show: the reference that every stack is held against. It knows nothing of any stack.
//!
//! For each sector it keeps the versions that a read may return now, and those that may be found after a crash. Time is a
//! counter of events; a version lasts from the begin to the end of its write.
//!
//! - A write that succeeded replaces, for readers, every version that had ended before it began. Writes that overlap in time
//!   replace each other in either order.
//! - A write that failed, was withdrawn or is in flight may show or not. A discard may show as zeroes or not.
//! - A read may return what could be read at any moment between its begin and its end. Once a read has told which of several
//!   versions is there, and nothing is in flight, that is what is there.
//! - A flush that succeeded replaces, for a crash, what the writes that had succeeded before it began replace for readers. A
//!   write with FUA does so for itself.
//! - A flush that failed may have lost what it covered. A device whose flush errors are sticky flushes no more.
//! - After a crash a sector holds one of its versions, and goes on holding it.

use std::collections::BTreeMap;

use spillway_core::SECTOR;

use crate::payload::{self, Value, ZERO};

/// Names an operation that has begun.
pub type Number = u64;

/// What a write does to a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds this value.
    To(Value),
    /// It holds zeroes, or what it held.
    Discarded,
}

/// How a write or flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With success; `durable` for a write with FUA.
    Done {
        /// It had FUA.
        durable: bool,
    },
    /// With an error.
    Failed,
    /// Its answer was dropped.
    Withdrawn,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);

#[derive(Clone, Debug)]
struct Version {
    value: Value,
    begin: u64,
    /// `None` in flight.
    end: Option<u64>,
    /// It replaces others once ended.
    sure: bool,
    /// It may still show up or vanish by itself: its answer was dropped.
    loose: bool,
    write: Number,
}

impl Version {
    fn ended_before(&self, time: u64) -> bool {
        self.end.is_some_and(|end| end < time)
    }
}

#[derive(Clone)]
struct Sector {
    now: Vec<Version>,
    crash: Vec<Version>,
    /// Nothing was written since the crash.
    restarted: bool,
}

impl Sector {
    fn new() -> Self {
        let zero = Version { value: ZERO, begin: 0, end: Some(0), sure: true, loose: false, write: 0 };
        Self { now: vec![zero.clone()], crash: vec![zero], restarted: true }
    }

    fn both(&mut self) -> impl Iterator<Item = &mut Version> {
        self.now.iter_mut().chain(&mut self.crash)
    }
}

struct OpenWrite {
    first: u64,
    count: u64,
    begin: u64,
}

struct OpenRead {
    first: u64,
    begin: u64,
    allowed: Vec<Vec<Value>>,
}

/// What one device may show.
pub struct Model {
    sectors: Vec<Sector>,
    time: u64,
    writes: BTreeMap<Number, OpenWrite>,
    reads: BTreeMap<Number, OpenRead>,
    flushes: BTreeMap<Number, u64>,
    sticky_flush: bool,
    flush_failed: bool,
    values: Vec<Value>,
}

impl Model {
    /// A device of `bytes` zeroes. `sticky_flush`: after a flush that failed none succeeds until a restart.
    pub fn new(bytes: u64, sticky_flush: bool) -> Self {
        Self {
            sectors: vec![Sector::new(); (bytes / SECTOR) as usize],
            time: 1,
            writes: BTreeMap::new(),
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            sticky_flush,
            flush_failed: false,
            values: vec![ZERO],
        }
    }

    /// Sectors of the device.
    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn span(&mut self, first: u64, count: u64) -> &mut [Sector] {
        &mut self.sectors[first as usize..(first + count) as usize]
    }

    /// A write of any kind to `count` sectors begins.
    pub fn begin_write(&mut self, first: u64, count: u64, change: Change) -> Number {
        let begin = self.tick();
        let (value, sure) = match change {
            Change::To(value) => (value, true),
            Change::Discarded => (ZERO, false),
        };
        let version = Version { value, begin, end: None, sure, loose: false, write: begin };
        for sector in self.span(first, count) {
            sector.now.push(version.clone());
            sector.crash.push(version.clone());
            sector.restarted = false;
        }
        for read in self.reads.values_mut() {
            let end = read.first + read.allowed.len() as u64;
            for sector in first.max(read.first)..(first + count).min(end) {
                read.allowed[(sector - read.first) as usize].push(value);
            }
        }
        if !self.values.contains(&value) {
            self.values.push(value);
        }
        self.writes.insert(begin, OpenWrite { first, count, begin });
        begin
    }

    /// A write ends.
    pub fn end_write(&mut self, number: Number, end: End) {
        let time = self.tick();
        let OpenWrite { first, count, begin } = self.writes.remove(&number).expect("it has begun");
        for sector in self.span(first, count) {
            for version in sector.both().filter(|version| version.write == number) {
                version.end = Some(time);
                version.sure &= matches!(end, End::Done { .. });
                version.loose = end == End::Withdrawn;
            }
            let sure = sector.now.iter().any(|version| version.write == number && version.sure);
            if sure {
                sector.now.retain(|version| !version.ended_before(begin));
            }
            if sure && end == (End::Done { durable: true }) {
                sector.crash.retain(|version| !version.ended_before(begin));
            }
        }
    }

    /// A flush begins.
    pub fn begin_flush(&mut self) -> Number {
        let begin = self.tick();
        self.flushes.insert(begin, begin);
        begin
    }

    /// A flush ends.
    pub fn end_flush(&mut self, number: Number, end: End) -> Result<(), Violation> {
        let begin = self.flushes.remove(&number).expect("it has begun");
        match end {
            End::Failed => self.flush_failed = true,
            End::Withdrawn => {}
            End::Done { .. } if self.flush_failed && self.sticky_flush => {
                return Err(Violation("a flush succeeded after one had failed".into()));
            }
            End::Done { .. } => self.sectors.iter_mut().for_each(|sector| flushed(sector, begin)),
        }
        Ok(())
    }

    /// A read of `count` sectors begins.
    pub fn begin_read(&mut self, first: u64, count: u64) -> Number {
        let begin = self.tick();
        let values = |sector: &mut Sector| sector.now.iter().map(|version| version.value).collect();
        let allowed = self.span(first, count).iter_mut().map(values).collect();
        self.reads.insert(begin, OpenRead { first, begin, allowed });
        begin
    }

    /// A read ends with `bytes`, or without any.
    pub fn end_read(&mut self, number: Number, bytes: Option<&[u8]>) -> Result<(), Violation> {
        let OpenRead { first, begin, allowed } = self.reads.remove(&number).expect("it has begun");
        let Some(bytes) = bytes else { return Ok(()) };
        for (index, chunk) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let sector = first + index as u64;
            let found = allowed[index].iter().copied().find(|&value| payload::holds(value, sector, chunk));
            let Some(value) = found else { return Err(self.surprise(sector, chunk, &allowed[index])) };
            settle(&mut self.sectors[sector as usize], begin, value);
        }
        Ok(())
    }

    fn surprise(&self, sector: u64, bytes: &[u8], allowed: &[Value]) -> Violation {
        let mut allowed: Vec<String> = allowed.iter().map(|&value| payload::name(value)).collect();
        allowed.dedup();
        let found = payload::describe(bytes, sector, &self.values, self.sectors());
        Violation(format!("sector {sector} holds {found}; it may hold {}", allowed.join(" or ")))
    }

    /// The power is gone, and with it all that was in flight.
    pub fn crash(&mut self) {
        let time = self.tick();
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
        self.flush_failed = false;
        for sector in &mut self.sectors {
            for version in &mut sector.crash {
                version.end = Some(version.end.unwrap_or(time));
                version.sure = false;
                version.loose = false;
            }
            sector.now.clone_from(&sector.crash);
            sector.restarted = true;
        }
    }
}

/// A flush that began at `begin` succeeded.
fn flushed(sector: &mut Sector, begin: u64) {
    let covering = sector.crash.iter().filter(|version| version.sure && version.ended_before(begin));
    let Some(latest) = covering.map(|version| version.begin).max() else { return };
    sector.crash.retain(|version| !version.ended_before(latest));
}

/// A read that began at `begin` has shown `value`. That says nothing while writes are in flight, and after those that ended
/// meanwhile.
fn settle(sector: &mut Sector, begin: u64, value: Value) {
    let stable = sector.now.iter().all(|version| version.ended_before(begin) && !version.loose);
    if !stable {
        return;
    }
    sector.now.retain(|version| version.value == value);
    if sector.restarted {
        sector.crash.clone_from(&sector.now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::value;

    const DONE: End = End::Done { durable: false };
    const DURABLE: End = End::Done { durable: true };

    fn write(model: &mut Model, number: u64, end: End) {
        let write = model.begin_write(0, 1, Change::To(value(number, 1)));
        model.end_write(write, end);
    }

    fn may_be(model: &mut Model, number: u64) -> bool {
        let mut bytes = [0; 512];
        payload::fill(if number == 0 { ZERO } else { value(number, 1) }, 0, &mut bytes);
        let sector = model.sectors[0].clone();
        let read = model.begin_read(0, 1);
        let allowed = model.end_read(read, Some(&bytes)).is_ok();
        model.sectors[0] = sector;
        allowed
    }

    fn choices(model: &mut Model) -> Vec<u64> {
        (0..8).filter(|&number| may_be(model, number)).collect()
    }

    #[test]
    fn writes_replace_what_ended_before_them() {
        let mut model = Model::new(512, true);
        write(&mut model, 1, DONE);
        assert_eq!(choices(&mut model), [1]);
        let second = model.begin_write(0, 1, Change::To(value(2, 1)));
        let third = model.begin_write(0, 1, Change::To(value(3, 1)));
        assert_eq!(choices(&mut model), [1, 2, 3]);
        model.end_write(second, DONE);
        model.end_write(third, DONE);
        assert_eq!(choices(&mut model), [2, 3]);
        write(&mut model, 4, End::Failed);
        write(&mut model, 5, End::Withdrawn);
        assert_eq!(choices(&mut model), [2, 3, 4, 5]);
        write(&mut model, 6, DONE);
        assert_eq!(choices(&mut model), [6]);
    }

    #[test]
    fn a_crash_goes_back_to_what_was_flushed_or_durable() {
        let mut model = Model::new(512, true);
        write(&mut model, 1, DURABLE);
        write(&mut model, 2, DONE);
        let flush = model.begin_flush();
        write(&mut model, 3, DONE);
        model.end_flush(flush, DONE).unwrap();
        write(&mut model, 4, End::Failed);
        model.crash();
        assert_eq!(choices(&mut model), [2, 3, 4]);
        write(&mut model, 5, DURABLE);
        model.crash();
        assert_eq!(choices(&mut model), [5]);
    }

    #[test]
    fn a_read_settles_what_is_there_until_the_next_write() {
        let mut model = Model::new(512, true);
        write(&mut model, 1, End::Failed);
        let (mut bytes, read) = ([0; 512], model.begin_read(0, 1));
        payload::fill(value(1, 1), 0, &mut bytes);
        model.end_read(read, Some(&bytes)).unwrap();
        assert_eq!(choices(&mut model), [1]);
        model.crash();
        assert_eq!(choices(&mut model), [0, 1], "it was never flushed");
        let read = model.begin_read(0, 1);
        model.end_read(read, Some(&bytes)).unwrap();
        model.crash();
        assert_eq!(choices(&mut model), [1], "after a crash the medium has it");
    }

    #[test]
    fn a_read_may_see_what_was_there_at_any_moment_of_it() {
        let mut model = Model::new(512, true);
        write(&mut model, 1, DONE);
        let reads = [model.begin_read(0, 1), model.begin_read(0, 1), model.begin_read(0, 1)];
        write(&mut model, 2, DONE);
        let mut bytes = [0; 512];
        for (read, number, allowed) in [(reads[0], 1, true), (reads[1], 2, true), (reads[2], 3, false)] {
            payload::fill(value(number, 1), 0, &mut bytes);
            assert_eq!(model.end_read(read, Some(&bytes)).is_ok(), allowed, "write {number}");
            assert_eq!(choices(&mut model), [2], "a late read settles nothing");
        }
    }

    #[test]
    fn discards_may_show_and_flush_errors_stick() {
        let mut model = Model::new(512, true);
        write(&mut model, 1, DONE);
        let discard = model.begin_write(0, 1, Change::Discarded);
        model.end_write(discard, DURABLE);
        assert_eq!(choices(&mut model), [0, 1]);
        let [first, second] = [model.begin_flush(), model.begin_flush()];
        model.end_flush(first, End::Failed).unwrap();
        assert!(model.end_flush(second, DONE).is_err());
    }
}
