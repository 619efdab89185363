//! Free blocks of the cache: runs behind a lock, in front of them a pile of blocks that came free one by one, without it.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{AtomicU32, Mutex, Ordering};
use spillway_policy::free_runs::{FreeRuns, Run};
use spillway_policy::quarantine::Quarantine;

use super::block::{Blocks, CacheBlock, NONE, Stage};
use crate::write_cache::config::Placement;

/// Free blocks, those in quarantine, and how they are chosen. Its lock is a leaf.
pub(crate) struct Space {
    blocks: Arc<Blocks>,
    placement: Placement,
    runs: Mutex<Runs>,
    /// The block that came free last; the others are linked behind it.
    pile: AtomicU32,
    /// Free blocks, those in the pile included.
    free: AtomicU32,
    bad: AtomicU32,
    /// Blocks of writes in flight.
    reserved: AtomicU32,
}

struct Runs {
    free: FreeRuns,
    quarantine: Quarantine,
}

impl Space {
    /// Bytes that `n_blocks` blocks take.
    pub(crate) fn bytes(n_blocks: u32) -> u64 {
        FreeRuns::bytes(n_blocks)
    }

    /// The empty ones of `blocks`.
    pub(crate) fn new(blocks: Arc<Blocks>, placement: Placement) -> Self {
        let mut free = FreeRuns::none(blocks.count());
        blocks.empty_runs().for_each(|run| free.free(Run { start: run.start, len: run.end - run.start }));
        let count = AtomicU32::new(free.count());
        let runs = Mutex::new(Runs { free, quarantine: Quarantine::default() });
        Self {
            blocks,
            placement,
            runs,
            pile: AtomicU32::new(NONE),
            free: count,
            bad: AtomicU32::new(0),
            reserved: AtomicU32::new(0),
        }
    }

    /// Free blocks.
    pub(crate) fn count(&self) -> u32 {
        self.free.load(Ordering::Acquire)
    }

    /// Blocks in quarantine.
    pub(crate) fn bad(&self) -> u32 {
        self.bad.load(Ordering::Acquire)
    }

    /// Blocks of writes in flight.
    pub(crate) fn reserved(&self) -> u32 {
        self.reserved.load(Ordering::Acquire)
    }

    /// Reserves up to `wanted` blocks, in as few runs as can be had; none if nothing is free.
    pub(crate) fn reserve(&self, wanted: u32) -> Vec<Run> {
        assert!(wanted > 0, "a write has blocks");
        let (mut taken, mut left) = (Vec::new(), wanted);
        let mut runs = self.runs();
        while left > 0 {
            let Some(run) = (self.placement.0)(&mut runs.free, left) else { break };
            assert!(run.len <= left, "{run:?} where {left} blocks are wanted");
            left -= run.len;
            taken.push(run);
        }
        self.uncount_free(wanted - left);
        self.reserved.fetch_add(wanted - left, Ordering::AcqRel);
        taken
    }

    fn uncount_free(&self, blocks: u32) {
        let before = self.free.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "{blocks} of {before} free blocks");
    }

    /// A block is free, without a lock.
    pub(crate) fn free(&self, block: CacheBlock) {
        assert_eq!(self.blocks[block].stage(), Stage::Empty, "{block:?} is free");
        // Counted first: it may be reserved as soon as it lies on the pile.
        self.free.fetch_add(1, Ordering::AcqRel);
        let mut top = self.pile.load(Ordering::Relaxed);
        loop {
            self.blocks[block].set_link(CacheBlock::of(top));
            match self.pile.compare_exchange(top, block.0, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => top = now,
            }
        }
    }

    /// Blocks are free again: runs in any order.
    pub(crate) fn free_runs(&self, freed: impl IntoIterator<Item = Run>) {
        let mut runs = self.runs();
        for run in freed {
            runs.free.free(run);
            self.free.fetch_add(run.len, Ordering::AcqRel);
        }
    }

    /// So many reserved blocks hold versions from now on, or are free.
    pub(crate) fn end_reservation(&self, blocks: u32) {
        let before = self.reserved.fetch_sub(blocks, Ordering::AcqRel);
        assert!(before >= blocks, "{blocks} of {before} reserved blocks");
    }

    /// Reserved blocks were not used. Those that are `bad` could not be written, and go to quarantine.
    pub(crate) fn give_back(&self, reserved: Vec<Run>, bad: &[Run], now: Duration) {
        self.end_reservation(reserved.iter().map(|run| run.len).sum());
        let mut runs = self.runs();
        for run in reserved {
            runs.free.free(run);
            self.free.fetch_add(run.len, Ordering::AcqRel);
        }
        for &run in bad {
            runs.free.take_out(run);
            runs.quarantine.put(run, now);
            self.uncount_free(run.len);
            self.bad.fetch_add(run.len, Ordering::AcqRel);
        }
    }

    /// Frees what has been in quarantine for long. One load where nothing is.
    pub(crate) fn retry_bad(&self, now: Duration) {
        if self.bad() == 0 {
            return;
        }
        let mut runs = self.runs();
        while let Some(run) = runs.quarantine.take_due(now) {
            runs.free.free(run);
            let before = self.bad.fetch_sub(run.len, Ordering::AcqRel);
            assert!(before >= run.len, "{run:?} of {before} blocks in quarantine");
            self.free.fetch_add(run.len, Ordering::AcqRel);
        }
    }

    /// The longest run of free blocks.
    pub(crate) fn longest_run(&self) -> Option<Run> {
        self.runs().free.longest_run()
    }

    /// Free blocks, the runs that they form, and the length that nine tenths of these reach.
    pub(crate) fn runs_of_free(&self) -> (u32, usize, u32) {
        let runs = self.runs();
        (runs.free.count(), runs.free.runs(), runs.free.p10_len())
    }

    /// The runs, with what was in the pile.
    fn runs(&self) -> impl DerefMut<Target = Runs> + '_ {
        let mut runs = self.runs.lock();
        let mut next = CacheBlock::of(self.pile.swap(NONE, Ordering::Acquire));
        while let Some(block) = next {
            next = self.blocks[block].link();
            runs.free.free(Run { start: block.0, len: 1 });
        }
        runs
    }

    /// Asserts that what is free is empty, and counted.
    pub(crate) fn verify(&self) {
        let runs = self.runs();
        assert_eq!(runs.free.count(), self.count(), "free blocks are counted");
        assert_eq!(runs.quarantine.blocks(), self.bad(), "blocks in quarantine are counted");
        for run in runs.free.iter() {
            let stages = (run.start..run.start + run.len).map(|block| self.blocks[CacheBlock(block)].stage());
            stages.for_each(|stage| assert_eq!(stage, Stage::Empty, "in {run:?}, which is free"));
        }
    }
}
