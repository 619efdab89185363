//! An origin in plain memory: for tests, and to compare with.
//!
//! It promises what a RAM disk does: answers at once, forgets at the end of the process. Memory comes in chunks of
//! 64 KiB when first written, is charged to the budget before it is touched, and goes back when a whole chunk is
//! discarded or zeroed. A write that finds no room fails with [`Kind::NoSpace`]; each of its blocks then holds its old or
//! its new content.
//!
//! Chunks live in shards by their index, each behind a lock that readers share. A lock is held for one copy of at most a
//! chunk; no two are held at once.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use spillway_core::sync::{AtomicU64, Ordering, RwLock};
use spillway_core::{
    Answer, Attribute, BlockDevice, BlockSize, Budget, ByteRange, Charge, Error, Extent, Geometry, Grow,
    Kind, LocalFuture, Op, Preset, Request, Spec, Submission, Table, Unit, Value,
};

use crate::open_context::{Open, OpenContext, OpenDevice};
use crate::options::{Options, options};
use crate::sizes;

/// Bytes allocated at once.
pub const CHUNK: u64 = 64 << 10;

/// Bytes charged for a chunk: its own and, rounded up, its entry in the table.
pub const CHUNK_COST: u64 = CHUNK + 64;

const SHARDS: u64 = 64;

/// Chunks looked up for one answer about extents: a bound on the time that a caller is held up.
const LOOKUPS_MAX: usize = 1 << 16;

options! {
    /// What a configuration says about plain memory.
    pub struct Config;
    Start size: u64 = sizes::DEVICE, "Size of the device, a multiple of the block size"
        .unit(Unit::Bytes).preset(Preset::Required);
    Start block_size: u64 = sizes::BLOCK, "Unit of the device"
        .unit(Unit::Bytes).preset(Preset::Number(4096));
}

struct Chunk {
    bytes: Box<[u8]>,
    _charge: Charge,
}

type Shard = RwLock<HashMap<u64, Chunk>>;

/// See the head of this file.
pub struct Memory {
    size: AtomicU64,
    block_size: BlockSize,
    budget: Arc<Budget>,
    shards: Box<[CachePadded<Shard>]>,
}

impl Memory {
    /// An empty device whose chunks are charged to `budget`; [`Kind::Invalid`] for a size that is not allowed.
    pub fn new(config: &Config, budget: Arc<Budget>) -> Result<Arc<Self>, Error> {
        config.check()?;
        let block_size = sizes::block(config.block_size);
        let size = sizes::whole_blocks("size", config.size, block_size)?;
        let shards = (0..SHARDS).map(|_| CachePadded::default()).collect();
        Ok(Arc::new(Self { size: AtomicU64::new(size), block_size, budget, shards }))
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    fn shard(&self, chunk: u64) -> &Shard {
        &self.shards[(chunk % SHARDS) as usize]
    }

    fn allocated(&self) -> u64 {
        self.shards.iter().map(|shard| shard.read().len() as u64 * CHUNK).sum()
    }

    fn read(&self, range: ByteRange, buf: &mut [u8]) {
        assert_eq!(buf.len() as u64, range.len, "a buffer for the range");
        for piece in pieces(range) {
            match self.shard(piece.chunk).read().get(&piece.chunk) {
                Some(chunk) => buf[piece.in_buffer].copy_from_slice(&chunk.bytes[piece.in_chunk]),
                None => buf[piece.in_buffer].fill(0),
            }
        }
    }

    fn write(&self, range: ByteRange, buf: &[u8]) -> Result<(), Kind> {
        assert_eq!(buf.len() as u64, range.len, "a buffer for the range");
        pieces(range).try_for_each(|piece| {
            let bytes = &buf[piece.in_buffer];
            self.change(piece.chunk, |chunk| chunk[piece.in_chunk].copy_from_slice(bytes))
        })
    }

    fn write_zeroes(&self, range: ByteRange, no_hole: bool) -> Result<(), Kind> {
        if !no_hole {
            self.discard(range);
            return Ok(());
        }
        pieces(range).try_for_each(|piece| self.change(piece.chunk, |chunk| chunk[piece.in_chunk].fill(0)))
    }

    /// Frees the chunks inside `range` and zeroes those at its edges.
    fn discard(&self, range: ByteRange) {
        let end = range.offset + range.len;
        let (first, last) = (range.offset.div_ceil(CHUNK), end / CHUNK);
        if first >= last {
            return self.zero(range);
        }
        self.zero(ByteRange::new(range.offset, first * CHUNK - range.offset));
        self.zero(ByteRange::new(last * CHUNK, end - last * CHUNK));
        self.free(first..last);
    }

    fn zero(&self, range: ByteRange) {
        for piece in pieces(range) {
            if let Some(chunk) = self.shard(piece.chunk).write().get_mut(&piece.chunk) {
                chunk.bytes[piece.in_chunk].fill(0);
            }
        }
    }

    /// Costs what is freed, not what is named: terabytes of nothing take no time.
    fn free(&self, chunks: Range<u64>) {
        assert!(chunks.end * CHUNK <= self.size(), "chunks {chunks:?} of {} bytes", self.size());
        if chunks.end - chunks.start <= SHARDS {
            return chunks.for_each(|chunk| drop(self.shard(chunk).write().remove(&chunk)));
        }
        for shard in &self.shards {
            shard.write().retain(|chunk, _| !chunks.contains(chunk));
        }
    }

    fn change(&self, index: u64, change: impl FnOnce(&mut [u8])) -> Result<(), Kind> {
        assert!(index * CHUNK < self.size(), "chunk {index} of {} bytes", self.size());
        let mut shard = self.shard(index).write();
        let chunk = match shard.entry(index) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let charge = self.budget.hold(CHUNK_COST)?;
                entry.insert(Chunk { bytes: vec![0; CHUNK as usize].into(), _charge: charge })
            }
        };
        change(&mut chunk.bytes);
        Ok(())
    }
}

/// The part of a range that lies in one chunk.
struct Piece {
    chunk: u64,
    in_chunk: Range<usize>,
    in_buffer: Range<usize>,
}

fn pieces(range: ByteRange) -> impl Iterator<Item = Piece> {
    let end = range.offset + range.len;
    (range.offset / CHUNK..end.div_ceil(CHUNK)).map(move |chunk| {
        let base = chunk * CHUNK;
        let (from, to) = (base.max(range.offset), (base + CHUNK).min(end));
        let within = |start: u64| (from - start) as usize..(to - start) as usize;
        Piece { chunk, in_chunk: within(base), in_buffer: within(range.offset) }
    })
}

impl Open<()> for Config {
    async fn open(&self, (): (), context: &OpenContext) -> Result<OpenDevice, Error> {
        let memory = Memory::new(self, context.budget.clone())?;
        Ok(OpenDevice { grow: Some(memory.clone()), ..OpenDevice::new(memory, attributes) })
    }
}

impl Grow for Memory {
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let size = sizes::given(&OPTIONS.size, size);
        let size = size.and_then(|size| sizes::whole_blocks("size", size, self.block_size));
        Box::pin(ready(size.map(|size| {
            self.size.fetch_max(size, Ordering::Relaxed);
        })))
    }
}

impl BlockDevice for Memory {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: self.block_size, optimal_io: CHUNK as u32, ..Geometry::in_memory(self.size()) }
    }

    fn submit(&self, mut request: Request) -> Submission {
        let range = request.range;
        let result = match request.op {
            Op::Read => {
                self.read(range, &mut request.buf);
                Ok(())
            }
            Op::Write => self.write(range, &request.buf),
            Op::WriteZeroes => self.write_zeroes(range, request.flags.no_hole),
            Op::Discard => {
                self.discard(range);
                Ok(())
            }
            Op::Flush => Ok(()),
        };
        Answer::Done(request.answer(result))
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let mut extents = Vec::new();
        for piece in pieces(range).take(LOOKUPS_MAX) {
            let len = piece.in_chunk.len() as u64;
            let stored = self.shard(piece.chunk).read().contains_key(&piece.chunk);
            let extent = if stored { Extent::stored(len) } else { Extent::hole(len) };
            extent.append_to(&mut extents);
            if extents.len() > count_max {
                extents.pop();
                break;
            }
        }
        assert!(extents.len() <= count_max, "{} extents where {count_max} are asked for", extents.len());
        Answer::Done(Ok(extents))
    }
}

static ROWS: &[Attribute<Memory>] = &[
    Attribute::read(OPTIONS.size, |memory| Value::U64(memory.size())),
    Attribute::read(OPTIONS.block_size, |memory| Value::U64(memory.block_size.bytes())),
    Attribute::read(
        Spec::gauge("allocated_bytes", Unit::Bytes, "Memory that holds data, in chunks of 64 KiB"),
        |memory| Value::U64(memory.allocated()),
    ),
];

/// The attributes of `memory`.
pub fn attributes(memory: Arc<Memory>) -> Table<Memory> {
    Table::new(memory, ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::{Attributes, IoBuf, Reply, Seam, block_on};

    const CHUNK_LEN: usize = CHUNK as usize;

    fn device(size: u64, budget: &Arc<Budget>) -> (Arc<Memory>, Seam) {
        let config = Config { size, block_size: 4096 };
        let memory = Memory::new(&config, budget.clone()).unwrap();
        (memory.clone(), Seam::new(memory))
    }

    fn ask(seam: &Seam, request: Request) -> Reply {
        block_on(seam.submit(request))
    }

    #[test]
    fn memory_is_charged_on_touch_and_given_back_on_discard() {
        let budget = Budget::new(2 * CHUNK_COST);
        let (memory, seam) = device(1 << 40, &budget);
        assert_eq!(ask(&seam, Request::write(3 * CHUNK - 4096, IoBuf::zeroed(8192))).result, Ok(()));
        assert_eq!((budget.used(), budget.room()), (2 * CHUNK_COST, 0));
        assert_eq!(ask(&seam, Request::write(0, IoBuf::zeroed(4096))).result, Err(Kind::NoSpace));
        assert_eq!(attributes(memory).show("allocated_bytes").unwrap(), (2 * CHUNK).to_string());
        ask(&seam, Request::bare(Op::Discard, ByteRange::new(2 * CHUNK, CHUNK)));
        assert_eq!(budget.used(), CHUNK_COST);
        ask(&seam, Request::bare(Op::Discard, ByteRange::new(0, 1 << 40)));
        assert_eq!(budget.used(), 0);
        drop(seam);
    }

    #[test]
    fn a_smaller_size_shrinks_nothing() {
        let (memory, _) = device(1 << 20, &Budget::new(Budget::UNLIMITED));
        for (wanted, has) in [(2 << 20, 2 << 20), (1 << 20, 2 << 20), (2 << 20, 2 << 20)] {
            block_on(Answer::pending(memory.grow(Some(wanted)))).unwrap();
            assert_eq!(memory.size(), has, "{wanted} wanted");
        }
    }

    #[test]
    fn zeroes_without_holes_keep_their_memory() {
        let budget = Budget::new(1 << 20);
        let (_, seam) = device(1 << 20, &budget);
        let mut request = Request::bare(Op::WriteZeroes, ByteRange::new(0, CHUNK));
        request.flags.no_hole = true;
        assert_eq!(ask(&seam, request).result, Ok(()));
        assert_eq!(budget.used(), CHUNK_COST);
        ask(&seam, Request::bare(Op::WriteZeroes, ByteRange::new(0, CHUNK)));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_discard_in_the_middle_zeroes_its_edges_only() {
        let budget = Budget::new(Budget::UNLIMITED);
        let (_, seam) = device(1 << 20, &budget);
        ask(&seam, Request::write(0, IoBuf::copy_of(&vec![5; 4 * CHUNK_LEN])));
        ask(&seam, Request::bare(Op::Discard, ByteRange::new(CHUNK / 2, 2 * CHUNK)));
        assert_eq!(budget.used(), 3 * CHUNK_COST);
        let bytes = ask(&seam, Request::read(0, IoBuf::new(4 * CHUNK_LEN))).buf;
        let hole = CHUNK_LEN / 2..CHUNK_LEN * 5 / 2;
        assert!(bytes.iter().enumerate().all(|(at, &byte)| byte == if hole.contains(&at) { 0 } else { 5 }));
    }

    #[test]
    fn extents_stop_at_the_count() {
        let budget = Budget::new(Budget::UNLIMITED);
        let (_, seam) = device(1 << 20, &budget);
        ask(&seam, Request::write(CHUNK, IoBuf::zeroed(4096)));
        let extents = |count_max| block_on(seam.extents(ByteRange::new(4096, 1 << 19), count_max)).unwrap();
        let hole = Extent::hole(CHUNK - 4096);
        assert_eq!(extents(1), [hole]);
        assert_eq!(extents(2), [hole, Extent::stored(CHUNK)]);
        assert_eq!(extents(9).iter().map(|extent| extent.len).sum::<u64>(), 1 << 19);
    }

    #[test]
    fn threads_share_a_device() {
        let budget = Budget::new(Budget::UNLIMITED);
        let (_, seam) = device(16 << 20, &budget);
        std::thread::scope(|scope| {
            for lane in 0..4u64 {
                let seam = &seam;
                scope.spawn(move || {
                    for index in (lane..4096).step_by(4) {
                        ask(seam, Request::write(index * 4096, IoBuf::copy_of(&[index as u8; 4096])));
                        let read = ask(seam, Request::read(index * 4096, IoBuf::new(4096)));
                        assert!(read.buf.iter().all(|&byte| byte == index as u8));
                    }
                });
            }
        });
        assert_eq!(budget.used(), 256 * CHUNK_COST);
    }
}
