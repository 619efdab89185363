//! The keeper: the one task that writes metadata of an open cache. Commits come before clearing, which is never put off for long.

use std::sync::Arc;

use spillway_core::sync::Semaphore;
use spillway_core::{Kind, Place, mutant};

use super::cache::Core;
use super::counts::Count;
use super::index::LOOKS;

/// Entries that are cleared together, or hardly more: a commit waits for that.
const CLEARED_MAX: usize = 65536;

/// Entries to be cleared that are not put off for another commit.
const CLEARED_SOON: u32 = 4096;

/// What the keeper did in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Did {
    Nothing,
    Committed,
    Cleared,
}

impl Core {
    /// Makes everything that was acknowledged before durable.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Kind> {
        match self.settings.group_commit {
            true => self.commit_all().await?,
            false => self.commit_alone().await?,
        }
        if !mutant::on("write_cache: flush only what is cached") {
            self.settle_arounds().await?;
        }
        // A flush that succeeds does so before any that has failed.
        self.failure.check()
    }

    /// Commits what was acknowledged before.
    pub(super) async fn commit_all(self: &Arc<Self>) -> Result<(), Kind> {
        self.commit_to(self.covering()).await
    }

    /// The same by a commit that begins when it is this flush's turn, as the kernel does it; unless one that began after the
    /// call has covered it by then.
    async fn commit_alone(self: &Arc<Self>) -> Result<(), Kind> {
        let needed = self.covering();
        let _turn = Turn::take(&self.turn).await;
        let (committed, epoch) = self.with(|opened| (opened.index.committed, opened.index.epoch));
        let target = if committed >= needed { needed } else { epoch + 1 };
        self.commit_to(target).await
    }

    /// The seq_count with which all is committed that has been acknowledged.
    fn covering(&self) -> u64 {
        self.with(|opened| opened.index.epoch + u64::from(opened.index.has_fresh()))
    }

    /// Waits until the superblock has `seq_count`; many wait for one commit.
    pub(super) async fn commit_to(self: &Arc<Self>, seq_count: u64) -> Result<(), Kind> {
        if mutant::on("write_cache: acknowledge a flush before the commit") {
            return Ok(());
        }
        self.want(seq_count);
        self.failure.or(self.committed.reached(seq_count)).await
    }

    /// Asks for a commit that leaves `seq_count`.
    pub(super) fn want(self: &Arc<Self>, seq_count: u64) {
        self.wanted.advance(seq_count);
        self.keep();
    }

    /// The same where nobody waits for it: clients go on meanwhile, on their own threads.
    pub(super) fn want_in_background(self: &Arc<Self>, seq_count: u64) {
        if self.wanted.current() < seq_count {
            self.wanted.advance(seq_count);
            self.keep_in_background();
        }
    }

    /// Has the keeper look, from whatever thread.
    pub(super) fn keep_in_background(self: &Arc<Self>) {
        if !self.has_work() {
            return;
        }
        if !self.keeping.is_idle() {
            return self.keep();
        }
        let core = self.clone();
        let keep = move || async move { core.keep() };
        self.env.spawn(Place::Background, Box::new(move || Box::pin(keep())));
    }

    /// Asks for a commit of what is in none yet.
    pub(super) fn want_fresh(self: &Arc<Self>) {
        let fresh = self.with(|opened| opened.index.has_fresh().then_some(opened.index.epoch));
        if let Some(epoch) = fresh {
            self.want(epoch + 1);
        }
    }

    /// Has the keeper look whether there is something to do.
    pub(super) fn keep(self: &Arc<Self>) {
        if self.keeping.queue() {
            self.env.spawn_here(Box::pin(self.clone().work()));
        }
    }

    async fn work(self: Arc<Self>) {
        let mut last = Did::Nothing;
        loop {
            last = match self.step(last).await {
                Ok(did) => did,
                Err(kind) => {
                    self.fail("writing metadata", kind);
                    Did::Nothing
                }
            };
            if last == Did::Nothing && !self.keeping.again() {
                return;
            }
        }
    }

    fn has_work(&self) -> bool {
        let wanted = self.wanted.current();
        self.failure.check().is_ok()
            && self.with(|opened| opened.index.committed < wanted || opened.index.has_stale())
    }

    /// One commit or one clearing. Commits come first, but where writers ask for one after the other, those who wait for entries to be
    /// clear get a clearing in between.
    async fn step(self: &Arc<Self>, last: Did) -> Result<Did, Kind> {
        if self.failure.check().is_err() {
            return Ok(Did::Nothing);
        }
        let wanted = self.wanted.current();
        let (committed, stale) = self.with(|opened| (opened.index.committed, opened.index.to_be_cleared()));
        let due = stale >= CLEARED_SOON || stale > 0 && self.cleared.waiting() > 0;
        if committed < wanted && !(last == Did::Committed && due) {
            self.commit().await?;
            return Ok(Did::Committed);
        }
        if stale == 0 {
            return Ok(Did::Nothing);
        }
        self.clear_some().await?;
        Ok(Did::Cleared)
    }

    async fn commit(self: &Arc<Self>) -> Result<(), Kind> {
        let (sealed, written) = self.with(|opened| (opened.index.seal(), opened.index.written()));
        self.written.advance(written);
        if !mutant::on("write_cache: commit without waiting for writes") {
            self.written.reached(sealed + 1).await;
        }
        let taken = self.take_fresh(sealed).await;
        let before = self.with(|opened| opened.index.committed);
        if mutant::on("write_cache: write the superblock before the entries") {
            self.write_superblock(sealed + 1).await?;
        }
        self.write_open_entries(&taken, sealed + 1, before).await?;
        if !mutant::on("write_cache: skip the flush before the superblock") {
            self.flush_cache().await?;
        }
        self.write_superblock(sealed + 1).await?;
        // Before the slices: a version that a failed copy or zeroing gives back in between is dropped by one side or the other.
        self.with(|opened| opened.index.superblock_written(sealed + 1));
        for some in taken.chunks(LOOKS) {
            self.with(|opened| opened.index.drop_replaced(some, sealed + 1));
            self.give_way_after(some).await;
        }
        let now = self.env.coarse_now();
        self.with(|opened| {
            opened.index.commit(sealed + 1);
            opened.commit_times.note(now, opened.index.committed);
        });
        self.committed.advance(sealed + 1);
        self.counts.add(Count::Commits, 1);
        self.wake();
        self.copy_if_due();
        self.copy_for_waiters();
        self.age_if_due();
        Ok(())
    }

    /// What a commit up to `sealed` covers.
    async fn take_fresh(&self, sealed: u64) -> Vec<u32> {
        let (mut taken, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = self.with(|opened| opened.index.take_fresh(sealed, at, &mut taken));
            if from.is_some() {
                self.give_way().await;
            }
        }
        taken
    }

    /// Lets others have their turn where `slice` was a whole one, and so perhaps not the last.
    async fn give_way_after(&self, slice: &[u32]) {
        if slice.len() == LOOKS {
            self.give_way().await;
        }
    }

    /// Clears some entries; only then are their blocks free. A commit that is wanted meanwhile comes before the next ones.
    async fn clear_some(self: &Arc<Self>) -> Result<(), Kind> {
        let mut stale = Vec::new();
        while stale.len() < CLEARED_MAX && self.with(|opened| opened.index.take_stale(&mut stale)) {
            self.give_way().await;
        }
        let committed = self.with(|opened| opened.index.committed);
        if !mutant::on("write_cache: free a block before its entry is clear") {
            self.write_open_entries(&stale, committed, committed).await?;
            if !mutant::on("write_cache: skip the flush after clearing") {
                self.flush_cache().await?;
            }
        }
        for some in stale.chunks(LOOKS) {
            self.with(|opened| opened.index.cleared(some));
            self.give_way_after(some).await;
        }
        let cleared = self.with(|opened| {
            opened.index.end_clearing();
            opened.index.cleared_to()
        });
        self.cleared.advance(cleared);
        self.wake();
        self.copy_for_waiters();
        Ok(())
    }
}

/// Has the turn, and passes it on when dropped.
struct Turn<'a>(&'a Semaphore);

impl<'a> Turn<'a> {
    /// Waits for the turn.
    async fn take(turns: &'a Semaphore) -> Self {
        turns.take(1).await;
        Self(turns)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.give(1);
    }
}
