//! Which blocks of a cache are alive after a crash: a pure function of its metadata.
//!
//! The rules are those of the kernel. A committed entry is alive unless a committed one of the same origin block has a higher
//! seq_count. All others that are not free have to be freed on the device before it is used. Two committed entries of one
//! block with the same seq_count cannot be told apart: the cache is not used.

use std::cmp::Reverse;

use spillway_core::{Error, Kind};

use super::format::{Entry, FREE, Layout, Superblock};

/// A block of the cache that is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Live {
    /// Block of the origin.
    pub origin_block: u64,
    /// When it was written.
    pub seq_count: u64,
    /// Block of the cache.
    pub index: u64,
}

/// What a cache holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// In the order of the origin, each origin block once.
    pub live: Vec<Live>,
    /// Entries to be freed on the device, in order.
    pub stale: Vec<u64>,
}

/// Takes the entries of a cache in their order, in pieces of any size.
pub struct Recovery {
    layout: Layout,
    seq_count: u64,
    next: u64,
    found: Recovered,
}

impl Recovery {
    /// Bytes that the recovery of so many entries takes at most, while its list grows.
    pub fn bytes(n_blocks: u64) -> u64 {
        36 * n_blocks
    }

    /// Before the first entry. Takes 24 bytes for each committed entry, and 8 for each stale one.
    pub fn new(layout: Layout, superblock: &Superblock) -> Self {
        Self { layout, seq_count: superblock.seq_count, next: 0, found: Recovered::default() }
    }

    /// Takes the next entry. [`Kind::Corrupt`] for a committed one whose place on the origin cannot be.
    pub fn take(&mut self, entry: Entry) -> Result<(), Error> {
        assert!(self.next < self.layout.n_blocks, "more entries than blocks");
        let index = self.next;
        self.next += 1;
        if entry.seq_count == FREE {
            return Ok(());
        }
        if entry.seq_count >= self.seq_count {
            self.found.stale.push(index);
            return Ok(());
        }
        let sectors = self.layout.block_sectors();
        if !entry.original_sector.is_multiple_of(sectors) {
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "entry {index} of the cache is damaged: sector {} of the origin is not a multiple of {sectors}",
                    entry.original_sector
                ),
            ));
        }
        let origin_block = entry.original_sector / sectors;
        self.found.live.push(Live { origin_block, seq_count: entry.seq_count, index });
        Ok(())
    }

    /// After the last entry. Where two committed entries cannot be told apart: [`Kind::Corrupt`], or with `later` the one in
    /// the later block is taken, because the kernel's cursor moves forward.
    pub fn finish(mut self, later: bool) -> Result<Recovered, Error> {
        assert!(self.next == self.layout.n_blocks, "{} of {} entries", self.next, self.layout.n_blocks);
        let Recovered { live, stale } = &mut self.found;
        live.sort_unstable_by_key(|live| (live.origin_block, Reverse(live.seq_count), Reverse(live.index)));
        let alike = live.windows(2).find(|pair| same_version(&pair[0], &pair[1]));
        if let Some(pair) = alike.filter(|_| !later) {
            let (first, second) = (pair[0].index.min(pair[1].index), pair[0].index.max(pair[1].index));
            let block = pair[0].origin_block;
            return Err(Error::new(
                Kind::Corrupt,
                format!(
                    "entries {first} and {second} of the cache both hold block {block} of the origin, equally new: \
                     --recover takes the second"
                ),
            ));
        }
        // The newest version comes first of its block.
        live.dedup_by(|older, newest| {
            let superseded = older.origin_block == newest.origin_block;
            if superseded {
                stale.push(older.index);
            }
            superseded
        });
        stale.sort_unstable();
        Ok(self.found)
    }
}

fn same_version(one: &Live, other: &Live) -> bool {
    (one.origin_block, one.seq_count) == (other.origin_block, other.seq_count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use spillway_core::BlockSize;

    const LAYOUT: Layout = Layout { start: 0, block_size: BlockSize::PAGE, n_blocks: 6 };

    fn recover(seq_count: u64, entries: [(u64, u64); 6]) -> Result<Recovered, Error> {
        let mut recovery =
            Recovery::new(LAYOUT, &Superblock { n_blocks: 6, seq_count, ..Superblock::fresh(&LAYOUT) });
        for (original_sector, seq_count) in entries {
            recovery.take(Entry { original_sector, seq_count })?;
        }
        recovery.finish(false)
    }

    #[test]
    fn the_newest_committed_version_lives() {
        let found = recover(5, [(8, 1), (8, 4), (0, 2), (16, 5), (24, FREE), (8, 3)]).unwrap();
        let live: Vec<_> = found.live.iter().map(|live| (live.origin_block, live.index)).collect();
        assert_eq!(live, [(0, 2), (1, 1)]);
        assert_eq!(found.stale, [0, 3, 5], "older versions and what was not committed");
    }

    #[test]
    fn twins_and_impossible_places_are_refused() {
        let twins = recover(5, [(8, 1), (0, FREE), (8, 1), (0, 9), (0, 9), (0, 9)]).unwrap_err();
        assert!(twins.kind == Kind::Corrupt && twins.message().contains("entries 0 and 2"), "{twins}");
        let odd = recover(5, [(9, 1), (0, FREE), (0, 9), (0, 9), (0, 9), (0, 9)]).unwrap_err();
        assert!(odd.kind == Kind::Corrupt && odd.message().contains("entry 0"), "{odd}");
        let uncommitted = recover(5, [(9, 7), (9, 7), (3, FREE), (0, 9), (0, 9), (0, 9)]).unwrap();
        assert_eq!(uncommitted.stale, [0, 1, 3, 4, 5], "what was not committed may hold anything");
    }

    proptest! {
        /// Against the rule, entry by entry.
        #[test]
        fn it_agrees_with_the_rule(entries: [(u8, u8); 6], seq_count in 0u64..6) {
            let entries = entries.map(|(block, seq)| {
                (u64::from(block % 3) * 8, if seq % 8 == 7 { FREE } else { u64::from(seq % 8) })
            });
            let committed = |at: usize| entries[at].1 < seq_count;
            let twins = (0..6).any(|a| (0..a).any(|b| committed(a) && entries[a] == entries[b]));
            match recover(seq_count, entries) {
                Err(_) => prop_assert!(twins),
                Ok(found) => {
                    prop_assert!(!twins);
                    for at in 0..6 {
                        let newest = (0..6).all(|other| {
                            !committed(other) || entries[other].0 != entries[at].0 || entries[other].1 <= entries[at].1
                        });
                        let lives = found.live.iter().any(|live| live.index == at as u64);
                        prop_assert_eq!(lives, committed(at) && newest);
                        let stale = found.stale.contains(&(at as u64));
                        prop_assert_eq!(stale, entries[at].1 != FREE && !lives);
                    }
                }
            }
        }
    }
}
