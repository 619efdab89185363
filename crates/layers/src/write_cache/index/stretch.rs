//! Where the blocks of a range are to be read.

use super::block::CacheBlock;

/// Where a stretch of a range is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockLocation {
    /// On the cache device, from this block on; pinned.
    Cache(CacheBlock),
    /// On the origin.
    Origin,
}

/// A stretch of blocks in one location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) location: BlockLocation,
    pub(crate) len: u32,
}

/// Adds a block to the last stretch if that goes on with it.
pub(crate) fn append(stretches: &mut Vec<Stretch>, location: BlockLocation) {
    match (stretches.last_mut(), location) {
        (Some(Stretch { location: BlockLocation::Cache(first), len }), BlockLocation::Cache(block))
            if first.plus(*len) == block =>
        {
            *len += 1;
        }
        (Some(Stretch { location: BlockLocation::Origin, len }), BlockLocation::Origin) => *len += 1,
        _ => stretches.push(Stretch { location, len: 1 }),
    }
}
