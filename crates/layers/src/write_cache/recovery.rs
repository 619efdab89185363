//! Which blocks of a cache are alive after a crash: a pure function of its metadata, made where the index will be.
//!
//! The rules are those of the kernel. A committed entry is alive unless a committed one of the same origin block has a higher
//! seq_count. All others that are not free have to be freed on the device before it is used. Two committed entries of one
//! block with the same seq_count cannot be told apart: the cache is not used.
//!
//! One rule more than the kernel's: no entry is ahead of the superblock, since neither the kernel nor this program begins a second
//! commit before the superblock of the first is durable. One that is ahead says that it or the superblock is damaged, or that the
//! device lost what it had made durable. The cache is not used then, where the kernel would free everything behind an old superblock.
//!
//! Memory: 12 bytes for each block, which become the index's, and 8 for each committed entry until they are in its tree. With that
//! tree it is 31 for each block at most, less than what is charged for the index.

use std::cmp::Reverse;

use spillway_core::{Error, Kind, mutant};

use super::block::{Block, Stage};
use super::format::{Entry, FREE, Layout};
use super::index::Index;

/// What a cache holds.
pub(super) struct Recovered {
    /// What is alive; blocks whose entries are to be freed on the device are being cleared, and no block is free yet.
    pub(super) index: Index,
    /// Entries to be freed on the device.
    pub(super) stale: u32,
}

/// Takes the entries of a cache in their order, in pieces of any size.
pub(super) struct Recovery {
    layout: Layout,
    seq_count: u64,
    origin_blocks: u64,
    recover: bool,
    next: usize,
    blocks: Vec<Block>,
    committed: usize,
    stale: u32,
}

impl Recovery {
    /// Before the first entry of a cache of `n_blocks` blocks, whose superblock has `seq_count`, over an origin of `origin_blocks`.
    /// With `recover`, entries ahead of the superblock are freed, and of two that cannot be told apart the one in the later block is
    /// taken, because the kernel's cursor moves forward; without, these are [`Kind::Corrupt`].
    pub(super) fn new(
        layout: Layout,
        n_blocks: u32,
        seq_count: u64,
        origin_blocks: u64,
        recover: bool,
    ) -> Self {
        let blocks = vec![Block::EMPTY; n_blocks as usize];
        Self { layout, seq_count, origin_blocks, recover, next: 0, blocks, committed: 0, stale: 0 }
    }

    /// Takes the next entry. A committed one whose place on the origin cannot be: [`Kind::Corrupt`], or [`Kind::Invalid`] if it lies
    /// behind its end.
    pub(super) fn take(&mut self, entry: Entry) -> Result<(), Error> {
        assert!(self.next < self.blocks.len(), "more entries than blocks");
        let index = self.next;
        self.next += 1;
        if entry.seq_count == FREE {
            return Ok(());
        }
        if entry.seq_count > self.seq_count && !self.recover {
            return Err(ahead(index, entry.seq_count, self.seq_count));
        }
        let committed = self.seq_count + u64::from(mutant::on("write_cache: recover what was not committed"));
        if entry.seq_count >= committed {
            self.clear(index);
            return Ok(());
        }
        self.blocks[index] = Block::live(self.origin_block(index, &entry)?, entry.seq_count);
        self.committed += 1;
        Ok(())
    }

    fn origin_block(&self, index: usize, entry: &Entry) -> Result<u32, Error> {
        let (sectors, blocks) = (self.layout.block_sectors(), self.origin_blocks);
        if !entry.original_sector.is_multiple_of(sectors) {
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "entry {index} of the cache is damaged: sector {} of the origin is not a multiple of {sectors}",
                    entry.original_sector
                ),
            ));
        }
        let block = entry.original_sector / sectors;
        if block >= blocks {
            return Err(Error::invalid(format!(
                "the cache holds block {block} of the origin, which has only {blocks}: is it the right one, or was it shrunk?"
            )));
        }
        Ok(u32::try_from(block).expect("an origin has fewer than 2^32 blocks"))
    }

    /// The entry is to be freed on the device.
    fn clear(&mut self, index: usize) {
        self.stale += 1;
        self.blocks[index].set_stage(Stage::Clearing);
    }

    /// After the last entry.
    pub(super) fn finish(mut self) -> Result<Recovered, Error> {
        assert!(self.next == self.blocks.len(), "{} of {} entries", self.next, self.blocks.len());
        let mut versions = self.versions();
        let of_one_block = |one: &(u32, u32), next: &(u32, u32)| one.0 == next.0;
        for versions in versions.chunk_by_mut(of_one_block).filter(|versions| versions.len() > 1) {
            versions.sort_unstable_by_key(|&(_, index)| (Reverse(self.epoch(index)), Reverse(index)));
            let alike = versions.windows(2).find(|pair| self.epoch(pair[0].1) == self.epoch(pair[1].1));
            if let Some(pair) = alike.filter(|_| !self.recover) {
                return Err(indistinct(pair[0].0, pair[1].1, pair[0].1));
            }
            if mutant::on("write_cache: recover the older of two versions") {
                versions.reverse();
            }
            versions[1..].iter().for_each(|&(_, index)| self.clear(index as usize));
        }
        // The newest version comes first of its block.
        versions.dedup_by_key(|version| version.0);
        Ok(Recovered { index: Index::recovered(self.blocks, versions, self.seq_count), stale: self.stale })
    }

    /// Blocks of the origin and of the cache, of all committed entries, in order.
    fn versions(&self) -> Vec<(u32, u32)> {
        let mut versions = Vec::with_capacity(self.committed);
        let live = self.blocks.iter().zip(0..).filter(|(block, _)| block.stage() == Stage::Live);
        versions.extend(live.map(|(block, index)| (block.origin(), index)));
        versions.sort_unstable();
        versions
    }

    fn epoch(&self, index: u32) -> u64 {
        self.blocks[index as usize].epoch()
    }
}

fn ahead(index: usize, seq_count: u64, superblock: u64) -> Error {
    Error::new(
        Kind::Corrupt,
        format!(
            "entry {index} of the cache is of commit {seq_count}, but the superblock is of {superblock}: one of them is damaged, or the device \
             lost what it had made durable; --recover drops what is newer than the superblock, which may be committed writes"
        ),
    )
}

fn indistinct(block: u32, first: u32, second: u32) -> Error {
    Error::new(
        Kind::Corrupt,
        format!(
            "entries {first} and {second} of the cache both hold block {block} of the origin, equally new: \
             --recover takes the second"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spillway_core::BlockSize;

    const LAYOUT: Layout = Layout { start: 0, block_size: BlockSize::PAGE, n_blocks: 6 };

    /// Blocks of the origin with those of the cache that hold them, and entries to be freed.
    type Found = (Vec<(u32, u32)>, Vec<u32>);

    fn recover(seq_count: u64, entries: [(u64, u64); 6]) -> Result<Found, Error> {
        recover_with(false, seq_count, entries)
    }

    fn recover_with(recover: bool, seq_count: u64, entries: [(u64, u64); 6]) -> Result<Found, Error> {
        let mut recovery = Recovery::new(LAYOUT, 6, seq_count, 3, recover);
        for (original_sector, seq_count) in entries {
            recovery.take(Entry { original_sector, seq_count })?;
        }
        let Recovered { index, stale } = recovery.finish()?;
        let live = index.newest.iter().map(|(&origin, &index)| (origin, index)).collect();
        let cleared: Vec<u32> = index.being_cleared(0..6).collect();
        assert_eq!(cleared.len(), stale as usize);
        Ok((live, cleared))
    }

    #[test]
    fn the_newest_committed_version_lives() {
        let found = recover(5, [(8, 1), (8, 4), (0, 2), (16, 5), (24, FREE), (8, 3)]).unwrap();
        assert_eq!(found.0, [(0, 2), (1, 1)]);
        assert_eq!(found.1, [0, 3, 5], "older versions and what was not committed");
    }

    #[test]
    fn twins_and_impossible_places_are_refused() {
        let twins = recover(5, [(8, 1), (0, FREE), (8, 1), (0, 5), (0, 5), (0, 5)]).unwrap_err();
        assert!(twins.kind == Kind::Corrupt && twins.message().contains("entries 0 and 2"), "{twins}");
        let odd = recover(5, [(9, 1), (0, FREE), (0, 5), (0, 5), (0, 5), (0, 5)]).unwrap_err();
        assert!(odd.kind == Kind::Corrupt && odd.message().contains("entry 0"), "{odd}");
        let uncommitted = recover(5, [(9, 5), (9, 5), (3, FREE), (0, 5), (0, 5), (u64::MAX, 5)]).unwrap();
        assert_eq!(uncommitted.1, [0, 1, 3, 4, 5], "what was not committed may hold anything");
        let beyond = recover(5, [(8, 1), (24, 1), (0, 5), (0, 5), (0, 5), (0, 5)]).unwrap_err();
        assert!(beyond.kind == Kind::Invalid && beyond.message().contains("block 3"), "{beyond}");
    }

    /// A superblock that was lost or damaged must not cost what the entries still tell of.
    #[test]
    fn entries_ahead_of_the_superblock_are_dropped_only_when_asked_for() {
        let entries = [(8, 1), (0, 7), (16, 6), (8, FREE), (8, 5), (24, FREE)];
        let ahead = recover(5, entries).unwrap_err();
        assert!(ahead.kind == Kind::Corrupt && ahead.message().contains("entry 1"), "{ahead}");
        assert_eq!(recover_with(true, 5, entries).unwrap(), (vec![(1, 0)], vec![1, 2, 4]));
    }

    proptest! {
        /// Against the rule, entry by entry.
        #[test]
        fn it_agrees_with_the_rule(entries: [(u8, u8); 6], seq_count in 0u64..6) {
            let entries = entries.map(|(block, seq)| {
                (u64::from(block % 3) * 8, if seq % 8 == 7 { FREE } else { u64::from(seq % 8) })
            });
            let committed = |at: usize| entries[at].1 < seq_count;
            let ahead = (0..6).any(|at| entries[at].1 != FREE && entries[at].1 > seq_count);
            let twins = (0..6).any(|a| (0..a).any(|b| committed(a) && entries[a] == entries[b]));
            match recover(seq_count, entries) {
                Err(_) => prop_assert!(twins || ahead),
                Ok(found) => {
                    prop_assert!(!twins && !ahead && found.0.len() + found.1.len() <= 6);
                    for at in 0..6 {
                        let newest = (0..6).all(|other| {
                            !committed(other) || entries[other].0 != entries[at].0 || entries[other].1 <= entries[at].1
                        });
                        let lives = found.0.contains(&((entries[at].0 / 8) as u32, at as u32));
                        prop_assert_eq!(lives, committed(at) && newest);
                        let stale = found.1.contains(&(at as u32));
                        prop_assert_eq!(stale, entries[at].1 != FREE && !lives);
                    }
                }
            }
        }
    }
}
