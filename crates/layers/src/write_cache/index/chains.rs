//! Chains of versions: those of a shard of the index, under its lock.
//!
//! A bucket holds the chains of some blocks of the origin one behind the other. Each has the newest version first: those that hold its
//! content, then stale ones whose entries are not clear yet.

use spillway_core::mutant;
use spillway_core::sync::MutexGuard;

use super::block::{Blocks, CacheBlock, Epoch, NONE, OriginBlock, Stage};
use super::regions::RegionMap;

/// What happened to versions when they were published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Published {
    /// All of it is committed with this epoch.
    pub(crate) epoch: Epoch,
    /// Blocks that had no version.
    pub(crate) added: u32,
    /// Blocks that had an uncommitted one.
    pub(crate) over_uncommitted: u32,
    /// Blocks that had a committed one.
    pub(crate) over_committed: u32,
}

impl Published {
    /// Adds what happened to `others` of the same write.
    pub(crate) fn merge(&mut self, others: Self) {
        self.epoch = self.epoch.max(others.epoch);
        self.added += others.added;
        self.over_uncommitted += others.over_uncommitted;
        self.over_committed += others.over_committed;
    }
}

/// Which versions leave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// The newest ones of their blocks, where they are of epochs below this.
    pub(crate) before: Epoch,
    /// Of blocks that are dirty since an epoch below this, those of epochs below `committed`, which a newer one may have replaced:
    /// a block that is written over for ever has no other.
    pub(crate) dirty_before: Epoch,
    pub(crate) committed: Epoch,
}

/// First blocks of chains.
pub(crate) type Buckets = Box<[u32]>;

/// So many empty ones.
pub(crate) fn empty_buckets(count: usize) -> Buckets {
    assert!(count.is_power_of_two(), "{count} buckets");
    vec![NONE; count].into_boxed_slice()
}

/// A shard in use: the chains of its regions.
pub(crate) struct Chains<'a> {
    pub(crate) blocks: &'a Blocks,
    pub(crate) regions: RegionMap,
    pub(crate) buckets: MutexGuard<'a, Buckets>,
}

impl Chains<'_> {
    pub(crate) fn bucket(&self, origin: OriginBlock) -> usize {
        let regions = &self.regions;
        ((regions.hash(origin) >> 24) as usize + regions.within(origin) as usize) & (self.buckets.len() - 1)
    }

    /// All versions in a bucket.
    pub(crate) fn chain(&self, bucket: usize) -> impl Iterator<Item = CacheBlock> {
        std::iter::successors(CacheBlock::of(self.buckets[bucket]), |&block| self.blocks[block].link())
    }

    /// The newest version of a block in whatever stage, and the version of another block in front of it. Where there is none, the last
    /// one of the chain.
    fn find(&self, origin: OriginBlock) -> (Option<CacheBlock>, Option<CacheBlock>) {
        let mut before = None;
        for block in self.chain(self.bucket(origin)) {
            if self.blocks[block].origin() == origin {
                return (before, Some(block));
            }
            before = Some(block);
        }
        (before, None)
    }

    pub(crate) fn first(&self, origin: OriginBlock) -> Option<CacheBlock> {
        self.find(origin).1
    }

    /// The version that the cache holds of a block.
    pub(crate) fn newest(&self, origin: OriginBlock) -> Option<CacheBlock> {
        self.first(origin).filter(|&block| self.blocks[block].stage().holds())
    }

    /// All versions of a block, the newest first.
    pub(crate) fn versions(&self, origin: OriginBlock) -> impl Iterator<Item = CacheBlock> {
        let of_block = move |block: &CacheBlock| self.blocks[*block].origin() == origin;
        let link = |block: &CacheBlock| self.blocks[*block].link();
        std::iter::successors(self.first(origin), link).take_while(of_block)
    }

    /// Puts `block` between two, of which the first may be the bucket itself.
    fn insert(&mut self, before: Option<CacheBlock>, block: CacheBlock, behind: Option<CacheBlock>) {
        let origin = self.blocks[block].origin();
        assert!(before != Some(block) && behind != Some(block), "{block:?} is in no chain yet");
        self.blocks[block].set_link(behind);
        self.set_next(origin, before, Some(block));
    }

    /// What follows `before` in the chain of `origin`, or is the first of its bucket.
    fn set_next(&mut self, origin: OriginBlock, before: Option<CacheBlock>, next: Option<CacheBlock>) {
        match before {
            Some(before) => self.blocks[before].set_link(next),
            None => {
                let bucket = self.bucket(origin);
                self.buckets[bucket] = CacheBlock::link(next);
            }
        }
    }

    /// Takes the versions of a block whose entries are clear out of their chain, in one pass; returns them.
    pub(crate) fn unlink_cleared(&mut self, origin: OriginBlock) -> Vec<CacheBlock> {
        let (mut before, mut at) = self.find(origin);
        let mut cleared = Vec::new();
        while let Some(block) = at.filter(|&block| self.blocks[block].origin() == origin) {
            at = self.blocks[block].link();
            if self.blocks[block].stage() == Stage::Clearing {
                self.set_next(origin, before, at);
                cleared.push(block);
            } else {
                before = Some(block);
            }
        }
        cleared
    }

    /// The version that is to leave, if it can.
    pub(crate) fn wanted(&self, origin: OriginBlock, limit: Limit) -> Option<CacheBlock> {
        let (blocks, newest) = (&self.blocks, self.newest(origin)?);
        if blocks[newest].epoch() < limit.before {
            return Some(newest);
        }
        let too_old = blocks.dirty_since(newest) < limit.dirty_before;
        let holding = |block: &CacheBlock| blocks[*block].stage().holds();
        let mut versions = self.versions(origin).take_while(holding).filter(|_| too_old);
        versions.find(|&version| blocks[version].epoch() < limit.committed)
    }

    /// The origin has the content of `block`: its block is dirty since the version that replaced that, if there is one.
    pub(crate) fn note_clean(&self, origin: OriginBlock, block: CacheBlock) {
        let blocks = &self.blocks;
        let newer = || self.versions(origin).take_while(|&version| version != block);
        let Some(first) = newer().last() else { return };
        let since = blocks[first].epoch();
        newer().for_each(|version| blocks.set_dirty_since(version, since));
    }

    /// Whether a version may leave: it is of an epoch before `before`, and no older one is on its way to the origin.
    pub(crate) fn may_leave(&self, block: CacheBlock, before: Epoch) -> bool {
        let blocks = &self.blocks;
        let (stage, epoch) = blocks[block].state();
        let older = || {
            let behind = blocks[block].link().map(|behind| &blocks[behind]);
            behind.is_some_and(|behind| behind.origin() == blocks[block].origin() && behind.stage().holds())
        };
        stage == Stage::Live && epoch < before && !older()
    }

    /// `block` holds a version of `origin`. Returns the block that is free by that: the one that it
    /// replaced, or itself where a later write has ended before.
    pub(crate) fn publish(
        &mut self,
        block: CacheBlock,
        epoch: Epoch,
        origin: OriginBlock,
        committed: Epoch,
        published: &mut Published,
    ) -> Option<CacheBlock> {
        let (before, first) = self.find(origin);
        let Some(newest) = first.filter(|&first| self.blocks[first].stage().holds()) else {
            published.added += 1;
            self.blocks[block].hold(origin, epoch);
            self.blocks.set_dirty_since(block, epoch);
            self.insert(before, block, first);
            return None;
        };
        let known = self.blocks[newest].epoch();
        match known < committed {
            true => published.over_committed += 1,
            false => published.over_uncommitted += 1,
        }
        if known > epoch {
            // A write that began later has ended before: it is the newer one, and has to be committed for this one to be.
            if !mutant::on("write_cache: commit what was overtaken, not what overtook it") {
                published.epoch = published.epoch.max(known);
            }
            return Some(block);
        }
        self.blocks[block].hold(origin, epoch);
        self.blocks.set_dirty_since(block, self.blocks.dirty_since(newest));
        if known < epoch {
            self.insert(before, block, first);
            return None;
        }
        // Nothing on the device knows the version of the same epoch.
        self.insert(before, block, self.blocks[newest].link());
        self.blocks[newest].leave(Stage::Live).then_some(newest)
    }

    /// Versions that a version of an epoch below `visible` has replaced are stale, the oldest first. One that is being written back
    /// stays until that has ended, and so do those that replaced it.
    pub(crate) fn drop_replaced(
        &self,
        origin: OriginBlock,
        visible: Epoch,
        stale: &mut impl FnMut(CacheBlock),
    ) {
        let blocks = &self.blocks;
        let mut holding: Vec<CacheBlock> =
            self.versions(origin).take_while(|&block| blocks[block].stage().holds()).collect();
        while let [.., newer, oldest] = holding[..]
            && blocks[newer].epoch() < visible
            && blocks[oldest].stage() == Stage::Live
        {
            assert!(blocks[oldest].epoch() < blocks[newer].epoch(), "{newer:?} has replaced {oldest:?}");
            blocks[oldest].advance(Stage::Live, Stage::Stale);
            stale(oldest);
            holding.pop();
        }
    }

    /// A committed version that was found on the device, in any order; of each block of the origin the newest counts, the others are to
    /// be cleared. Of duplicates, which are equally new, the one that comes `later` counts, or both stay until a newer one comes.
    pub(crate) fn recover(&mut self, block: CacheBlock, origin: OriginBlock, epoch: Epoch, later: bool) {
        self.blocks[block].hold(origin, epoch);
        let versions: Vec<CacheBlock> = self.versions(origin).collect();
        let Some(&newest) = versions.first() else {
            let (before, _) = self.find(origin);
            return self.insert(before, block, None);
        };
        let known = self.blocks[newest].epoch();
        let (older, newer) = match mutant::on("write_cache: recover the older of two versions") {
            true => (epoch > known, epoch < known),
            false => (epoch < known, epoch > known),
        };
        if older || epoch == known && !later && versions.len() > 1 {
            return self.blocks[block].advance(Stage::Live, Stage::Clearing);
        }
        if newer || later {
            versions.iter().for_each(|&version| self.blocks[version].advance(Stage::Live, Stage::Clearing));
            let unlinked = self.unlink_cleared(origin);
            assert_eq!(unlinked.len(), versions.len(), "older versions of {origin:?} leave their chain");
        }
        let (before, first) = self.find(origin);
        self.insert(before, block, first);
    }

    /// The newest first, stale ones behind those that hold something, at most one uncommitted version of an epoch.
    pub(crate) fn verify_versions(&self, versions: &[CacheBlock]) {
        for pair in versions.windows(2) {
            let [(newer, newer_epoch), (older, older_epoch)] =
                [pair[0], pair[1]].map(|block| self.blocks[block].state());
            assert!(newer_epoch > older_epoch, "versions in order: {newer_epoch} before {older_epoch}");
            assert!(newer.holds() || !older.holds(), "{newer:?} before {older:?}");
            let since = [pair[0], pair[1]].map(|block| self.blocks.dirty_since(block));
            assert!(!older.holds() || since[0] == since[1], "one block is dirty since {since:?}");
        }
    }
}
