//! Which regions of a device have dirty blocks, since when, and which is written back next.
//!
//! Write-back goes up the device, region by region, so that the device below gets sorted and long writes; what is past its deadline
//! goes first. All that is dirty in a region is taken at once, and a region is written back by one batch at a time: so what is dirtied
//! meanwhile is known to be newer than the batch.

mod region;
mod tree;

use std::collections::BTreeMap;
use std::ops::Range;

pub use region::{RegionNumber, Stamp};
use tree::{FAILED, LANDED, RegionNode, RegionTree, WRITING};

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
pub enum BatchEnd {
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
    regions: RegionTree,
    /// Those of them that batches have.
    writing: BTreeMap<RegionNumber, Writing>,
    blocks: u64,
    taken: BatchNumber,
}

impl DirtyRegions {
    /// Bytes that are taken for each region, at most; a batch under way takes a place beside that.
    pub const BYTES_A_REGION: u64 = RegionTree::BYTES_EACH;

    /// Bytes that are taken for regions that there are not, at most.
    pub const BYTES_SPARE: u64 = RegionTree::BYTES_SPARE;

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

    /// The first region from `from` on that can be taken, with something that became dirty before `before`.
    pub fn next(&self, from: RegionNumber, before: Stamp) -> Option<RegionNumber> {
        self.regions.next(from, before)
    }

    /// Whether something of `region` became dirty before `before`, and its last batch has not failed.
    pub fn is_due(&self, region: RegionNumber, before: Stamp) -> bool {
        self.regions.get(region).is_some_and(|node| node.stamp() < before && !node.has(FAILED))
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

    /// The same by a batch that has a number: all is in it that those need below who wait for one.
    pub fn take_wanted(&mut self, region: RegionNumber, blocks: u64) -> BatchNumber {
        self.taken.0 += 1;
        self.begin(region, blocks, self.taken);
        self.taken
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
    pub fn ended(&mut self, region: RegionNumber, end: BatchEnd, blocks: u64) {
        assert!(end != BatchEnd::Landed || blocks == 0, "what has landed is not dirty again");
        let Writing { number, again } = self.writing.remove(&region).expect("a batch ends once");
        let node = self.regions.get_mut(region).expect("a region that is written back is known");
        node.set(WRITING, false);
        if number > BatchNumber::default() {
            node.set(LANDED, end == BatchEnd::Landed);
            node.set(FAILED, end == BatchEnd::Failed);
        }
        add(node, blocks);
        self.blocks += blocks;
        if node.blocks == 0 {
            return self.regions.remove(region);
        }
        // What has not landed is as old as it was.
        if end == BatchEnd::Landed {
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

    /// The regions of a range that are not clean, in order; each is looked for when it is asked for.
    pub fn unclean(&self, range: Range<RegionNumber>) -> impl Iterator<Item = RegionNumber> {
        let first = move |from| self.regions.first_from(from).filter(|region| *region < range.end);
        std::iter::successors(first(range.start), move |last| first(RegionNumber(last.0 + 1)))
    }

    /// Asserts that the regions agree with what is known of all.
    pub fn verify(&self) {
        self.regions.verify();
        let all = self.regions.all();
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

fn add(node: &mut RegionNode, blocks: u64) {
    let sum = u64::from(node.blocks) + blocks;
    node.blocks = u32::try_from(sum).expect("a region has less than 2^32 blocks");
}

fn subtract(node: &mut RegionNode, blocks: u64) {
    let left = u64::from(node.blocks).checked_sub(blocks);
    node.blocks = left.expect("no more than is dirty") as u32;
}

#[cfg(test)]
mod tests;
