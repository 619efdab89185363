//! What tests ask of the parts, and nobody else.

use crate::write_cache::device::workspaces::Workspaces;
use crate::write_cache::index::Index;
use crate::write_cache::index::block::{CacheBlock, Epoch, OriginBlock};
use crate::write_cache::index::chains::Limit;

impl Index {
    /// Blocks of the cache.
    pub(in crate::write_cache) fn blocks_count(&self) -> u32 {
        self.blocks.count()
    }

    /// Blocks with readers.
    pub(in crate::write_cache) fn pinned(&self) -> usize {
        self.blocks.all().filter(|&block| self.blocks[block].readers() > 0).count()
    }

    /// Since when a block is dirty.
    pub(in crate::write_cache) fn dirty_since(&self, origin: OriginBlock) -> Option<Epoch> {
        self.newest(origin).map(|newest| self.blocks.dirty_since(newest))
    }

    /// The version that the cache holds of a block.
    pub(in crate::write_cache) fn newest(&self, origin: OriginBlock) -> Option<CacheBlock> {
        self.chains(origin).newest(origin)
    }
}

impl Limit {
    /// The newest versions of epochs below `before`, however old.
    pub(in crate::write_cache) fn newest(before: Epoch) -> Self {
        Self { before, dirty_before: Epoch(0), committed: before }
    }
}

impl Workspaces {
    /// Bytes of all.
    pub(in crate::write_cache) fn bytes(&self) -> u64 {
        (self.batches.bytes() + self.pieces.bytes() + self.local.bytes()) as u64
    }
}
