//! Which blocks of a cache are alive after a crash: a pure function of its metadata, made in the index itself.
//!
//! The rules are those of the kernel. A committed entry is alive unless a committed one of the same origin block has a higher
//! seq_count. All others that are not free have to be freed on the device before it is used. Where the two newest committed entries of
//! a block have the same seq_count, they cannot be told apart: the cache is not used.
//!
//! One rule more than the kernel's: no entry is ahead of the superblock, since neither the kernel nor this program begins a second
//! commit before the superblock of the first is durable. One that is ahead says that it or the superblock is damaged, or that the
//! device lost what it had made durable. The cache is not used then, where the kernel would free everything behind an old superblock.

use spillway_core::{Error, mutant};

use crate::write_cache::config::OldCache;
use crate::write_cache::format::{Entry, FREE, Layout};
use crate::write_cache::index::block::{CacheBlock, Epoch, OriginBlock};
use crate::write_cache::index::{DuplicateEntries, Index};

/// Takes the entries of a cache in their order, in pieces of any size.
pub(crate) struct Recovery {
    layout: Layout,
    seq_count: Epoch,
    origin_blocks: u64,
    mends: bool,
    next: u32,
    index: Index,
}

impl Recovery {
    /// Before the first entry of a cache whose superblock has `seq_count`, over an origin of `origin_blocks`, in an empty index. With
    /// [`OldCache::Recover`], entries ahead of the superblock are freed, and of two that cannot be told apart the one in the later block is
    /// taken, because the kernel's cursor moves forward; without, these are [`Corrupt`](spillway_core::Kind::Corrupt).
    pub(crate) fn new(
        layout: Layout,
        index: Index,
        seq_count: Epoch,
        origin_blocks: u64,
        old: OldCache,
    ) -> Self {
        let mends = old == OldCache::Recover;
        Self { layout, seq_count, origin_blocks, mends, next: 0, index }
    }

    /// Takes the next entry. A committed one whose place on the origin cannot be: [`Corrupt`](spillway_core::Kind::Corrupt), or [`Invalid`](spillway_core::Kind::Invalid) if it lies
    /// behind its end.
    pub(crate) fn take(&mut self, entry: Entry) -> Result<(), Error> {
        assert!(u64::from(self.next) < self.layout.n_blocks, "more entries than blocks");
        let block = CacheBlock(self.next);
        self.next += 1;
        if entry.seq_count == FREE {
            return Ok(());
        }
        let epoch = Epoch(entry.seq_count);
        if epoch > self.seq_count && !self.mends {
            return Err(ahead(block, epoch, self.seq_count));
        }
        let uncommitted = u64::from(mutant::on("write_cache: recover what was not committed"));
        if epoch.0 >= self.seq_count.0 + uncommitted {
            self.index.recover_stale(block);
            return Ok(());
        }
        let origin = self.origin_block(block, &entry)?;
        self.index.recover(block, origin, epoch, self.mends);
        Ok(())
    }

    fn origin_block(&self, index: CacheBlock, entry: &Entry) -> Result<OriginBlock, Error> {
        let (sectors, blocks) = (self.layout.block_sectors(), self.origin_blocks);
        if !entry.original_sector.is_multiple_of(sectors) {
            return Err(Error::corrupt(format!(
                "entry {} of the cache is damaged: sector {} of the origin is not a multiple of {sectors}",
                index.0, entry.original_sector
            )));
        }
        let block = entry.original_sector / sectors;
        if block >= blocks {
            return Err(Error::invalid(format!(
                "the cache holds block {block} of the origin, which has only {blocks}: is it the right one, or was it shrunk?"
            )));
        }
        Ok(OriginBlock(u32::try_from(block).expect("an origin has fewer than 2^32 blocks")))
    }

    /// After the last entry: what is alive, and how many entries are to be freed on the device, whose blocks are being cleared. Newest
    /// entries of one block that cannot be told apart: [`Corrupt`](spillway_core::Kind::Corrupt).
    pub(crate) fn finish(self) -> Result<(Index, u32), Error> {
        assert_eq!(u64::from(self.next), self.layout.n_blocks, "every block has an entry");
        let stale = self.index.end_recovery().map_err(|DuplicateEntries(first, second)| {
            indistinct(self.index.blocks[first].origin(), first, second)
        })?;
        Ok((self.index, stale))
    }
}

fn ahead(block: CacheBlock, epoch: Epoch, superblock: Epoch) -> Error {
    Error::corrupt(format!(
        "entry {} of the cache is of commit {epoch}, but the superblock is of {superblock}: one of them is damaged, or the device \
         lost what it had made durable; --recover drops what is newer than the superblock, which may be committed writes",
        block.0
    ))
}

fn indistinct(origin: OriginBlock, first: CacheBlock, second: CacheBlock) -> Error {
    Error::corrupt(format!(
        "entries {} and {} of the cache both hold block {} of the origin, equally new: --recover takes the second",
        first.0, second.0, origin.0
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spillway_core::BlockSize;
    use spillway_core::Kind;
    use std::sync::Arc;

    use crate::write_cache::index::block::{Blocks, Stage};

    const LAYOUT: Layout = Layout { start: 0, block_size: BlockSize::PAGE, n_blocks: 6 };

    /// Blocks of the origin with those of the cache that hold them, and entries to be freed.
    type Found = (Vec<(u32, u32)>, Vec<u32>);

    fn recover(seq_count: u64, entries: [(u64, u64); 6]) -> Result<Found, Error> {
        recover_with(OldCache::Open, seq_count, entries)
    }

    fn recover_with(old: OldCache, seq_count: u64, entries: [(u64, u64); 6]) -> Result<Found, Error> {
        let index = Index::new(Arc::new(Blocks::new(6)), 3, LAYOUT.block_size.bytes());
        let mut recovery = Recovery::new(LAYOUT, index, Epoch(seq_count), 3, old);
        for (original_sector, seq_count) in entries {
            recovery.take(Entry { original_sector, seq_count })?;
        }
        let (index, stale) = recovery.finish()?;
        let newest = |origin| index.newest(OriginBlock(origin)).map(|block| (origin, block.0));
        let clearing = |block: &u32| index.stage(CacheBlock(*block)) == Stage::Clearing;
        let (live, cleared): (Vec<_>, Vec<u32>) =
            ((0..3).filter_map(newest).collect(), (0..6).filter(clearing).collect());
        assert_eq!((live.len(), cleared.len()), (index.held() as usize, stale as usize));
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
        assert_eq!(recover_with(OldCache::Recover, 5, entries).unwrap(), (vec![(1, 0)], vec![1, 2, 4]));
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
            let is_newest = |at: usize| {
                committed(at) && (0..6).all(|other| !committed(other) || entries[other].0 != entries[at].0 || entries[other].1 <= entries[at].1)
            };
            let twins = (0..6).any(|a| (0..a).any(|b| is_newest(a) && entries[a] == entries[b]));
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
