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
//! - After a crash a sector holds one of its versions, and goes on holding it. Where not all disks lost their power, what it holds
//!   may still be lost by a later power cut, until it is flushed.
//! - What a disk stored wrong may read as anything until it is written again; its neighbours may not.
//! - A device that keeps blocks whole shows after a crash what each block held at one moment: no sector of it is newer than another
//!   that was written in between. Where something was written in place below it for a client, it keeps sectors whole only, until one
//!   content of the block is durable.
//! - Where a disk may lose what it has not made durable, a read may return what a crash may leave.
//! - A device that grows has zeroes behind its old end, and is never smaller than a client has seen it.
//! - Of a device that frees exactly, a discard or zeroing frees each block that it covers whole: the block reads as zero, is said to be
//!   a hole, and takes no memory until something is written to it.

mod blocks;
mod event;
mod hosts;
mod sector;
mod size;
mod stopping;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use spillway_core::SECTOR;

use crate::payload::{self, SectorValue, ZERO};
use sector::{Allowed, Sector, Version, flushed, settle};
use size::Size;

pub use event::{Change, End, Loss, Number, Said, Violation};

#[derive(Clone)]
struct OpenWrite {
    first: u64,
    count: u64,
    begin: u64,
    /// What it makes of sectors that nothing else has touched.
    elsewhere: Option<Version>,
}

#[derive(Clone)]
struct OpenRead {
    first: u64,
    begin: u64,
    allowed: Vec<Allowed>,
}

/// What one device may show.
#[derive(Clone)]
pub struct Model {
    /// Sectors that were written; the others hold what they did at the begin.
    touched: BTreeMap<u64, Sector>,
    size: Size,
    /// So many sectors at the begin of the device hold this value, the others zeroes.
    filled: (u64, SectorValue),
    time: u64,
    /// When the machine stopped for the last time.
    stopped: u64,
    /// Sectors of a block, on a device that keeps blocks whole.
    whole: Option<u64>,
    /// Blocks of which a crash may leave a mixture: something in place below may not be durable yet.
    mixed: BTreeSet<u64>,
    /// Blocks that a write whose answer was dropped may still change, until the next crash.
    haunted: BTreeSet<u64>,
    /// Sectors of a block, on a device that frees exactly.
    frees: Option<u64>,
    /// When blocks may have been freed, and how many.
    freed: Vec<(u64, u64)>,
    writes: BTreeMap<Number, OpenWrite>,
    /// When a write of any kind ended for the last time.
    last_end: u64,
    reads: BTreeMap<Number, OpenRead>,
    flushes: BTreeMap<Number, u64>,
    sticky_flush: bool,
    /// When a flush was first seen to have failed.
    flush_failed: Option<u64>,
    /// Answers reach clients in another order than they are given.
    late: bool,
    /// A disk may lose what it has not made durable.
    losing: bool,
    values: Vec<SectorValue>,
    /// What sectors held when the machine stopped, as acknowledged, until they are read.
    acknowledged: BTreeMap<u64, SectorValue>,
    /// Sectors that held something else when they were read after that.
    lost: u64,
    /// Sectors that were found in a state that only a flush that a disk ignored explains.
    excused: u64,
}

impl Model {
    /// A device of `bytes` zeroes. `sticky_flush`: after a flush that failed none succeeds until a restart.
    pub fn new(bytes: u64, sticky_flush: bool) -> Self {
        Self {
            touched: BTreeMap::new(),
            size: Size::new(bytes / SECTOR),
            filled: (0, ZERO),
            time: 1,
            stopped: 0,
            whole: None,
            mixed: BTreeSet::new(),
            haunted: BTreeSet::new(),
            frees: None,
            freed: Vec::new(),
            writes: BTreeMap::new(),
            last_end: 0,
            reads: BTreeMap::new(),
            flushes: BTreeMap::new(),
            sticky_flush,
            flush_failed: None,
            late: false,
            losing: false,
            values: vec![ZERO],
            acknowledged: BTreeMap::new(),
            lost: 0,
            excused: 0,
        }
    }

    /// The same, of which the first `count` sectors hold `value`.
    pub fn with_filled(mut self, count: u64, value: SectorValue) -> Self {
        self.filled = (count, value);
        self.values.push(value);
        self
    }

    /// The same, which frees blocks of so many sectors exactly. It is empty.
    pub fn freeing(mut self, block: u64) -> Self {
        self.frees = Some(block);
        self
    }

    /// The same, which keeps blocks of so many sectors whole.
    pub fn keeping_whole(mut self, block: Option<u64>) -> Self {
        self.whole = block;
        self
    }

    /// Whether a disk may lose what it has not made durable, from now on.
    pub fn set_losing(&mut self, losing: bool) {
        self.losing = losing;
    }

    /// Whether answers reach clients in another order than they are given, from now on.
    pub fn set_late(&mut self, late: bool) {
        self.late = late;
    }

    fn tick(&mut self) -> u64 {
        self.time += 1;
        self.time
    }

    fn at_first(&self, sector: u64) -> SectorValue {
        if sector < self.filled.0 { self.filled.1 } else { ZERO }
    }

    fn touch(&mut self, sector: u64) -> &mut Sector {
        let untouched = self.untouched(sector);
        let (touched, writes) = (&mut self.touched, &self.writes);
        touched.entry(sector).or_insert_with(|| {
            let mut new = untouched;
            let covers = |write: &&OpenWrite| (write.first..write.first + write.count).contains(&sector);
            let open = writes.values().filter(covers).filter_map(|write| write.elsewhere.as_ref());
            open.for_each(|version| new.add(version));
            new
        })
    }

    /// What nothing has touched.
    fn untouched(&self, sector: u64) -> Sector {
        Sector::new(self.at_first(sector), self.frees.map(|_| true))
    }

    fn allowed(&self, sector: u64) -> Allowed {
        match self.touched.get(&sector) {
            Some(sector) => sector.allowed(self.losing),
            None => {
                let holes = vec![self.frees.map(|_| true)];
                Allowed { values: vec![self.at_first(sector)], holes, anything: false }
            }
        }
    }

    /// A disk has stored these sectors wrong.
    pub fn store_wrong(&mut self, first: u64, count: u64) {
        for sector in first..(first + count).min(self.size.asked) {
            self.touch(sector).spoil();
        }
        for read in self.reads.values_mut() {
            let last = read.first + read.allowed.len() as u64;
            for sector in first.max(read.first)..(first + count).min(last) {
                read.allowed[(sector - read.first) as usize].anything = true;
            }
        }
    }

    /// A write of any kind to `count` sectors begins.
    pub fn begin_write(&mut self, first: u64, count: u64, change: Change) -> Number {
        let begin = self.tick();
        let (loose, wrong, excused) = (false, false, false);
        let end = first + count;
        let of = |change| {
            let (value, sure, hole) = match change {
                Change::To(value) => (value, true, Some(false)),
                Change::Zeroed { no_hole } => (ZERO, true, no_hole.then_some(false)),
                Change::Discarded => (ZERO, false, None),
            };
            let hole = hole.filter(|_| self.frees.is_some());
            Version { value, begin, end: None, sure, done: false, loose, excused, wrong, hole, write: begin }
        };
        let (edge, whole) = (of(change), self.whole_blocks(first, end));
        let frees = matches!(change, Change::Zeroed { no_hole: false } | Change::Discarded);
        let inside = match frees && !whole.is_empty() {
            true => Some(Version { hole: Some(true), sure: true, ..edge.clone() }),
            false => None,
        };
        let whole = if inside.is_some() { whole } else { end..end };
        for sector in (first..whole.start).chain(whole.end..end) {
            self.touch(sector).add(&edge);
        }
        if let Some(version) = &inside {
            self.touched.range_mut(whole.clone()).for_each(|(_, sector)| sector.add(version));
        }
        self.show_open_reads(first..end, &whole, &edge, inside.as_ref());
        if !self.values.contains(&edge.value) {
            self.values.push(edge.value);
        }
        self.writes.insert(begin, OpenWrite { first, count, begin, elsewhere: inside });
        begin
    }

    /// Reads in flight may see what begins now.
    fn show_open_reads(
        &mut self,
        range: std::ops::Range<u64>,
        whole: &std::ops::Range<u64>,
        edge: &Version,
        inside: Option<&Version>,
    ) {
        for read in self.reads.values_mut() {
            let end = read.first + read.allowed.len() as u64;
            for sector in range.start.max(read.first)..range.end.min(end) {
                let version = inside.filter(|_| whole.contains(&sector)).unwrap_or(edge);
                read.allowed[(sector - read.first) as usize].add(version);
            }
        }
    }

    /// Whether no other write of any kind was in flight at any moment since the one called `number` began.
    pub fn is_alone(&self, number: Number) -> bool {
        self.writes.len() == 1 && self.writes.contains_key(&number) && self.last_end < number
    }

    /// A write ends.
    pub fn end_write(&mut self, number: Number, end: End) {
        let time = self.tick();
        self.last_end = time;
        let OpenWrite { first, count, begin, elsewhere } = self.writes.remove(&number).expect("it has begun");
        if let (Some(_), Some(block)) = (elsewhere, self.frees) {
            let taken = self.blocks_taken(first..first + count, block);
            self.freed.push((time, taken));
        }
        for (_, sector) in self.touched.range_mut(first..first + count) {
            for version in sector.both().filter(|version| version.write == number) {
                version.end = Some(time);
                version.sure &= matches!(end, End::Done { .. });
                version.done = version.sure;
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
        if end == End::Withdrawn {
            self.haunt(first, count);
        }
        self.forget_mixtures();
    }

    /// Whether some of these sectors were replaced by a write that began after `since`, or none was ever touched.
    pub fn was_replaced_since(&self, first: u64, count: u64, since: Number) -> bool {
        let mut touched = self.touched.range(first..first + count).peekable();
        let new = |version: &Version| version.sure && version.end.is_some() && version.begin > since;
        touched.peek().is_none() || touched.any(|(_, sector)| sector.now.iter().any(new))
    }

    /// An event that is not a request: its moment.
    pub fn moment(&mut self) -> Number {
        self.tick()
    }

    /// A flush begins.
    pub fn begin_flush(&mut self) -> Number {
        let begin = self.tick();
        self.flushes.insert(begin, begin);
        begin
    }

    /// A flush ends. A [`Violation`] where it succeeds after one that failed, on a device that has to remember that.
    pub fn end_flush(&mut self, number: Number, end: End) -> Result<(), Violation> {
        let begin = self.flushes.remove(&number).expect("it has begun");
        let ended = self.tick();
        match end {
            End::Failed => self.flush_failed = Some(self.flush_failed.unwrap_or(ended)),
            End::Withdrawn => {}
            // Where answers are late, one that began before may have succeeded before.
            End::Done { .. }
                if self.sticky_flush && self.flush_failed.is_some_and(|time| !self.late || begin > time) =>
            {
                return Err(Violation("a flush succeeded after one had failed".into()));
            }
            End::Done { .. } => self.touched.values_mut().for_each(|sector| flushed(sector, begin)),
        }
        self.forget_mixtures();
        Ok(())
    }

    /// A read of `count` sectors begins.
    pub fn begin_read(&mut self, first: u64, count: u64) -> Number {
        let begin = self.tick();
        let allowed = (first..first + count).map(|sector| self.allowed(sector)).collect();
        self.reads.insert(begin, OpenRead { first, begin, allowed });
        begin
    }

    /// A read ends with `bytes`, or without any. The [`Violation`] names the first sector that may not hold what was read.
    pub fn end_read(&mut self, number: Number, bytes: Option<&[u8]>) -> Result<(), Violation> {
        let OpenRead { first, begin, allowed } = self.reads.remove(&number).expect("it has begun");
        let Some(bytes) = bytes else { return Ok(()) };
        self.judge_blocks(first, bytes)?;
        for (index, chunk) in bytes.chunks_exact(SECTOR as usize).enumerate() {
            let sector = first + index as u64;
            let Allowed { values, anything, .. } = &allowed[index];
            let found = values.iter().copied().find(|&value| payload::holds(value, sector, chunk));
            let before = self.acknowledged.remove(&sector);
            self.lost += u64::from(before.is_some_and(|value| !payload::holds(value, sector, chunk)));
            self.excuse(sector, found);
            match (found, self.touched.get_mut(&sector)) {
                (Some(value), Some(sector)) if !anything && !self.losing => settle(sector, begin, value),
                (None, _) if !anything => return Err(self.surprise(sector, chunk, values)),
                _ => {}
            }
        }
        self.forget_mixtures();
        Ok(())
    }

    /// What a read of `bytes` from sector `first` on would have to show now. It tells nothing about what is there. Errors as for
    /// [`Self::end_read`].
    pub fn compare(&self, first: u64, bytes: &[u8]) -> Result<(), Violation> {
        for (sector, chunk) in (first..).zip(bytes.chunks_exact(SECTOR as usize)) {
            let Allowed { values, anything, .. } = self.allowed(sector);
            if !anything && !values.iter().any(|&value| payload::holds(value, sector, chunk)) {
                return Err(self.surprise(sector, chunk, &values));
            }
        }
        Ok(())
    }

    /// A look at extents that began as a read ends: what is said of each sector from the first on. The [`Violation`] names the
    /// first of which that cannot be.
    pub fn end_extents(&mut self, number: Number, said: &[Said]) -> Result<(), Violation> {
        let OpenRead { first, allowed, .. } = self.reads.remove(&number).expect("it has begun");
        let wrong = |((_, allowed), said): &((u64, &Allowed), &Said)| {
            said.zero && !allowed.anything && !allowed.values.contains(&ZERO)
        };
        if let Some(((sector, _), _)) = (first..).zip(&allowed).zip(said).find(wrong) {
            return Err(Violation(format!("sector {sector} is said to hold zeroes, and holds data")));
        }
        let Some(block) = self.frees.map(|block| block as usize) else { return Ok(()) };
        let blocks = allowed.chunks_exact(block).zip(said.chunks_exact(block));
        for (sector, (allowed, said)) in (first..).step_by(block).zip(blocks) {
            Sector::judge_hole(sector, allowed, said)?;
        }
        Ok(())
    }

    fn surprise(&self, sector: u64, bytes: &[u8], allowed: &[SectorValue]) -> Violation {
        let mut allowed: Vec<String> = allowed.iter().map(|&value| payload::name(value)).collect();
        allowed.dedup();
        let found = payload::describe(bytes, sector, &self.values, self.sectors());
        Violation(format!("sector {sector} holds {found}; it may hold {}", allowed.join(" or ")))
    }
}
