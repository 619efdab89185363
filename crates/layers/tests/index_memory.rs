//! The memory in which a write cache is opened, whatever it holds: what was charged for its index, and not more.
//!
//! An allocator counts. The cache device is made up: its metadata is computed when it is read, so that a large cache takes no memory.
//! What is found, and what is cleared on the device, is compared with the rule, entry by entry.

use std::sync::Arc;

use spillway_core::sync::Mutex;
use spillway_core::{
    Answer, Attributes, BlockDevice, BlockSize, Budget, ByteRange, Extent, Geometry, IoBuf, Kind, Op,
    Request, Seam, Submission, Works,
};
use spillway_counting::{Bytes, Counting};
use spillway_layers::small::null::{self, Null};
use spillway_layers::write_cache::format::{self, Entry, FREE, Superblock};
use spillway_layers::write_cache::{Config, WriteCache, attributes};
use spillway_sim::world::World;

#[global_allocator]
static MEMORY: Counting<Bytes> = Counting(Bytes::new());

const BLOCK: u64 = 4096;
const SECTORS: u64 = BLOCK / 512;

/// Buffers of a cache in a budget without a limit.
const BUFFERS: u64 = 20 << 20;

/// What opening takes besides the index: pieces of metadata, tasks, words.
const BESIDES: usize = 2 << 20;

/// What use takes besides the index: buffers of clients and of metadata, the list of what is cleared together.
const IN_USE: usize = 3 << 20;

/// The entry of a block: of which block of the origin, and when; by the block's number and that of all blocks.
type Rule = fn(u64, u64) -> (u64, u64);

/// A cache device whose entries follow a rule. Each block holds its number.
struct MadeUp {
    layout: format::Layout,
    rule: Rule,
    /// What was written to an entry; all written ones have to be free.
    cleared: Mutex<Vec<bool>>,
}

impl MadeUp {
    fn entry(&self, index: u64) -> Entry {
        let (origin, seq_count) = (self.rule)(index, self.layout.n_blocks);
        Entry { original_sector: origin.wrapping_mul(SECTORS), seq_count }
    }

    fn read(&self, at: u64, buf: &mut [u8]) {
        let metadata = self.layout.metadata_bytes();
        if at >= metadata {
            buf[..8].copy_from_slice(&((at - metadata) / BLOCK).to_le_bytes());
            return;
        }
        let n_blocks = self.layout.n_blocks;
        let seq_count = n_blocks;
        for (slot, chunk) in buf.chunks_exact_mut(16).enumerate() {
            let at = at + 16 * slot as u64;
            match at.checked_sub(64).map(|offset| offset / 16) {
                Some(index) if index < n_blocks => chunk.copy_from_slice(&self.entry(index).encode()),
                Some(_) => chunk.fill(0),
                None => {
                    let superblock = Superblock { seq_count, ..Superblock::fresh(&self.layout) };
                    chunk.copy_from_slice(&superblock.encode(true)[at as usize..][..16]);
                }
            }
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        let mut cleared = self.cleared.lock();
        for (slot, chunk) in bytes.chunks_exact(16).enumerate() {
            let Some(offset) = (at + 16 * slot as u64).checked_sub(64) else { continue };
            let index = offset / 16;
            if index >= self.layout.n_blocks {
                continue;
            }
            let (before, after) = (self.entry(index), Entry::decode(chunk.try_into().expect("16 bytes")));
            if after.seq_count == FREE {
                cleared[index as usize] = before.seq_count != FREE;
            } else {
                assert_eq!(after, before, "an entry that stays was changed");
            }
        }
    }
}

impl BlockDevice for MadeUp {
    fn geometry(&self) -> Geometry {
        let size = self.layout.metadata_bytes() + self.layout.n_blocks * BLOCK;
        let memory = null::Config { size };
        Geometry { size, block_size: BlockSize::PAGE, ..Null::new(&memory).expect("a size").geometry() }
    }

    fn submit(&self, mut request: Request) -> Submission {
        match request.op {
            Op::Read => self.read(request.range.offset, &mut request.buf),
            Op::Write => self.write(request.range.offset, &request.buf),
            _ => {}
        }
        Answer::Done(request.answer(Ok(())))
    }

    fn extents(&self, _: ByteRange, _: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Err(Kind::NotSupported))
    }
}

/// The state of a cache, by name.
const STATES: &[(&str, Rule)] = &[
    ("empty", |_, _| (u64::MAX, FREE)),
    ("all live, in order", |index, _| (index, 0)),
    ("all live, backwards", |index, count| (count - 1 - index, index)),
    ("all live, shuffled", |index, count| (shuffled(index, count), 0)),
    ("all versions of one block", |index, _| (7, index)),
    ("versions of two blocks, the newest first", |index, count| (index % 2, count - 1 - index)),
    ("two versions of each", |index, count| (shuffled(index, count) / 2, index)),
    ("every other free", |index, count| if index % 2 == 0 { (shuffled(index, count), 3) } else { (0, FREE) }),
    ("every other uncommitted", |index, count| if index % 2 == 0 { (index, 0) } else { (index, count) }),
    ("all uncommitted, with odd places", |index, count| (index * 3 + 1, count)),
    ("live, free, live, older", |index, _| match index % 4 {
        0 => (index, 0),
        1 => (0, FREE),
        2 => (index + 1, 9),
        _ => (index, 8),
    }),
];

/// Each number below `count` once.
fn shuffled(index: u64, count: u64) -> u64 {
    let step = [1_000_003, 1_000_033, 1_000_037]
        .into_iter()
        .find(|step| !count.is_multiple_of(*step))
        .expect("one of them");
    (index * step + 12_345) % count
}

/// The block of the cache that holds the newest committed version of each block of the origin, and whether each entry is to be
/// cleared; by the rule, in a table of its own.
fn expected(layout: &format::Layout, rule: Rule) -> (Vec<Option<u64>>, Vec<bool>) {
    let count = layout.n_blocks;
    let mut newest: Vec<Option<(u64, u64)>> = vec![None; count as usize + 8];
    for index in 0..count {
        let (origin, seq_count) = rule(index, count);
        if seq_count < count && newest[origin as usize].is_none_or(|(before, _)| before < seq_count) {
            newest[origin as usize] = Some((seq_count, index));
        }
    }
    let live: Vec<Option<u64>> = newest.into_iter().map(|found| found.map(|(_, index)| index)).collect();
    let is_stale = |index| {
        let (origin, seq_count) = rule(index, count);
        seq_count != FREE && (seq_count >= count || live[origin as usize] != Some(index))
    };
    let stale = (0..count).map(is_stale).collect();
    (live, stale)
}

/// What is charged besides the buffers: at most 32 bytes for each block.
fn charged_for_index(budget: &Budget, n_blocks: u64) -> usize {
    let charged = budget.used() - BUFFERS;
    assert!(charged <= 32 * n_blocks + (64 << 10), "{charged} bytes for {n_blocks} blocks");
    charged as usize
}

fn open(n_blocks: u64, name: &str, rule: Rule) {
    let layout = format::Layout { start: 0, block_size: BlockSize::PAGE, n_blocks };
    let (live, stale) = expected(&layout, rule);
    let cleared = Mutex::new(vec![false; n_blocks as usize]);
    let device = Arc::new(MadeUp { layout, rule, cleared });
    let origin = Null::new(&null::Config { size: (n_blocks + 8) * BLOCK }).expect("a size");
    let (world, budget) = (World::new(1), Budget::new(Budget::UNLIMITED));
    // What was found stays.
    let config = Config { high_watermark: 100, low_watermark: 100, ..Config::default() };
    let (below, env, charged) = (device.clone(), world.clone(), budget.clone());
    let opening =
        async move { WriteCache::open(&config, origin, below, env, charged, Works::default()).await };
    let before = MEMORY.0.restart_peak();
    let opened = world.run(Answer::pending(opening));
    let (cache, _) = opened.unwrap_or_else(|error| panic!("{name}: {error}"));
    let taken = MEMORY.0.peak() - before;
    let charged = charged_for_index(&budget, n_blocks);
    assert!(taken <= charged + BESIDES, "{n_blocks} blocks, {name}: {taken} bytes for {charged}");
    assert!(*device.cleared.lock() == stale, "{n_blocks} blocks, {name}");
    let used = attributes(cache.clone()).get("dirty_blocks").expect("an attribute").number();
    assert_eq!(used, Some(live.iter().flatten().count() as u64), "{n_blocks} blocks, {name}");
    let step = (live.len() / 200).max(1);
    for (block, held) in live.iter().enumerate().step_by(step) {
        let read = Request::read(block as u64 * BLOCK, IoBuf::new(BLOCK as usize));
        let found = world.run(Seam::new(cache.clone()).submit(read)).buf[..8].to_vec();
        assert_eq!(found, held.unwrap_or(0).to_le_bytes(), "{n_blocks} blocks, {name}, block {block}");
    }
    drop(cache);
    world.power_off();
}

/// One test, because the allocator counts for the whole process. Sizes around the ends of a block of metadata, of a piece that is read
/// at once, and of many pieces. 32 bytes for each of 300,000 blocks are 9.6 MB: a list of 8 bytes more for each would be seen.
#[test]
fn a_cache_is_opened_in_the_memory_that_its_index_is_charged_for() {
    let piece = (256 << 10) / 16;
    for n_blocks in [12, 252, 253, piece - 4, piece - 3, 2 * piece + 100, 300_000] {
        for (name, rule) in STATES {
            open(n_blocks, name, *rule);
        }
    }
    use_adversely(150_000);
}

/// A cache in use, and the most memory that was taken since it was opened.
struct InUse {
    world: Arc<World>,
    cache: Arc<WriteCache>,
    before: usize,
}

impl InUse {
    fn ask(&self, request: Request) {
        assert_eq!(self.world.run(Seam::new(self.cache.clone()).submit(request)).result, Ok(()));
    }

    fn write(&self, block: u64, blocks: u64) {
        self.ask(Request::write(block * BLOCK, IoBuf::new((blocks * BLOCK) as usize)));
    }

    fn flush(&self) {
        self.ask(Request::flush());
    }
}

/// Whatever clients do, the index takes what it was charged for when the cache was opened: full, then every other block of it discarded,
/// then single blocks here and there, with as many versions as there can be, none of them committed, and all of them stale.
fn use_adversely(n_blocks: u64) {
    let null = |blocks: u64| Null::new(&null::Config { size: blocks * BLOCK }).expect("a size");
    let (world, budget) = (World::new(1), Budget::new(Budget::UNLIMITED));
    let config =
        Config { high_watermark: 100, low_watermark: 100, autocommit_time: 3_600_000, ..Config::default() };
    let (env, charged, cached) = (world.clone(), budget.clone(), n_blocks + n_blocks / 200 + 8);
    let before = MEMORY.0.restart_peak();
    let opening = async move {
        WriteCache::open(&config, null(4 * n_blocks), null(cached), env, charged, Works::default()).await
    };
    let (cache, _) = world.run(Answer::pending(opening)).expect("it opens");
    let used = InUse { world, cache, before };
    for block in (0..n_blocks).step_by(16) {
        used.write(block, 16.min(n_blocks - block));
    }
    used.flush();
    for block in (0..n_blocks).step_by(2) {
        used.ask(Request::bare(Op::Discard, ByteRange::new(block * BLOCK, BLOCK)));
    }
    used.flush();
    for block in 0..n_blocks / 2 {
        used.write(4 * shuffled(block, n_blocks), 1);
    }
    used.flush();
    for round in 0..3 {
        (0..n_blocks / 8).for_each(|block| used.write(4 * shuffled(block * 8 + round, n_blocks), 1));
    }
    used.flush();
    let (taken, charged) = (MEMORY.0.peak() - used.before, charged_for_index(&budget, n_blocks));
    assert!(taken <= charged + IN_USE, "{n_blocks} blocks: {taken} bytes for {charged}");
    used.world.power_off();
}
