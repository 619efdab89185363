//! Whether a cache fits its devices and the memory.

use spillway_core::{Error, Geometry, Kind};

use crate::write_cache::config::Settings;
use crate::write_cache::device::journal::Journal;
use crate::write_cache::format::Layout;
use crate::write_cache::index::Index;
use crate::write_cache::index::space::Space;

/// What the parts of a cache take besides their arrays.
const FIXED_BYTES: u64 = 48 << 10;

/// Bytes that a cache of `n_blocks` takes in memory, whatever it holds: at most 32 for each block, a bit for each MiB of the
/// origin, and 64 KiB.
pub(crate) fn memory(n_blocks: u32, origin_blocks: u64, block_bytes: u64) -> u64 {
    Index::bytes(n_blocks, origin_blocks, block_bytes)
        + Journal::bytes(n_blocks)
        + Space::bytes(n_blocks)
        + FIXED_BYTES
}

/// What the cache looks like from above; [`Kind::Invalid`] where its devices do not fit.
pub(crate) fn geometry(settings: &Settings, origin: &Geometry, cache: &Geometry) -> Result<Geometry, Error> {
    let block = settings.block_size().bytes();
    let largest = origin.block_size.bytes().max(cache.block_size.bytes());
    if block < largest {
        return Err(Error::invalid(format!(
            "block size {block} is below that of a device: give a power of two from {largest} to 65536"
        )));
    }
    if cache.read_only {
        return Err(Error::new(Kind::ReadOnly, "the cache device is read-only: it has to be written"));
    }
    Ok(Geometry {
        size: blocks_of(origin, block)? * block,
        block_size: settings.block_size(),
        optimal_io: origin.optimal_io.max(block as u32),
        volatile: origin.volatile || cache.volatile,
        write_through: settings.acks_committed(),
        ..*origin
    })
}

/// Whole blocks of an origin; [`Kind::Invalid`] where it has none, or too many.
pub(crate) fn blocks_of(origin: &Geometry, block: u64) -> Result<u64, Error> {
    let (blocks, most) = (origin.size / block, u64::from(u32::MAX));
    if (1..=most).contains(&blocks) {
        return Ok(blocks);
    }
    Err(Error::invalid(format!(
        "an origin of {} bytes cannot be cached in blocks of {block}: it has to have from 1 to {most} of them",
        origin.size
    )))
}

/// A limit at which `bytes` more fit, in whole MiB. What a server takes for buffers and connections grows with the limit, by less than a
/// fifth.
pub(crate) fn enough(limit: u64, used: u64, bytes: u64) -> u64 {
    let missing = used.saturating_add(bytes).saturating_sub(limit);
    limit.saturating_add(missing / 4 * 5).saturating_add(1 << 20).next_multiple_of(1 << 20)
}

/// Blocks of a cache as the index counts them.
pub(crate) fn count(layout: &Layout) -> Result<u32, Error> {
    u32::try_from(layout.n_blocks).ok().filter(|&count| count < u32::MAX).ok_or_else(|| {
        Error::invalid(format!(
            "a cache of {} blocks is too large here: choose larger blocks",
            layout.n_blocks
        ))
    })
}
