//! Epochs, commits and clearing: what is in which commit, and what is to be cleared, in memory and without I/O.
//!
//! A write enters the present epoch before it takes blocks, and leaves it once they are published. A commit seals the epoch; since there is
//! one commit at a time, at most two epochs have writers: the present one and the one that is being committed. Their counts, and what
//! was published in them, lie in two halves, which take turns.
//!
//! Stale entries are marked in generations. The one that is filled becomes the one that is cleared, once that has nothing left: so what
//! was marked at some moment is clear once the generation of that moment is.
//!
//! Memory for each block: less than half a byte. No locks.

use spillway_core::mutant;
use spillway_core::stats::Counters;
use spillway_core::sync::{
    AtomicU32, AtomicU64, Marks, Ordering, StickyError, WaitList, Watermark, Work, fence,
};

use crate::write_cache::index::block::{CacheBlock, Epoch};

/// Blocks of the cache, counted. A block is counted before it is marked, so that a count of zero says that none is.
struct Counted {
    marks: Marks,
    count: AtomicU32,
}

impl Counted {
    fn new(n_blocks: u32) -> Self {
        Self { marks: Marks::new(n_blocks.into()), count: AtomicU32::new(0) }
    }

    fn add(&self, block: CacheBlock) {
        self.count.fetch_add(1, Ordering::SeqCst);
        self.marks.mark(block.0.into());
    }

    fn next(&self, from: u32) -> Option<CacheBlock> {
        self.marks.next(from.into()).map(|block| CacheBlock(block as u32))
    }

    fn count(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    fn uncount(&self, blocks: u32) {
        let before = self.count.fetch_sub(blocks, Ordering::SeqCst);
        assert!(before >= blocks, "{blocks} of {before} blocks");
    }
}

/// See the head of this file.
pub(crate) struct Journal {
    epoch: AtomicU64,
    /// Writes in flight, by half.
    writers: Counters<2>,
    /// Writers of a sealed epoch have left.
    left: WaitList,
    /// Published, in no commit yet, by half.
    uncommitted: [Counted; 2],
    /// The seq_count of the superblock on the device: above `committed` while what a commit replaced becomes stale.
    visible: AtomicU64,
    /// A commit up to here is wanted: the seq_count it is to leave.
    pub(crate) wanted: Watermark,
    /// The seq_count up to which commits are complete.
    pub(crate) committed: Watermark,
    /// To be cleared, by half; those whose entries are being cleared are counted, and not marked.
    stale: [Counted; 2],
    /// The generation of what becomes stale now.
    generation: AtomicU64,
    /// Generations up to this one are clear.
    pub(crate) cleared: Watermark,
    pub(crate) work: Work,
    /// Metadata could not be written: there are no more commits.
    pub(crate) failure: StickyError,
}

fn half(number: u64) -> usize {
    (number & 1) as usize
}

impl Journal {
    /// Bytes that the journal of a cache of `n_blocks` takes.
    pub(crate) fn bytes(n_blocks: u32) -> u64 {
        4 * Marks::bytes(n_blocks.into())
    }

    /// The journal of a cache whose superblock has `seq_count`.
    pub(crate) fn new(n_blocks: u32, seq_count: Epoch) -> Self {
        let halves = || [(); 2].map(|()| Counted::new(n_blocks));
        let journal = Self {
            epoch: AtomicU64::new(seq_count.0),
            writers: Counters::default(),
            left: WaitList::default(),
            uncommitted: halves(),
            visible: AtomicU64::new(seq_count.0),
            wanted: Watermark::default(),
            committed: Watermark::default(),
            stale: halves(),
            generation: AtomicU64::new(1),
            cleared: Watermark::default(),
            work: Work::default(),
            failure: StickyError::default(),
        };
        journal.committed.advance(seq_count.0);
        journal
    }

    /// The epoch of new writes.
    pub(crate) fn epoch(&self) -> Epoch {
        Epoch(self.epoch.load(Ordering::SeqCst))
    }

    /// Everything of an epoch below is committed.
    pub(crate) fn committed(&self) -> Epoch {
        Epoch(self.committed.current())
    }

    /// The superblock's seq_count.
    pub(crate) fn visible(&self) -> Epoch {
        Epoch(self.visible.load(Ordering::SeqCst))
    }

    /// A write begins, in the present epoch, which is returned.
    pub(crate) fn enter(&self) -> Epoch {
        loop {
            let epoch = self.epoch();
            self.writers.add(half(epoch.0), 1);
            // Either the seal sees the writer, or the writer sees the seal.
            fence(Ordering::SeqCst);
            if self.epoch() == epoch {
                return epoch;
            }
            self.leave(epoch);
        }
    }

    /// A write has ended, and what it wrote is published.
    pub(crate) fn leave(&self, epoch: Epoch) {
        self.writers.sub(half(epoch.0), 1);
        fence(Ordering::SeqCst);
        if self.epoch() != epoch {
            self.left.wake_all();
        }
    }

    /// Writes in flight.
    pub(crate) fn writers(&self) -> u64 {
        self.writers.sum(0) + self.writers.sum(1)
    }

    /// A block was published in `epoch`, whose writer has not left yet.
    pub(crate) fn note(&self, epoch: Epoch, block: CacheBlock) {
        assert!(epoch >= self.committed(), "{block:?} of {epoch}, which is committed");
        self.uncommitted[half(epoch.0)].add(block);
    }

    /// Blocks published that are in no commit yet.
    pub(crate) fn uncommitted(&self) -> u32 {
        self.uncommitted.iter().map(Counted::count).sum()
    }

    /// Blocks published in the present epoch.
    pub(crate) fn uncommitted_now(&self) -> u32 {
        self.uncommitted[half(self.epoch().0)].count()
    }

    /// The seq_count with which all is committed that has been acknowledged.
    pub(crate) fn covering(&self) -> u64 {
        loop {
            let epoch = self.epoch();
            let some = self.uncommitted[half(epoch.0)].count() > 0;
            // The count is that of this epoch only if no commit has taken it meanwhile.
            if self.epoch() == epoch {
                return epoch.0 + u64::from(some);
            }
        }
    }

    /// Seals the present epoch and returns it. One commit at a time.
    pub(crate) fn seal(&self) -> Epoch {
        let sealed = self.epoch();
        assert_eq!(sealed, self.committed(), "one commit at a time");
        assert_eq!(self.uncommitted[half(sealed.0 + 1)].count(), 0, "the other half is empty");
        self.epoch.store(sealed.0 + 1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        sealed
    }

    /// Waits until the writers of a sealed epoch have left.
    pub(crate) async fn writers_left(&self, sealed: Epoch) {
        assert!(sealed < self.epoch(), "epoch {sealed} is sealed");
        self.left.until(|| self.writers.is_zero(half(sealed.0)).then_some(())).await;
    }

    /// The first block from `from` on that was published in a sealed epoch. One caller at a time, as below.
    pub(crate) fn next_of(&self, sealed: Epoch, from: u32) -> Option<CacheBlock> {
        assert!(sealed < self.epoch(), "epoch {sealed} is sealed");
        self.uncommitted[half(sealed.0)].next(from)
    }

    /// A block published in a sealed epoch is done with.
    pub(crate) fn forget(&self, sealed: Epoch, block: CacheBlock) {
        self.uncommitted[half(sealed.0)].marks.unmark(block.0.into());
    }

    /// The superblock on the device has `seq_count` from now on.
    pub(crate) fn superblock_written(&self, seq_count: Epoch) {
        let before = self.visible.swap(seq_count.0, Ordering::SeqCst);
        assert!(seq_count.0 > before, "a commit leads from {before} to {seq_count}");
    }

    /// The commit of a sealed epoch is complete: it is on the device, and what it replaced is stale.
    pub(crate) fn end_commit(&self, sealed: Epoch) {
        assert_eq!(self.visible(), sealed.next(), "what is committed is on the device");
        let uncommitted = &self.uncommitted[half(sealed.0)];
        assert_eq!(uncommitted.next(0), None, "what was sealed is done with");
        uncommitted.uncount(uncommitted.count());
        self.committed.advance(sealed.0 + 1);
    }

    /// A block is stale.
    pub(crate) fn mark_stale(&self, block: CacheBlock) {
        loop {
            let generation = self.generation.load(Ordering::SeqCst);
            let stale = &self.stale[half(generation)];
            stale.count.fetch_add(1, Ordering::SeqCst);
            // From here on the generation is not clear before this block is, if it is still the one that is filled.
            let unseen = mutant::on("write_cache: mark a block in a generation that may be clear");
            if unseen || self.generation.load(Ordering::SeqCst) == generation {
                return stale.marks.mark(block.0.into());
            }
            stale.uncount(1);
            self.advance_cleared(half(generation));
        }
    }

    /// The latest generation of a half that is not filled any more is clear once nothing of it is counted. Loads in this order: what is
    /// filled now may be counted as well, and nothing comes to what was filled before.
    fn advance_cleared(&self, half_of: usize) {
        let filled = self.generation.load(Ordering::SeqCst);
        if self.stale[half_of].count() == 0 {
            let behind = if half(filled - 1) == half_of { 1 } else { 2 };
            self.cleared.advance(filled.saturating_sub(behind));
        }
    }

    /// Stale blocks whose entries are not clear yet.
    pub(crate) fn stale(&self) -> u32 {
        self.stale.iter().map(Counted::count).sum()
    }

    /// The generation with which everything is clear that is stale now. A generation of which nothing is stale is not cleared.
    pub(crate) fn clearing_all(&self) -> u64 {
        let filled = self.generation.load(Ordering::SeqCst);
        let has_some = |generation: &u64| self.stale[half(*generation)].count() > 0;
        [filled, filled - 1].into_iter().find(has_some).unwrap_or(0)
    }

    /// The generation to be cleared now. One caller at a time, as below.
    pub(crate) fn generation_to_clear(&self) -> u64 {
        let filled = self.generation.load(Ordering::SeqCst);
        if self.stale[half(filled - 1)].count() > 0 {
            return filled - 1;
        }
        self.generation.store(filled + 1, Ordering::SeqCst);
        self.cleared.advance(filled - 1);
        filled
    }

    /// The first stale block from `from` on of a generation whose clearing has not begun.
    pub(crate) fn next_stale(&self, generation: u64, from: u32) -> Option<CacheBlock> {
        assert!(
            generation < self.generation.load(Ordering::SeqCst),
            "generation {generation} is filled no more"
        );
        self.stale[half(generation)].next(from)
    }

    /// The entry of a stale block is being cleared.
    pub(crate) fn begin_clear(&self, generation: u64, block: CacheBlock) {
        let marks = &self.stale[half(generation)].marks;
        assert!(marks.has(block.0.into()), "{block:?} is stale");
        marks.unmark(block.0.into());
    }

    /// The entries of so many blocks of a generation are clear.
    pub(crate) fn end_clear(&self, generation: u64, blocks: u32) {
        self.stale[half(generation)].uncount(blocks);
        self.advance_cleared(half(generation));
    }
}
