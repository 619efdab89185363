//! What a device promises of whole blocks: holes, and contents after a crash.

use std::borrow::Cow;

use spillway_core::SECTOR;

use super::Model;
use super::event::{Number, Said, Violation};
use super::sector::{Allowed, Sector, Since, Version};
use crate::payload;

impl Model {
    /// The disk below was asked to change these sectors just now, first sectors and counts. What it changes while a client writes to
    /// the block is taken for that write, in place, of which a crash may leave a mixture; anything else, as a copy of what is kept
    /// above, changes nothing that the device shows.
    pub fn changes_below(&mut self, changed: &[(u64, u64)]) {
        let Some(block) = self.whole else { return };
        for block in changed.iter().flat_map(|&(first, count)| blocks_of(first, count, block)) {
            if self.haunted.contains(&block) || self.is_being_written(block) {
                self.mixed.insert(block);
            }
        }
    }

    fn is_being_written(&self, number: u64) -> bool {
        let block = self.whole.unwrap_or(1);
        self.writes.values().any(|write| blocks_of(write.first, write.count, block).contains(&number))
    }

    /// Whether no request to one of these sectors is in flight, and none that was withdrawn may be under way.
    pub fn is_quiet(&self, first: u64, count: u64) -> bool {
        let apart = |at: u64, len: u64| first + count <= at || at + len <= first;
        let loose = |sector: &Sector| sector.now.iter().any(|version| version.loose);
        self.writes.values().all(|write| apart(write.first, write.count))
            && self.reads.values().all(|read| apart(read.first, read.allowed.len() as u64))
            && !self.touched.range(first..first + count).any(|(_, sector)| loose(sector))
    }

    /// A write to these sectors may go on though nobody waits for it.
    pub(super) fn haunt(&mut self, first: u64, count: u64) {
        if let Some(block) = self.whole {
            self.haunted.extend(blocks_of(first, count, block));
        }
    }

    /// Blocks that a crash leaves as they are have nothing under way in place.
    pub(super) fn forget_mixtures(&mut self) {
        let Some(block) = self.whole else { return };
        let touched = &self.touched;
        self.mixed.retain(|number| {
            !touched.range(number * block..(number + 1) * block).all(|(_, sector)| sector.is_certain())
        });
    }

    /// Looks for mixtures in what was read of whole blocks to which nothing was written since the last crash.
    pub(super) fn judge_blocks(&self, first: u64, bytes: &[u8]) -> Result<(), Violation> {
        let Some(block) = self.whole.filter(|_| !self.losing) else { return Ok(()) };
        let blocks = (first..).step_by(block as usize).zip(bytes.chunks_exact((block * SECTOR) as usize));
        for (first, bytes) in blocks.filter(|(first, _)| first.is_multiple_of(block)) {
            let untouched = self.touched.range(first..first + block).next().is_none();
            if untouched || self.mixed.contains(&(first / block)) {
                continue;
            }
            let sectors: Vec<Cow<'_, Sector>> = (first..first + block).map(|at| self.look_up(at)).collect();
            if sectors.iter().all(|sector| sector.since != Since::Write) {
                judge_block(first, &sectors, bytes)?;
            }
        }
        Ok(())
    }

    fn look_up(&self, sector: u64) -> Cow<'_, Sector> {
        self.touched.get(&sector).map_or_else(|| Cow::Owned(self.untouched(sector)), Cow::Borrowed)
    }

    /// Sectors of the blocks that lie whole between `first` and `end`, on a device that frees exactly.
    pub(super) fn whole_blocks(&self, first: u64, end: u64) -> std::ops::Range<u64> {
        let Some(block) = self.frees else { return end..end };
        let start = first.next_multiple_of(block);
        let last = end / block * block;
        if start < last { start..last } else { end..end }
    }

    /// Blocks of `range` that may take room now, of so many sectors each.
    pub(super) fn blocks_taken(&self, range: std::ops::Range<u64>, block: u64) -> u64 {
        let taken = self.touched.range(range).filter(|(_, sector)| sector.takes_room());
        let (count, _) = taken
            .map(|(sector, _)| sector / block)
            .fold((0, None), |(count, last), block| (count + u64::from(last != Some(block)), Some(block)));
        count
    }

    /// Most blocks that may have taken room at any moment since `since`, on a device that frees exactly.
    pub fn blocks_taken_since(&self, since: Number) -> u64 {
        let block = self.frees.expect("only a device that frees exactly is asked");
        let freed = self.freed.iter().rev().take_while(|(time, _)| *time > since);
        self.blocks_taken(0..self.size.now, block) + freed.map(|(_, count)| count).sum::<u64>()
    }
}

impl Sector {
    /// A crash leaves one content of it.
    fn is_certain(&self) -> bool {
        let [first, others @ ..] = &self.crash[..] else { return false };
        !first.wrong && others.iter().all(|version| version.value == first.value && !version.wrong)
    }

    /// What is said of a block, sector by sector from `first` on: a hole only where all of it may have been freed, and data only where
    /// some of it may not.
    pub(super) fn judge_hole(first: u64, allowed: &[Allowed], said: &[Said]) -> Result<(), Violation> {
        let may_be = |allowed: &Allowed, wanted| {
            allowed.holes.iter().any(|hole| hole.is_none_or(|hole| hole == wanted))
        };
        let hole = said[0].hole;
        let right = match hole {
            true => allowed.iter().all(|allowed| may_be(allowed, true)),
            false => allowed.iter().any(|allowed| may_be(allowed, false)),
        };
        if right && said.iter().all(|sector| sector.hole == hole) {
            return Ok(());
        }
        let words = if hole { "a hole, and holds something" } else { "no hole, and was freed" };
        Err(Violation(format!("the block at sector {first} is said to be {words}")))
    }
}

/// The blocks of `block` sectors that these sectors lie in.
fn blocks_of(first: u64, count: u64, block: u64) -> std::ops::Range<u64> {
    first / block..(first + count).div_ceil(block)
}

/// Whether a block, read from sector `first` on, is what it was at one moment.
fn judge_block(first: u64, sectors: &[Cow<'_, Sector>], bytes: &[u8]) -> Result<(), Violation> {
    let seen: Vec<Vec<&Version>> = (first..)
        .zip(sectors)
        .zip(bytes.chunks_exact(SECTOR as usize))
        .map(|((at, sector), chunk)| {
            let holds = |version: &&Version| version.wrong || payload::holds(version.value, at, chunk);
            sector.now.iter().filter(holds).collect()
        })
        .collect();
    // A sector that holds what it must not is reported elsewhere.
    if seen.iter().any(Vec::is_empty) {
        return Ok(());
    }
    for (at, new) in (first..).zip(&seen) {
        for ((other, old), sector) in (first..).zip(&seen).zip(sectors) {
            if new.iter().all(|new| old.iter().all(|old| missed(new, old, sector).is_some())) {
                let between = missed(new[0], old[0], sector).expect("just found");
                let [new, old, between] =
                    [new[0], old[0], between].map(|version| payload::name(version.value));
                return Err(Violation(format!(
                    "a mixture: sector {at} holds {new}, and sector {other} of its block {old}, which {between} had replaced"
                )));
            }
        }
    }
    Ok(())
}

/// The version of a sector that was there before `new`, or with it, and after `old` had ended.
fn missed<'a>(new: &Version, old: &Version, sector: &'a Sector) -> Option<&'a Version> {
    let between = |version: &&Version| {
        let before_new = version.write == new.write || version.ended_before(new.begin);
        version.done && before_new && old.ended_before(version.begin)
    };
    sector.now.iter().filter(|_| old.done).find(between)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Change, End, Loss};
    use crate::payload::{ZERO, value};

    const DONE: End = End::Done { durable: false };

    /// A write of the first two sectors.
    fn write(model: &mut Model, number: u64, end: End) {
        let write = model.begin_write(0, 2, Change::To(value(number, 1)));
        model.end_write(write, end);
    }

    /// A read of `count` sectors, of which the first two hold writes `first` and `second`.
    fn look(model: &mut Model, count: u64, first: u64, second: u64) -> Result<(), Violation> {
        let (mut bytes, read) = (vec![0; (count * SECTOR) as usize], model.begin_read(0, count));
        for (sector, number) in [first, second].into_iter().enumerate() {
            let value = if number == 0 { ZERO } else { value(number, 1) };
            payload::fill(value, sector as u64, &mut bytes[sector * 512..][..512]);
        }
        model.end_read(read, Some(&bytes))
    }

    /// What a look after a crash says of a block of `count` sectors, of which two are written as `story` has it and hold writes
    /// `first` and `second`.
    fn looked_of(count: u64, story: impl Fn(&mut Model), first: u64, second: u64) -> Result<(), Violation> {
        let mut model = Model::new(count * SECTOR, true).keeping_whole(Some(count));
        story(&mut model);
        model.crash(Loss::All);
        look(&mut model, count, first, second)
    }

    fn looked(story: impl Fn(&mut Model), first: u64, second: u64) -> Result<(), Violation> {
        looked_of(2, story, first, second)
    }

    #[test]
    fn after_a_crash_a_block_is_what_it_was_at_one_moment() {
        let two = |model: &mut Model| (1..3).for_each(|number| write(model, number, DONE));
        for (first, second) in [(0, 0), (1, 1), (2, 2)] {
            looked(two, first, second).unwrap();
        }
        for (first, second) in [(0, 1), (1, 0), (1, 2), (2, 0)] {
            looked(two, first, second).unwrap_err();
        }
        let together = |model: &mut Model| {
            let writes = [1, 2].map(|number| model.begin_write(0, 2, Change::To(value(number, 1))));
            writes.into_iter().for_each(|write| model.end_write(write, DONE));
        };
        looked(together, 1, 2).expect("one of them in parts of the other: nothing came in between");
        let in_part = |model: &mut Model| {
            write(model, 1, DONE);
            let write = model.begin_write(0, 1, Change::To(value(2, 1)));
            model.end_write(write, End::Failed);
        };
        looked(in_part, 2, 1).unwrap();
        looked(in_part, 2, 0).expect_err("the second write began after the first had ended");
    }

    #[test]
    fn what_a_crash_may_have_undone_before_anybody_looked_is_not_missed() {
        let twice = |looks: bool| {
            move |model: &mut Model| {
                write(model, 1, DONE);
                model.crash(Loss::All);
                if looks {
                    look(model, 2, 1, 1).unwrap();
                }
                let write = model.begin_write(0, 1, Change::To(value(2, 1)));
                model.end_write(write, DONE);
            }
        };
        looked(twice(false), 2, 0)
            .expect("the first write was lost, and half a block written over what came back");
        looked(twice(false), 2, 1).unwrap();
        looked(twice(true), 2, 1).unwrap();
        looked(twice(true), 2, 0).expect_err("the first write was there");
    }

    #[test]
    fn a_sector_that_was_never_written_is_a_part_of_its_block() {
        let story = |model: &mut Model| (1..3).for_each(|number| write(model, number, DONE));
        looked_of(3, story, 2, 2).unwrap();
        looked_of(3, story, 2, 0).expect_err("the third sector is one that nobody wrote");
    }

    #[test]
    fn what_is_changed_below_for_a_client_is_excused_until_one_content_is_durable() {
        let in_place = |model: &mut Model| {
            write(model, 1, DONE);
            let second = model.begin_write(0, 2, Change::To(value(2, 1)));
            model.changes_below(&[(0, 1)]);
            model.end_write(second, DONE);
        };
        looked(in_place, 2, 0).expect("written in place below");
        let copied = |model: &mut Model| {
            (1..3).for_each(|number| write(model, number, DONE));
            model.changes_below(&[(0, 2)]);
        };
        looked(copied, 2, 0).expect_err("a copy, of what nobody has flushed");
        let late = |model: &mut Model| {
            write(model, 1, DONE);
            write(model, 2, End::Withdrawn);
            model.changes_below(&[(0, 2)]);
        };
        looked(late, 2, 0).expect("a write that nobody waits for goes on");
        let flushed = |model: &mut Model| {
            in_place(model);
            let flush = model.begin_flush();
            model.end_flush(flush, DONE).unwrap();
            (3..5).for_each(|number| write(model, number, DONE));
        };
        looked(flushed, 4, 2).expect_err("what went in place is durable, and what follows did not");
        let unflushed = |model: &mut Model| {
            in_place(model);
            (3..5).for_each(|number| write(model, number, DONE));
        };
        looked(unflushed, 2, 1).expect("still not durable");
        let seen = |model: &mut Model| {
            in_place(model);
            model.crash(Loss::All);
            look(model, 2, 2, 0).unwrap();
            (3..5).for_each(|number| write(model, number, DONE));
        };
        looked(seen, 4, 0).expect_err("what the power cut left is what there is");
    }
}
