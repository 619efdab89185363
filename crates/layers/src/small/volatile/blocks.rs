//! Cached blocks: the dirty ones, and older versions in flight to the device below.
//!
//! A block may be both. The version in flight is older and completes before the dirty one is submitted.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use spillway_core::{Budget, Charge, Kind, SECTOR};

/// Bytes charged for a block besides its content: its entries in the maps.
pub(super) const ENTRY_COST: u64 = 128;

/// What a block holds.
pub(super) enum Content {
    Bytes(Box<[u8]>),
    /// Zeroes, which may become a hole below or not.
    Zeroes {
        no_hole: bool,
    },
}

impl Content {
    fn copy_sector(&self, sector: usize, to: &mut [u8]) {
        assert_eq!(to.len() as u64, SECTOR, "a whole sector");
        match self {
            Self::Bytes(bytes) => to.copy_from_slice(&bytes[sector * to.len()..][..to.len()]),
            Self::Zeroes { .. } => to.fill(0),
        }
    }

    /// Copies the sectors that `wanted` selects.
    pub(super) fn copy(&self, to: &mut [u8], mut wanted: impl FnMut(usize) -> bool) {
        for (sector, to) in to.chunks_mut(SECTOR as usize).enumerate() {
            if wanted(sector) {
                self.copy_sector(sector, to);
            }
        }
    }
}

/// A block, charged while it is cached.
pub(super) struct CachedBlock {
    pub(super) content: Content,
    _charge: Charge,
}

/// See the head of this file. Blocks are numbered by their place on the device.
pub(super) struct CachedBlocks {
    budget: Arc<Budget>,
    block: usize,
    dirty: BTreeMap<u64, CachedBlock>,
    in_flight: BTreeMap<u64, CachedBlock>,
}

impl CachedBlocks {
    /// An empty cache of blocks of `block` bytes.
    pub(super) fn new(budget: Arc<Budget>, block: usize) -> Self {
        assert!((block as u64).is_multiple_of(SECTOR), "blocks of {block} bytes");
        Self { budget, block, dirty: BTreeMap::new(), in_flight: BTreeMap::new() }
    }

    /// Bytes of content in the cache.
    pub(super) fn bytes(&self) -> u64 {
        ((self.dirty.len() + self.in_flight.len()) * self.block) as u64
    }

    /// Caches a block; [`Kind::NoSpace`] where `bytes_max` or the budget has no room for it. Its content is allocated once it is charged.
    pub(super) fn insert(
        &mut self,
        number: u64,
        content: impl FnOnce() -> Content,
        bytes_max: u64,
    ) -> Result<(), Kind> {
        let replaces = self.dirty.contains_key(&number);
        if !replaces && self.bytes() + self.block as u64 > bytes_max {
            return Err(Kind::NoSpace);
        }
        let charge = self.budget.hold(self.block as u64 + ENTRY_COST)?;
        self.dirty.insert(number, CachedBlock { content: content(), _charge: charge });
        Ok(())
    }

    /// Whether any of these blocks is cached.
    pub(super) fn contains_any(&self, blocks: Range<u64>) -> bool {
        let has = |map: &BTreeMap<u64, CachedBlock>| map.range(blocks.clone()).next().is_some();
        has(&self.dirty) || has(&self.in_flight)
    }

    /// Copies cached blocks over `buf`, which begins at block `first`.
    pub(super) fn overlay(&self, first: u64, buf: &mut [u8]) {
        let blocks = first..first + (buf.len() / self.block) as u64;
        for (number, block) in self.in_flight.range(blocks.clone()).chain(self.dirty.range(blocks)) {
            block.content.copy(&mut buf[(number - first) as usize * self.block..][..self.block], |_| true);
        }
    }

    /// Moves dirty blocks to those in flight. An older version that is still there is superseded.
    pub(super) fn begin_flight(&mut self, blocks: Range<u64>) {
        let mut chosen = self.dirty.split_off(&blocks.start);
        let mut above = chosen.split_off(&blocks.end);
        self.dirty.append(&mut above);
        self.in_flight.append(&mut chosen);
        assert!(self.dirty.range(blocks).next().is_none(), "they are in flight");
    }

    /// Removes blocks in flight that are on the device below.
    pub(super) fn complete(&mut self, blocks: Range<u64>) {
        let mut done = self.in_flight.split_off(&blocks.start);
        let mut above = done.split_off(&blocks.end);
        self.in_flight.append(&mut above);
        assert!(!self.in_flight.contains_key(&blocks.start), "block {} is below", blocks.start);
    }

    /// A block in flight, selected by the random number `lot`.
    pub(super) fn draw_in_flight(&self, lot: u64) -> Option<(u64, &Content)> {
        draw(&self.in_flight, lot)
    }

    /// The number of a dirty block, selected by the random number `lot`.
    pub(super) fn draw_dirty(&self, lot: u64) -> Option<u64> {
        draw(&self.dirty, lot).map(|(number, _)| number)
    }

    /// Empties the cache: the newest version of each block.
    pub(super) fn take_all(&mut self) -> BTreeMap<u64, CachedBlock> {
        self.begin_flight(0..u64::MAX);
        assert!(self.dirty.is_empty(), "all of it is in flight");
        std::mem::take(&mut self.in_flight)
    }
}

/// The first block from a place on that `lot` selects between the first and the last.
fn draw(map: &BTreeMap<u64, CachedBlock>, lot: u64) -> Option<(u64, &Content)> {
    let ((first, _), (last, _)) = (map.first_key_value()?, map.last_key_value()?);
    let found = map.range(first + lot % (last - first + 1)..).next();
    let (number, block) = found.expect("the last one is not before the place");
    Some((*number, &block.content))
}
