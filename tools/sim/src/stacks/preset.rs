//! A write cache that is full but for islands of free blocks, over all of its metadata: what is written goes to many places at once.
//!
//! Its metadata is longer than what is read or written in one piece, and the islands lie on both sides of that boundary, further
//! apart than what is joined into one run, so that a commit writes more runs than are under way at a time.

use std::sync::LazyLock;

use spillway_core::{BlockSize, SECTOR};
use spillway_layers::write_cache::format::{ENTRY_LEN, Entry, FREE, Layout, SUPERBLOCK_LEN, Superblock};

use spillway_sim::disk::Medium;
use spillway_sim::payload::{self, SectorValue};

/// Bytes of its disk: 24,000 blocks of 512 bytes, and 375 KiB of metadata.
pub const CACHE_BYTES: u64 = 12_672_000;

/// Bytes of the origin's disk; what lies behind the cached blocks is not in the cache.
pub const ORIGIN_BYTES: u64 = (LIVE_MAX + 256) * SECTOR;

/// More than there are cached blocks.
const LIVE_MAX: u64 = 24_000;

/// What all cached blocks hold.
pub const VALUE: SectorValue = 1;

/// Entries between one island and the next: more than 8 KiB of metadata.
const APART: u64 = 560;

/// Free blocks of an island.
const ISLAND: u64 = 3;

/// Its entries: 0 is the first of the second piece of 256 KiB.
const SECOND_PIECE: u64 = ((256 << 10) - SUPERBLOCK_LEN as u64) / ENTRY_LEN as u64;

/// Seq_count of the superblock; entries have the ones below.
const SEQ_COUNT: u64 = 9;

fn layout() -> Layout {
    Layout::largest(CACHE_BYTES, 0, BlockSize::SECTOR).expect("the size is right")
}

fn is_free(entry: u64) -> bool {
    let last = layout().n_blocks - entry <= ISLAND;
    let boundary = (SECOND_PIECE - 2..SECOND_PIECE + 2).contains(&entry);
    last || boundary || entry % APART < ISLAND
}

/// Blocks of the origin that are cached: the first ones, in the order of the cache.
static LIVE: LazyLock<Vec<u64>> =
    LazyLock::new(|| (0..layout().n_blocks).filter(|&entry| !is_free(entry)).collect());

/// How many sectors of the device are in the cache.
pub fn cached_sectors() -> u64 {
    LIVE.len() as u64
}

/// Sectors of the device near which something changes below: the first and last ones, the boundary between pieces, the islands
/// beside it, and the end of what is cached.
pub fn anchors() -> Vec<u64> {
    let beside = |entry: u64| LIVE.partition_point(|&live| live < entry) as u64;
    let all = [0, APART, SECOND_PIECE - APART, SECOND_PIECE, SECOND_PIECE + APART, layout().n_blocks];
    all.into_iter().map(beside).chain([cached_sectors() + 255]).collect()
}

/// The disk of the cache, as a server left it.
pub fn cache() -> Medium {
    static CACHE: LazyLock<Medium> = LazyLock::new(fill);
    CACHE.clone()
}

fn fill() -> Medium {
    let layout = layout();
    let mut metadata = vec![0; layout.metadata_bytes() as usize];
    let superblock = Superblock { seq_count: SEQ_COUNT, ..Superblock::fresh(&layout) };
    metadata[..SUPERBLOCK_LEN].copy_from_slice(&superblock.encode(true));
    let mut origin_of = vec![None; layout.n_blocks as usize];
    LIVE.iter().zip(0..).for_each(|(&entry, origin)| origin_of[entry as usize] = Some(origin));
    for (entry, bytes) in metadata[SUPERBLOCK_LEN..].chunks_exact_mut(ENTRY_LEN).enumerate() {
        let Some(origin) = origin_of.get(entry) else { break };
        let entry = match origin {
            Some(origin) => Entry { original_sector: *origin, seq_count: 1 + origin % (SEQ_COUNT - 1) },
            None => Entry { original_sector: u64::MAX, seq_count: FREE },
        };
        bytes.copy_from_slice(&entry.encode());
    }
    let first = layout.metadata_bytes() / SECTOR;
    Medium::of(CACHE_BYTES, |sector| {
        let mut content = [0; SECTOR as usize];
        match sector.checked_sub(first).map(|block| origin_of.get(block as usize)) {
            None => content.copy_from_slice(&metadata[(sector * SECTOR) as usize..][..SECTOR as usize]),
            Some(Some(Some(origin))) => payload::fill(VALUE, *origin, &mut content),
            _ => {}
        }
        content
    })
}
