//! How blocks of the origin map to regions, which shards are made of, and to groups, which laps go by.

use std::ops::Range;

use super::block::OriginBlock;

/// Bytes of a region.
const REGION_BYTES: u64 = 1 << 20;

/// Bits of `present` for each block of the cache, at most; one for each region at least.
const PRESENT_BITS: u64 = 32;

/// How blocks of the origin map to regions and groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RegionMap {
    /// Blocks of a region, as a power of two.
    region_shift: u32,
    /// Blocks of a group of `present`, as a power of two.
    group_shift: u32,
}

impl RegionMap {
    pub(crate) fn new(n_blocks: u32, origin_blocks: u64, block_bytes: u64) -> Self {
        let region_shift = (REGION_BYTES / block_bytes).ilog2();
        let bits = |shift: u32| origin_blocks >> shift;
        let fits = |shift: &u32| bits(*shift) <= PRESENT_BITS * u64::from(n_blocks);
        let group_shift = (0..region_shift).find(fits).unwrap_or(region_shift);
        Self { region_shift, group_shift }
    }

    /// Groups of an origin of so many blocks.
    pub(crate) fn groups(&self, origin_blocks: u64) -> u64 {
        origin_blocks.div_ceil(1 << self.group_shift)
    }

    /// Blocks of a group, the last of which may lie behind the end of the origin.
    pub(crate) fn group_range(&self, group: u64) -> Range<u64> {
        let start = group << self.group_shift;
        start..(start + (1 << self.group_shift)).min(1 << 32)
    }

    pub(crate) fn group(&self, origin: OriginBlock) -> u64 {
        self.group_at(origin.0.into())
    }

    /// The group of block `at`, which may lie behind the end of the origin.
    pub(crate) fn group_at(&self, at: u64) -> u64 {
        at >> self.group_shift
    }

    /// Spreads regions over 64 bits.
    pub(crate) fn hash(&self, origin: OriginBlock) -> u64 {
        u64::from(origin.0 >> self.region_shift).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Where in its region a block lies.
    pub(crate) fn within(&self, origin: OriginBlock) -> u32 {
        origin.0 & ((1 << self.region_shift) - 1)
    }

    /// The first part of a range that lies in one region.
    pub(crate) fn first_part(&self, origin: OriginBlock, len: u32) -> u32 {
        len.min((1 << self.region_shift) - self.within(origin))
    }
}
