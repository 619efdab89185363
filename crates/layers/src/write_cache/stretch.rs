//! Where the blocks of a range are to be read.

use super::block::CacheBlock;

/// Where a stretch of a range is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the cache device, from this block on; pinned.
    Cache(CacheBlock),
    /// On the origin.
    Origin,
}

/// A stretch of blocks in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) place: Place,
    pub(super) len: u32,
}

/// Adds a block to the last stretch if that goes on with it.
pub(super) fn append(stretches: &mut Vec<Stretch>, place: Place) {
    match (stretches.last_mut(), place) {
        (Some(Stretch { place: Place::Cache(first), len }), Place::Cache(block))
            if first.plus(*len) == block =>
        {
            *len += 1;
        }
        (Some(Stretch { place: Place::Origin, len }), Place::Origin) => *len += 1,
        _ => stretches.push(Stretch { place, len: 1 }),
    }
}
