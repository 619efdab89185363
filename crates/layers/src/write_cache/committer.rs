//! The committer: the one task that writes metadata of an open cache. Commits come before clearing, which is never put off for long.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use spillway_core::env::within;
use spillway_core::{Kind, Place, mutant, task};
use spillway_policy::commits::{self, Action};
use spillway_policy::free_runs::Run;

use super::device::Core;
use super::device::counts::Count;
use super::index::LOOKS;
use super::index::block::{CacheBlock, Epoch};
use crate::slice::Slice;

/// Entries that are cleared together: a commit waits for that.
const CLEARED_MAX: usize = 65536;

/// Where a committer runs that does not run yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committer {
    /// On the caller's thread, which waits for it.
    Here,
    /// On the background thread: clients go on meanwhile, on their own.
    Background,
}

impl Core {
    /// Makes everything that was acknowledged before durable.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Kind> {
        self.commit_all().await?;
        if !mutant::on("write_cache: flush only what is cached") {
            self.settle_bypassed().await?;
        }
        // A flush that succeeds does so before any that has failed.
        self.failure.check()
    }

    /// Commits what was acknowledged before.
    pub(super) async fn commit_all(self: &Arc<Self>) -> Result<(), Kind> {
        self.commit_to(self.journal.covering()).await
    }

    /// Waits until the superblock has `seq_count`; many wait for one commit.
    pub(super) async fn commit_to(self: &Arc<Self>, seq_count: u64) -> Result<(), Kind> {
        if mutant::on("write_cache: acknowledge a flush before the commit") {
            return Ok(());
        }
        assert!(seq_count <= self.journal.epoch().0 + 1, "{seq_count} is not left by the next commit");
        self.want_commit(seq_count, Committer::Here);
        self.journal.failure.or(self.journal.committed.reached(seq_count)).await
    }

    /// Makes a write durable: what went to the cache, and what bypassed it.
    pub(super) async fn settle(self: &Arc<Self>, epoch: Option<Epoch>, bypassed: bool) -> Result<(), Kind> {
        if let Some(epoch) = epoch {
            self.commit_to(epoch.0 + 1).await?;
        }
        if bypassed { self.settle_bypassed().await } else { Ok(()) }
    }

    /// Commits after so many blocks, or so much time.
    pub(super) fn commit_if_due(self: &Arc<Self>) {
        if u64::from(self.journal.uncommitted_now()) >= self.settings.autocommit_blocks().max(1) {
            return self.want_commit(self.journal.epoch().0 + 1, Committer::Background);
        }
        self.commit_timer.start();
    }

    pub(super) fn autocommit_time(&self) -> Duration {
        Duration::from_millis(self.settings.autocommit_time.get())
    }

    /// Commits what the timer was started for; whatever comes after this starts it again.
    pub(super) fn commit_in_time(self: &Arc<Self>) -> bool {
        self.want_acknowledged();
        false
    }

    /// Asks for a commit of what was acknowledged before; nobody waits for it.
    pub(super) fn want_acknowledged(self: &Arc<Self>) {
        self.want_commit(self.journal.covering(), Committer::Background);
    }

    /// Asks for a commit that leaves `seq_count`, unless that was asked for.
    fn want_commit(self: &Arc<Self>, seq_count: u64, committer: Committer) {
        if self.journal.wanted.current() < seq_count {
            self.journal.wanted.advance(seq_count);
            self.run_committer(committer);
        }
    }

    /// Has the committer look, where there is something to do.
    pub(super) fn run_committer(self: &Arc<Self>, committer: Committer) {
        if self.next_action(Action::Rest) == Action::Rest || !self.journal.work.queue() {
            return;
        }
        let core = self.clone();
        match committer {
            Committer::Here => self.env.spawn_here(Box::pin(core.write_metadata())),
            Committer::Background => self.env.spawn(Place::Background, task(move || core.write_metadata())),
        }
    }

    async fn write_metadata(self: Arc<Self>) {
        let mut last = Action::Rest;
        loop {
            last = self.next_action(last);
            let done = match last {
                Action::Rest => Ok(()),
                Action::Commit => self.commit().await,
                Action::Clear => self.clear_some().await,
            };
            if let Err(kind) = done {
                self.journal.failure.set(kind);
                self.fail("writing metadata", kind);
            }
            if last == Action::Rest && !self.journal.work.again() {
                if self.writeback.has_ended() {
                    self.changes.wake_all();
                }
                return;
            }
        }
    }

    fn next_action(&self, last: Action) -> Action {
        let wanted = self.journal.committed().0 < self.journal.wanted.current();
        if self.failure.check().is_err() {
            // A failed origin keeps nothing from being committed. But it may need each version that the cache still has.
            let commits = wanted && self.journal.failure.check().is_ok();
            return if commits { Action::Commit } else { Action::Rest };
        }
        commits::next_action(last, wanted, self.journal.stale(), self.journal.cleared.waiting() > 0)
    }

    async fn commit(self: &Arc<Self>) -> Result<(), Kind> {
        let before = self.journal.committed();
        let sealed = self.journal.seal();
        let committed = sealed.next();
        assert_eq!(before, sealed, "a commit follows the last one");
        if !mutant::on("write_cache: commit without waiting for writes") {
            self.journal.writers_left(sealed).await;
        }
        let runs = self.entries_of(sealed).await;
        if mutant::on("write_cache: write the superblock before the entries") {
            self.write_superblock(committed).await?;
        }
        self.write_entries(&runs, committed, before).await?;
        if !mutant::on("write_cache: skip the flush before the superblock") {
            self.flush_cache().await?;
        }
        self.write_superblock(committed).await?;
        // Before the slices: a version that a failed batch or zeroing gives back in between is dropped by one side or the other.
        self.journal.superblock_written(committed);
        self.drop_replaced(sealed).await;
        self.journal.end_commit(sealed);
        // Afterwards: what is said to be too old before it may leave is looked for in vain, and not again.
        self.aging.ages.lock().note(self.env.coarse_now(), committed.0);
        self.counts.add(Count::Commits, 1);
        self.changes.wake_all();
        self.write_back_if_due();
        self.write_back_for_waiters();
        self.age_if_due();
        Ok(())
    }

    /// Makes durable what the cache device has answered.
    async fn flush_cache(&self) -> Result<(), Kind> {
        match mutant::on("write_cache: give up a flush of the cache device that takes long") {
            true => {
                within(&*self.env, Duration::from_secs(1), self.cache.flush()).await.unwrap_or(Err(Kind::Io))
            }
            false => self.cache.flush().await,
        }
    }

    /// Runs of blocks of the metadata with entries that a commit of a sealed epoch makes visible.
    async fn entries_of(&self, sealed: Epoch) -> Vec<Range<u64>> {
        let mut blocks = Vec::new();
        let next = |from| self.journal.next_of(sealed, from);
        self.walk(next, |block| {
            if self.index.is_of(block, sealed) {
                self.layout.add_metadata_block(block.0, &mut blocks);
            }
            true
        })
        .await;
        self.layout.metadata_runs(blocks)
    }

    /// What the commit of a sealed epoch has replaced is stale.
    async fn drop_replaced(&self, sealed: Epoch) {
        let next = |from| self.journal.next_of(sealed, from);
        self.walk(next, |block| {
            if self.index.is_of(block, sealed) {
                self.index.drop_replaced(block, sealed.next(), |stale| self.journal.mark_stale(stale));
            }
            self.journal.forget(sealed, block);
            true
        })
        .await;
    }

    /// Shows `each` the blocks that `next` finds, in slices, as long as it says that it goes on.
    async fn walk(&self, next: impl Fn(u32) -> Option<CacheBlock>, mut each: impl FnMut(CacheBlock) -> bool) {
        let (mut from, mut slice) = (0, Slice::new());
        while let Some(block) = next(from) {
            if !each(block) {
                return;
            }
            from = block.0 + 1;
            slice.count(1);
            slice.renew_if_over(&*self.env).await;
        }
    }

    /// Clears some entries; only then are their blocks free. A commit that is wanted meanwhile comes before the next ones.
    async fn clear_some(self: &Arc<Self>) -> Result<(), Kind> {
        let generation = self.journal.generation_to_clear();
        let clearing = self.begin_clear(generation).await;
        let committed = self.journal.committed();
        if !mutant::on("write_cache: free a block before its entry is clear") {
            let mut blocks = Vec::new();
            clearing.iter().for_each(|block| self.layout.add_metadata_block(block.0, &mut blocks));
            self.write_entries(&self.layout.metadata_runs(blocks), committed, committed).await?;
            if !mutant::on("write_cache: skip the flush after clearing") {
                self.flush_cache().await?;
            }
        }
        let mut left = 0;
        for some in clearing.chunks(LOOKS) {
            left += self.end_clear(generation, some) as usize;
            self.give_way_after(some).await;
        }
        assert_eq!(left, clearing.len(), "each leaves once");
        self.changes.wake_all();
        self.write_back_for_waiters();
        Ok(())
    }

    /// Entries of a generation that are cleared together, in order.
    async fn begin_clear(&self, generation: u64) -> Vec<CacheBlock> {
        let (mut clearing, committed) = (Vec::new(), self.journal.committed());
        let next = |from| self.journal.next_stale(generation, from);
        self.walk(next, |block| {
            if self.index.begin_clear(block, committed) {
                self.journal.begin_clear(generation, block);
                clearing.push(block);
            }
            clearing.len() < CLEARED_MAX
        })
        .await;
        assert!(clearing.len() <= CLEARED_MAX, "{} entries at once", clearing.len());
        clearing
    }

    /// These entries are clear on the device. Returns how many blocks left: those of the same block of the origin leave together.
    fn end_clear(&self, generation: u64, cleared: &[CacheBlock]) -> u32 {
        let (mut runs, mut count): (Vec<Run>, u32) = (Vec::new(), 0);
        for &block in cleared {
            count += self.index.end_clear(block, |free| match runs.last_mut() {
                Some(run) if run.start + run.len == free.0 => run.len += 1,
                _ => runs.push(Run { start: free.0, len: 1 }),
            });
        }
        self.space.free_runs(runs);
        self.journal.end_clear(generation, count);
        count
    }

    /// Lets others have their turn where `slice` was a whole one, and so perhaps not the last.
    async fn give_way_after(&self, slice: &[CacheBlock]) {
        if slice.len() == LOOKS {
            self.give_way().await;
        }
    }
}
