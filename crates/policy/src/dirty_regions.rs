//! Which regions of a device have dirty blocks, since when, and which is written back next.
//!
//! Write-back goes up the device, region by region, so that the device below gets sorted and long writes; what is past its deadline
//! goes first. All that is dirty in a region is taken at once, and a region is written back by one batch at a time: so what is dirtied
//! meanwhile is known to be newer than the batch.

mod tree;

use std::collections::BTreeMap;
use std::ops::Range;

use tree::{FAILED, LANDED, Node, Tree, WRITING};

/// A region, by its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionNumber(pub u64);

/// When something became dirty: a number that grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Later than anything.
    pub const MAX: Self = Self(u64::MAX);
}

/// A batch, by the order of taking; 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(u64);

/// Whether a region is dirty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionState {
    /// Nothing of it is dirty or being written back.
    Clean,
    /// Some of it is dirty, and can be taken.
    Dirty,
    /// It is being written back by this batch.
    Writing(BatchNumber),
}

/// How a batch ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The device below has all of it.
    Landed,
    /// The device below refused some of it.
    Failed,
    /// It was given up: what is below is not known.
    Withdrawn,
}

/// A batch that has a region.
#[derive(Clone, Debug)]
struct Writing {
    number: BatchNumber,
    /// When the first block became dirty after the batch was taken.
    again: Option<Stamp>,
}

/// The regions that are not clean.
#[derive(Clone, Debug, Default)]
pub struct DirtyRegions {
    /// With the stamp of the first of what is not below yet.
    regions: Tree,
    /// Those of them that batches have.
    writing: BTreeMap<RegionNumber, Writing>,
    blocks: u64,
    taken: BatchNumber,
}

impl DirtyRegions {
    /// Bytes that are taken for each region, at most; a batch under way takes a place beside that.
    pub const BYTES_A_REGION: u64 = Tree::BYTES_EACH;

    /// Bytes that are taken for regions that there are not, at most.
    pub const BYTES_SPARE: u64 = Tree::BYTES_SPARE;

    /// `blocks` of `region` have become dirty at `stamp`.
    pub fn dirtied(&mut self, region: RegionNumber, blocks: u64, stamp: Stamp) {
        if blocks == 0 {
            return;
        }
        self.blocks += blocks;
        let node = match self.regions.get_mut(region) {
            Some(node) => node,
            None => self.regions.insert(region, stamp),
        };
        if node.has(WRITING) {
            writing(&mut self.writing, region).again.get_or_insert(stamp);
        }
        add(node, blocks);
    }

    /// `blocks` of `region` are not dirty any more, and were not written back.
    pub fn dropped(&mut self, region: RegionNumber, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let node = self.regions.get_mut(region).expect("a region with dirty blocks is known");
        subtract(node, blocks);
        self.blocks -= blocks;
        if node.blocks > 0 {
            return;
        }
        if node.has(WRITING) {
            writing(&mut self.writing, region).again = None;
        } else {
            self.regions.remove(region);
        }
    }

    /// The first region from `from` on that can be taken, with something that became dirty before `before`.
    pub fn next(&self, from: RegionNumber, before: Stamp) -> Option<RegionNumber> {
        self.regions.next(from, before)
    }

    /// All dirty blocks of `region` are taken by a batch, whose number is returned.
    pub fn take(&mut self, region: RegionNumber) -> BatchNumber {
        self.taken.0 += 1;
        let blocks = self.blocks_of(region);
        self.begin(region, blocks, self.taken);
        self.taken
    }

    /// So many dirty blocks of `region` are taken by a batch that has no number: those who wait for a batch wait for another. The other
    /// blocks are as old as they were.
    pub fn take_part(&mut self, region: RegionNumber, blocks: u64) {
        self.begin(region, blocks, BatchNumber::default());
    }

    fn begin(&mut self, region: RegionNumber, blocks: u64, number: BatchNumber) {
        let node = self.regions.get_mut(region).expect("a region that is taken has dirty blocks");
        assert!(!node.has(WRITING) && blocks > 0, "{blocks} of {node:?}");
        subtract(node, blocks);
        self.blocks -= blocks;
        node.set(WRITING, true);
        let again = Some(node.stamp()).filter(|_| node.blocks > 0);
        self.writing.insert(region, Writing { number, again });
    }

    /// The batch that has `region` ends; where it has not landed, so many of its blocks are dirty again that were not dirtied meanwhile.
    pub fn ended(&mut self, region: RegionNumber, end: End, blocks: u64) {
        assert!(end != End::Landed || blocks == 0, "what has landed is not dirty again");
        let Writing { number, again } = self.writing.remove(&region).expect("a batch ends once");
        let node = self.regions.get_mut(region).expect("a region that is written back is known");
        node.set(WRITING, false);
        if number > BatchNumber::default() {
            node.set(LANDED, end == End::Landed);
            node.set(FAILED, end == End::Failed);
        }
        add(node, blocks);
        self.blocks += blocks;
        if node.blocks == 0 {
            return self.regions.remove(region);
        }
        // What has not landed is as old as it was.
        if end == End::Landed {
            let stamp = again.expect("what is dirty became so after the batch was taken");
            self.regions.set_stamp(region, stamp);
        }
    }

    /// The state of `region`.
    pub fn state(&self, region: RegionNumber) -> RegionState {
        match self.regions.get(region) {
            None => RegionState::Clean,
            Some(node) if node.has(WRITING) => RegionState::Writing(self.writing[&region].number),
            Some(_) => RegionState::Dirty,
        }
    }

    /// Whether that batch of `region` has ended, and the last one that has ended landed, as long as the region is not clean.
    pub fn has_landed(&self, region: RegionNumber, number: BatchNumber) -> bool {
        self.last_ended(region, number, LANDED)
    }

    /// Whether that batch of `region` has ended, and the last one that has ended failed, as long as the region is not clean.
    pub fn has_failed(&self, region: RegionNumber, number: BatchNumber) -> bool {
        self.last_ended(region, number, FAILED)
    }

    fn last_ended(&self, region: RegionNumber, number: BatchNumber, how: u64) -> bool {
        let ended = number <= self.taken && self.writing.get(&region).is_none_or(|one| one.number != number);
        ended && self.regions.get(region).is_some_and(|node| node.has(how))
    }

    /// The last batch that was taken.
    pub fn taken(&self) -> BatchNumber {
        self.taken
    }

    /// Dirty blocks of `region` that no batch has.
    pub fn blocks_of(&self, region: RegionNumber) -> u64 {
        self.regions.get(region).map_or(0, |node| node.blocks.into())
    }

    /// When the oldest of what is dirty or being written back became dirty.
    pub fn oldest(&self) -> Option<Stamp> {
        self.regions.oldest()
    }

    /// Dirty blocks that no batch has.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The regions of a range that are not clean, in order.
    pub fn unclean(&self, range: Range<RegionNumber>) -> impl Iterator<Item = RegionNumber> {
        self.regions.within(&range).into_iter().map(Node::region)
    }

    /// Asserts that the regions agree with what is known of all.
    pub fn verify(&self) {
        self.regions.verify();
        let all = self.regions.within(&(RegionNumber(0)..RegionNumber(u64::MAX)));
        assert_eq!(
            all.iter().map(|node| u64::from(node.blocks)).sum::<u64>(),
            self.blocks,
            "blocks are counted"
        );
        let taken = all.iter().filter(|node| node.has(WRITING)).map(|node| node.region());
        assert!(taken.eq(self.writing.keys().copied()), "each batch has its region");
        assert!(all.iter().all(|node| node.blocks > 0 || node.has(WRITING)), "what is clean is not kept");
    }
}

fn writing(all: &mut BTreeMap<RegionNumber, Writing>, region: RegionNumber) -> &mut Writing {
    all.get_mut(&region).expect("a batch has it")
}

fn add(node: &mut Node, blocks: u64) {
    let sum = u64::from(node.blocks) + blocks;
    node.blocks = u32::try_from(sum).expect("a region has less than 2^32 blocks");
}

fn subtract(node: &mut Node, blocks: u64) {
    let left = u64::from(node.blocks).checked_sub(blocks);
    node.blocks = left.expect("no more than is dirty") as u32;
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const REGIONS: u64 = 4;
    const BLOCKS: usize = 3;

    fn at(region: usize) -> RegionNumber {
        RegionNumber(region as u64)
    }

    /// When each block became dirty, and when what a batch has of it did.
    #[derive(Default)]
    struct World {
        dirty: [[Option<Stamp>; BLOCKS]; REGIONS as usize],
        writing: [Option<[Option<Stamp>; BLOCKS]>; REGIONS as usize],
        regions: DirtyRegions,
    }

    impl World {
        fn write(&mut self, region: usize, block: usize, stamp: Stamp) {
            let fresh = self.dirty[region][block].is_none();
            self.dirty[region][block].get_or_insert(stamp);
            self.regions.dirtied(at(region), u64::from(fresh), stamp);
        }

        fn take(&mut self, region: usize) {
            self.regions.take(at(region));
            self.writing[region] = Some(std::mem::take(&mut self.dirty[region]));
        }

        fn take_part(&mut self, region: usize, block: usize) {
            self.regions.take_part(at(region), 1);
            let mut part = [None; BLOCKS];
            part[block] = self.dirty[region][block].take();
            self.writing[region] = Some(part);
        }

        fn end(&mut self, region: usize, landed: bool) {
            let batch = self.writing[region].take().expect("it is written back");
            let mut failed = 0;
            for (dirty, stamp) in self.dirty[region].iter_mut().zip(batch) {
                if let (false, Some(stamp)) = (landed, stamp) {
                    failed += u64::from(dirty.is_none());
                    *dirty = Some(stamp);
                }
            }
            let end = if landed { End::Landed } else { End::Withdrawn };
            self.regions.ended(at(region), end, failed);
        }

        /// The oldest stamp of anything that the device below may not have.
        fn oldest(&self, region: usize) -> Option<Stamp> {
            let batch = self.writing[region].iter().flatten();
            self.dirty[region].iter().chain(batch).filter_map(|stamp| *stamp).min()
        }

        fn check(&self) {
            self.regions.verify();
            let dirty = self.dirty.iter().flatten().filter(|stamp| stamp.is_some()).count();
            assert_eq!(self.regions.blocks(), dirty as u64);
            let oldest = (0..REGIONS as usize).filter_map(|region| self.oldest(region)).min();
            // It may be called older than it is, never younger.
            assert!(self.regions.oldest() <= oldest || oldest.is_none());
            assert_eq!(
                self.regions.oldest().is_none(),
                oldest.is_none() && self.writing.iter().all(Option::is_none)
            );
            for region in 0..REGIONS as usize {
                let (dirty, writing) = (&self.dirty[region], &self.writing[region]);
                let dirty = dirty.iter().any(Option::is_some);
                match self.regions.state(at(region)) {
                    RegionState::Clean => assert!(!dirty && writing.is_none()),
                    RegionState::Dirty => assert!(dirty && writing.is_none()),
                    RegionState::Writing(_) => assert!(writing.is_some()),
                }
                let can_go = dirty && writing.is_none();
                assert_eq!(self.regions.next(at(region), Stamp::MAX) == Some(at(region)), can_go);
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_dirty_is_forgotten_or_called_younger(
            steps in prop::collection::vec((0u8..6, 0..REGIONS as usize, 0..BLOCKS), 1..200),
        ) {
            let mut world = World::default();
            for (now, (kind, region, block)) in (1..).zip(steps) {
                let writing = world.writing[region].is_some();
                match kind {
                    0 | 1 => world.write(region, block, Stamp(now)),
                    2 if !writing && world.dirty[region].iter().any(Option::is_some) => world.take(region),
                    3 if writing => world.end(region, block > 0),
                    5 if !writing && world.dirty[region][block].is_some() => world.take_part(region, block),
                    4 => {
                        let dropped = world.dirty[region][block].take();
                        world.regions.dropped(at(region), u64::from(dropped.is_some()));
                    }
                    _ => {}
                }
                world.check();
            }
        }

        /// Whatever is dirtied meanwhile, what was dirty at a moment is below after each region was written back twice.
        #[test]
        fn writers_do_not_hold_up_who_waits_for_what_is_older(
            writes in prop::collection::vec((0..REGIONS as usize, 0..BLOCKS), 1..40),
        ) {
            let mut world = World::default();
            (0..REGIONS as usize).for_each(|region| world.write(region, 0, Stamp(1)));
            world.take(0);
            let mut writes = writes.into_iter().cycle();
            let mut ends = 0;
            while world.regions.oldest().is_some_and(|oldest| oldest < Stamp(2)) {
                let (region, block) = writes.next().expect("it has no end");
                world.write(region, block, Stamp(2));
                for region in 0..REGIONS as usize {
                    if world.writing[region].is_some() {
                        world.end(region, true);
                        ends += 1;
                    } else if world.regions.next(at(region), Stamp(2)) == Some(at(region)) {
                        world.take(region);
                    }
                }
                prop_assert!(ends <= 2 * REGIONS, "laps without end");
            }
        }
    }

    #[test]
    fn what_is_past_its_deadline_is_found_among_younger_ones() {
        let mut regions = DirtyRegions::default();
        for (region, stamp) in [(5, 9), (3, 8), (7, 2), (1, 9)] {
            regions.dirtied(at(region), 1, Stamp(stamp));
        }
        assert_eq!(regions.next(at(0), Stamp(3)), Some(at(7)));
        assert_eq!(regions.next(at(0), Stamp::MAX), Some(at(1)));
        assert_eq!(regions.next(at(2), Stamp::MAX), Some(at(3)));
        regions.take(at(7));
        assert_eq!(regions.next(at(0), Stamp(3)), None);
        assert_eq!(regions.oldest(), Some(Stamp(2)), "it is not below yet");
    }

    /// Who waits for a batch that has all that is dirty must not take a part for it.
    #[test]
    fn a_part_is_no_batch_to_wait_for_and_leaves_the_rest_as_old_as_it_was() {
        let mut regions = DirtyRegions::default();
        regions.dirtied(at(1), 3, Stamp(5));
        let last = regions.taken();
        regions.take_part(at(1), 2);
        assert!(matches!(regions.state(at(1)), RegionState::Writing(number) if number <= last));
        regions.dirtied(at(1), 1, Stamp(9));
        regions.ended(at(1), End::Landed, 0);
        assert_eq!(
            (regions.state(at(1)), regions.blocks(), regions.oldest()),
            (RegionState::Dirty, 2, Some(Stamp(5)))
        );
        let whole = regions.take(at(1));
        regions.dirtied(at(1), 1, Stamp(9));
        regions.ended(at(1), End::Landed, 0);
        regions.take_part(at(1), 1);
        assert!(regions.has_landed(at(1), whole), "what has landed stays so");
        regions.ended(at(1), End::Landed, 0);
        assert_eq!(regions.state(at(1)), RegionState::Clean);
    }

    #[test]
    fn a_failed_batch_is_as_old_as_it_was() {
        let mut regions = DirtyRegions::default();
        regions.dirtied(at(1), 2, Stamp(5));
        let number = regions.take(at(1));
        regions.dirtied(at(1), 1, Stamp(9));
        regions.ended(at(1), End::Failed, 1);
        assert_eq!((regions.oldest(), regions.blocks()), (Some(Stamp(5)), 2));
        assert_eq!((regions.has_failed(at(1), number), regions.has_landed(at(1), number)), (true, false));
        let later = regions.take(at(1));
        regions.dirtied(at(1), 1, Stamp(11));
        regions.ended(at(1), End::Landed, 0);
        assert!(regions.has_landed(at(1), number) && regions.has_landed(at(1), later));
        assert_eq!((regions.oldest(), regions.taken()), (Some(Stamp(11)), later));
    }
}
