//! What the index knows of a block of the cache, in 16 bytes that change without a lock, and 4 that change under one.

use std::fmt;
use std::ops::Range;

use spillway_core::mutant;
use spillway_core::sync::{AtomicU32, AtomicU64, Ordering};

/// A block of the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OriginBlock(pub(crate) u32);

/// A block of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CacheBlock(pub(crate) u32);

/// When a version was written: the seq_count of its entry. It is committed once the superblock's is above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch(pub(crate) u64);

impl OriginBlock {
    /// The one so many blocks behind.
    pub(crate) fn plus(self, blocks: u32) -> Self {
        Self(self.0 + blocks)
    }
}

impl CacheBlock {
    /// The block of that number in a link; `None` for the end.
    pub(crate) fn of(link: u32) -> Option<Self> {
        (link != NONE).then_some(Self(link))
    }

    /// The number of a block in a link, or of the end.
    pub(crate) fn link(block: Option<Self>) -> u32 {
        block.map_or(NONE, |block| block.0)
    }

    /// The one so many blocks behind.
    pub(crate) fn plus(self, blocks: u32) -> Self {
        Self(self.0 + blocks)
    }
}

impl Epoch {
    /// The one behind.
    pub(crate) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Free, or reserved for a write in flight.
    Empty,
    /// Holds a version.
    Live,
    /// Holds a version that is being written to the origin, or replaced there.
    WritingBack,
    /// Its entry is to be cleared on the device; until its turn comes it stays there.
    Stale,
    /// Its entry is being cleared.
    Clearing,
    /// Free as soon as nobody reads it.
    Leaving,
}

const STAGES: [Stage; 6] =
    [Stage::Empty, Stage::Live, Stage::WritingBack, Stage::Stale, Stage::Clearing, Stage::Leaving];

impl Stage {
    /// Whether a block goes from here to `next`.
    fn leads_to(self, next: Self) -> bool {
        use Stage::{Clearing, Empty, Leaving, Live, Stale, WritingBack};
        matches!(
            (self, next),
            (Empty, Live | Clearing)
                | (Live, WritingBack | Stale | Clearing | Empty | Leaving)
                | (WritingBack, Live | Stale)
                | (Stale, Clearing)
                | (Clearing, Empty | Leaving)
                | (Leaving, Empty)
        )
    }

    /// Whether a version in this stage is what the cache holds of its block of the origin.
    pub(crate) fn holds(self) -> bool {
        matches!(self, Self::Live | Self::WritingBack)
    }
}

const STAGE: u64 = 7;
const READER_SHIFT: u32 = 3;
const READER: u64 = 1 << READER_SHIFT;
const EPOCH_SHIFT: u32 = 20;
const READERS: u64 = (1 << (EPOCH_SHIFT - READER_SHIFT)) - 1;

/// Epochs that a block can name: ten thousand commits a second take 55 years to get there.
pub(crate) const EPOCHS: u64 = 1 << (64 - EPOCH_SHIFT);

/// No block.
pub(crate) const NONE: u32 = u32::MAX;

fn stage_of(word: u64) -> Stage {
    STAGES[(word & STAGE) as usize]
}

fn readers_of(word: u64) -> u64 {
    word >> READER_SHIFT & READERS
}

/// Stage in 3 bits, readers in 17, epoch in 44; the block of the origin; and a link.
///
/// The link is that of a chain of the index while the block holds a version, and that of the pile of freed blocks while it is free. Who
/// may change what: stages and links of versions, who holds the lock of their region; those of other blocks, who owns them. Readers
/// leave without a lock.
pub(crate) struct Block {
    word: AtomicU64,
    origin: AtomicU32,
    link: AtomicU32,
}

impl Block {
    /// A free one.
    fn empty() -> Self {
        Self { word: AtomicU64::new(0), origin: AtomicU32::new(NONE), link: AtomicU32::new(NONE) }
    }

    /// Makes a block that its owner has written a version of `origin`.
    pub(crate) fn hold(&self, origin: OriginBlock, epoch: Epoch) {
        assert!(epoch.0 < EPOCHS, "epoch {epoch}");
        self.origin.store(origin.0, Ordering::Relaxed);
        // Who reads the word without a lock finds the origin behind it.
        let before = self.word.swap(epoch.0 << EPOCH_SHIFT | Stage::Live as u64, Ordering::AcqRel);
        assert_eq!(before, 0, "a block that is written is empty, and nobody reads it");
    }

    /// Goes from one stage to another.
    pub(crate) fn advance(&self, from: Stage, to: Stage) {
        assert!(from.leads_to(to), "from {from:?} to {to:?}");
        let step = (to as u64).wrapping_sub(from as u64);
        let before = self.word.fetch_add(step, Ordering::AcqRel);
        assert_eq!(stage_of(before), from, "a block that becomes {to:?}");
    }

    /// Goes from a stage to being free: true where nobody reads it; otherwise the last reader gets that answer.
    pub(crate) fn leave(&self, from: Stage) -> bool {
        assert!(from.leads_to(Stage::Leaving), "from {from:?}");
        let rash = mutant::on("write_cache: free a block that is being read");
        let is_free = |word: u64| readers_of(word) == 0 || rash;
        let next = |word: u64| if is_free(word) { 0 } else { word & !STAGE | Stage::Leaving as u64 };
        let before = self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| Some(next(word)));
        let before = before.expect("it always changes");
        assert_eq!(stage_of(before), from, "a block that leaves");
        is_free(before)
    }

    /// A reader comes; the version is in its chain, whose lock is held.
    pub(crate) fn pin(&self) {
        let before = self.word.fetch_add(READER, Ordering::Relaxed);
        assert!(readers_of(before) < READERS, "each reader has a buffer, and memory ends before");
        assert!(stage_of(before).holds(), "what is read is held, not {:?}", stage_of(before));
    }

    /// A reader goes, without any lock; true where the block is free now.
    pub(crate) fn unpin(&self) -> bool {
        let before = self.word.fetch_sub(READER, Ordering::AcqRel);
        assert!(readers_of(before) > 0, "unpinned more often than pinned");
        let last = readers_of(before) == 1 && stage_of(before) == Stage::Leaving;
        if last {
            // Nobody else knows it any more.
            self.word.store(0, Ordering::Release);
        }
        last
    }

    /// Stage and epoch at the same moment.
    pub(crate) fn state(&self) -> (Stage, Epoch) {
        let word = self.word.load(Ordering::Acquire);
        (stage_of(word), Epoch(word >> EPOCH_SHIFT))
    }

    pub(crate) fn stage(&self) -> Stage {
        self.state().0
    }

    pub(crate) fn epoch(&self) -> Epoch {
        self.state().1
    }

    #[cfg(test)]
    pub(crate) fn readers(&self) -> u64 {
        readers_of(self.word.load(Ordering::Acquire))
    }

    /// The block of the origin whose version it holds.
    pub(crate) fn origin(&self) -> OriginBlock {
        OriginBlock(self.origin.load(Ordering::Relaxed))
    }

    pub(crate) fn link(&self) -> Option<CacheBlock> {
        CacheBlock::of(self.link.load(Ordering::Relaxed))
    }

    pub(crate) fn set_link(&self, link: Option<CacheBlock>) {
        self.link.store(CacheBlock::link(link), Ordering::Relaxed);
    }
}

/// All blocks of a cache.
pub(crate) struct Blocks {
    blocks: Box<[Block]>,
    /// Epochs from that since which the block of the origin is dirty to that of the version. Changed under the lock of the region.
    dirty_for: Box<[AtomicU32]>,
}

impl Blocks {
    /// Bytes that one takes.
    pub(crate) const BYTES: u64 = (size_of::<Block>() + size_of::<u32>()) as u64;

    /// So many free ones.
    pub(crate) fn new(count: u32) -> Self {
        assert!(count < NONE, "{count} blocks");
        Self {
            blocks: (0..count).map(|_| Block::empty()).collect(),
            dirty_for: (0..count).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// How many.
    pub(crate) fn count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The epoch of the first write that the origin does not have, of the block of the origin whose version `block` holds.
    pub(crate) fn dirty_since(&self, block: CacheBlock) -> Epoch {
        let dirty_for = self.dirty_for[block.0 as usize].load(Ordering::Relaxed);
        Epoch(self[block].epoch().0.saturating_sub(dirty_for.into()))
    }

    /// Notes that epoch. What is dirty for more than 2^32 epochs counts as dirty for that long: at ten thousand commits a second that
    /// is five days, and no age is above one.
    pub(crate) fn set_dirty_since(&self, block: CacheBlock, since: Epoch) {
        let epoch = self[block].epoch();
        assert!(since <= epoch, "a version of {epoch} is dirty since {since}");
        let dirty_for = u32::try_from(epoch.0 - since.0).unwrap_or(u32::MAX);
        self.dirty_for[block.0 as usize].store(dirty_for, Ordering::Relaxed);
    }

    /// Numbers of all, in order.
    pub(crate) fn all(&self) -> impl Iterator<Item = CacheBlock> + use<> {
        (0..self.count()).map(CacheBlock)
    }

    /// Runs of empty blocks, in order: starts and lengths.
    pub(crate) fn empty_runs(&self) -> impl Iterator<Item = Range<u32>> {
        let is_empty = |block: &Block| block.stage() == Stage::Empty;
        let mut start = 0;
        let runs =
            self.blocks.chunk_by(move |one, next| is_empty(one) == is_empty(next)).map(move |blocks| {
                let run = start..start + blocks.len() as u32;
                start = run.end;
                (run, is_empty(&blocks[0]))
            });
        runs.filter_map(|(run, empty)| empty.then_some(run))
    }
}

impl std::ops::Index<CacheBlock> for Blocks {
    type Output = Block;

    fn index(&self, block: CacheBlock) -> &Block {
        &self.blocks[block.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_keep_out_of_each_other_s_way() {
        assert_eq!(size_of::<Block>(), 16);
        let block = Block::empty();
        block.hold(OriginBlock(u32::MAX - 1), Epoch(EPOCHS - 1));
        (0..READERS).for_each(|_| block.pin());
        let way = [Stage::WritingBack, Stage::Live, Stage::Stale, Stage::Clearing];
        way.into_iter().fold(Stage::Live, |from, to| {
            block.advance(from, to);
            assert_eq!((block.stage(), block.readers()), (to, READERS));
            assert_eq!((block.epoch(), block.origin()), (Epoch(EPOCHS - 1), OriginBlock(u32::MAX - 1)));
            to
        });
        assert!(!block.leave(Stage::Clearing), "it is read");
        assert!((1..READERS).all(|_| !block.unpin()) && block.unpin(), "the last reader frees it");
        assert_eq!((block.stage(), block.readers(), block.epoch()), (Stage::Empty, 0, Epoch(0)));
    }

    #[test]
    fn stages_lead_to_each_other_in_one_way_only() {
        let ways = STAGES.iter().flat_map(|from| STAGES.iter().map(move |to| (from, to)));
        assert_eq!(ways.filter(|(from, to)| from.leads_to(**to)).count(), 13);
        assert!(STAGES.iter().all(|stage| !stage.leads_to(*stage)));
        let skips = std::panic::catch_unwind(|| Block::empty().advance(Stage::Empty, Stage::Stale));
        let wrong = std::panic::catch_unwind(|| Block::empty().advance(Stage::Live, Stage::Stale));
        assert!(skips.is_err() && wrong.is_err());
    }
}
