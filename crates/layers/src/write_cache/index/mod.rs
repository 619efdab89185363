//! What the cache holds of the origin, in memory, without I/O.
//!
//! Each block of the origin has a chain of versions, the newest first: those that hold its content, then stale ones whose entries are not
//! clear yet. A version is *published* once its data is written, and *committed* once the superblock's seq_count is above its epoch. A
//! committed version is never written over; its block is free again only after its entry was cleared on the device, and the last
//! reader of a block frees it.
//!
//! Regions of 1 MiB are hashed over shards. A shard is a lock and a hash table whose buckets lie in the order of blocks within a region,
//! so that a range is looked up along memory. Chains go through the blocks' own links: the memory does not depend on what is cached.
//! `present` tells laps which groups of blocks of the origin may have a version; it is taken out by the lap that finds none.
//!
//! Memory for each block: 20 bytes, up to 4 in buckets, up to 4 in `present`.
//!
//! Locks: one shard at a time.

pub(super) mod block;
pub(super) mod chains;
pub(super) mod present;
pub(super) mod regions;
pub(super) mod space;
pub(super) mod stretch;
pub(super) mod victims;

use std::sync::Arc;

use spillway_core::mutant;
use spillway_core::sync::{AtomicU32, Mutex, Ordering};
use spillway_core::{Budget, Kind};
use spillway_policy::free_runs::Run;

use super::format::{Entry, FREE};
use block::{Blocks, CacheBlock, Epoch, OriginBlock, Stage};
use chains::{Buckets, Chains, Published, empty_buckets};
use present::Present;
use regions::RegionMap;
use stretch::{BlockLocation, Stretch, append};

/// Blocks looked at in one step. Longer walks let others have their turn in between.
pub(super) const LOOKS: usize = 2048;

const SHARDS: usize = 16;

/// Two committed versions of one block that cannot be told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DuplicateEntries(pub(super) CacheBlock, pub(super) CacheBlock);

pub(super) struct Index {
    pub(super) blocks: Arc<Blocks>,
    pub(super) regions: RegionMap,
    shards: Box<[Mutex<Buckets>]>,
    pub(super) present: Present,
    /// Blocks of the origin that the cache holds.
    pub(super) held: AtomicU32,
    pub(super) writing_back: AtomicU32,
}

/// Buckets of a shard, a power of two.
fn bucket_count(n_blocks: u32) -> usize {
    let share = n_blocks as usize / SHARDS;
    if share < 2 { 1 } else { 1 << share.ilog2() }
}

impl Index {
    /// Bytes that an index of `n_blocks` blocks over so many of the origin takes.
    pub(super) fn bytes(n_blocks: u32, origin_blocks: u64, block_bytes: u64) -> u64 {
        let regions = RegionMap::new(n_blocks, origin_blocks, block_bytes);
        let buckets = (SHARDS * bucket_count(n_blocks) * size_of::<u32>()) as u64;
        Blocks::BYTES * u64::from(n_blocks) + buckets + Present::bytes(regions.groups(origin_blocks))
    }

    /// An index of `blocks`, all of which are empty.
    pub(super) fn new(blocks: Arc<Blocks>, origin_blocks: u64, block_bytes: u64) -> Self {
        let regions = RegionMap::new(blocks.count(), origin_blocks, block_bytes);
        Self {
            regions,
            shards: (0..SHARDS).map(|_| Mutex::new(empty_buckets(bucket_count(blocks.count())))).collect(),
            present: Present::new(regions.groups(origin_blocks)),
            held: AtomicU32::new(0),
            writing_back: AtomicU32::new(0),
            blocks,
        }
    }

    /// Makes room for an origin of so many blocks, charged to `budget`; [`Kind::NoSpace`] where that has none. One caller at a time, beside
    /// all others.
    pub(super) fn extend(&self, origin_blocks: u64, budget: &Arc<Budget>) -> Result<(), Kind> {
        self.present.extend(self.regions.groups(origin_blocks), budget)
    }

    /// Blocks of the origin that the cache holds.
    pub(super) fn held(&self) -> u32 {
        self.held.load(Ordering::Acquire)
    }

    /// Versions that are being written back, or replaced on the origin.
    pub(super) fn writing_back(&self) -> u32 {
        self.writing_back.load(Ordering::Acquire)
    }

    /// What a block is used for.
    pub(super) fn stage(&self, block: CacheBlock) -> Stage {
        self.blocks[block].stage()
    }

    /// Whether a block holds a version that a commit of a sealed epoch covers.
    pub(super) fn is_of(&self, block: CacheBlock, sealed: Epoch) -> bool {
        let (stage, epoch) = self.blocks[block].state();
        stage.holds() && epoch <= sealed
    }

    fn shard_of(&self, origin: OriginBlock) -> usize {
        (self.regions.hash(origin) >> 60) as usize % SHARDS
    }

    pub(super) fn chains(&self, origin: OriginBlock) -> Chains<'_> {
        self.lock(&self.shards[self.shard_of(origin)])
    }

    fn lock<'a>(&'a self, shard: &'a Mutex<Buckets>) -> Chains<'a> {
        Chains { blocks: &self.blocks, regions: self.regions, buckets: shard.lock() }
    }

    /// The parts of a range, each in one region.
    pub(super) fn parts(&self, origin: OriginBlock, len: u32) -> impl Iterator<Item = (OriginBlock, u32)> {
        let regions = self.regions;
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = origin.plus(at);
            let part = (at < len).then(|| regions.first_part(first, len - at))?;
            at += part;
            Some((first, part))
        })
    }

    /// A write has ended: its blocks hold the versions of those from `origin` on. Blocks that are free by that go to `free`, those that
    /// are to be committed to `note`.
    pub(super) fn publish(
        &self,
        runs: &[Run],
        epoch: Epoch,
        origin: OriginBlock,
        committed: Epoch,
        mut free: impl FnMut(CacheBlock),
        mut note: impl FnMut(CacheBlock),
    ) -> Published {
        let len = runs.iter().map(|run| run.len).sum();
        let mut blocks = runs.iter().flat_map(|run| run.start..run.start + run.len).map(CacheBlock);
        let mut published = Published { epoch, added: 0, over_uncommitted: 0, over_committed: 0 };
        for (first, part) in self.parts(origin, len) {
            let mut chains = self.chains(first);
            for (at, block) in (0..part).zip(&mut blocks) {
                let origin = first.plus(at);
                let added = published.added;
                let freed = chains.publish(block, epoch, origin, committed, &mut published);
                if published.added > added {
                    self.held.fetch_add(1, Ordering::AcqRel);
                    self.present.mark(self.regions.group(origin));
                }
                match freed {
                    Some(freed) if freed == block => free(block),
                    freed => {
                        note(block);
                        freed.into_iter().for_each(&mut free);
                    }
                }
            }
        }
        let Published { added, over_uncommitted, over_committed, .. } = published;
        assert_eq!(added + over_uncommitted + over_committed, len, "each block is published once");
        published
    }

    /// Adds to `stretches`, which end before `origin`, where the first blocks of `len` are to be read; what lies on the cache device
    /// is pinned. Returns how many were looked at.
    pub(super) fn look_up(&self, origin: OriginBlock, len: u32, stretches: &mut Vec<Stretch>) -> u32 {
        assert!(len > 0, "a range has blocks");
        let part = self.regions.first_part(origin, len);
        let chains = self.chains(origin);
        for at in 0..part {
            let location = chains.newest(origin.plus(at)).map_or(BlockLocation::Origin, BlockLocation::Cache);
            if let BlockLocation::Cache(block) = location {
                self.blocks[block].pin();
            }
            append(stretches, location);
        }
        part
    }

    /// Readers of `len` blocks of the cache are done; those that are free by that go to `free`.
    pub(super) fn unpin(&self, first: CacheBlock, len: u32, mut free: impl FnMut(CacheBlock)) {
        for block in (0..len).map(|at| first.plus(at)) {
            if self.blocks[block].unpin() {
                free(block);
            }
        }
    }

    /// Whether the first of `len` blocks from `origin` on is here, and how many that follow are like it, of [`LOOKS`] at most.
    pub(super) fn presence(&self, origin: OriginBlock, len: u32) -> (bool, u32) {
        let (mut first, mut count) = (None, 0);
        for (start, part) in self.parts(origin, len) {
            let chains = self.chains(start);
            let held = |at: &u32| chains.newest(start.plus(*at)).is_some();
            let is_first = *first.get_or_insert_with(|| held(&0));
            let alike = (0..part).take_while(|at| held(at) == is_first).count() as u32;
            count += alike;
            if alike < part || count as usize >= LOOKS {
                break;
            }
        }
        assert!(0 < count && count <= len, "{count} blocks are alike of {len}");
        (first == Some(true), count)
    }

    /// Whether a version of a range is of an epoch that is not below `committed`, or there are too many blocks to tell.
    pub(super) fn may_be_uncommitted(&self, origin: OriginBlock, len: u32, committed: Epoch) -> bool {
        let uncommitted = |block: CacheBlock| self.blocks[block].epoch() >= committed;
        let looked = self.parts(origin, len.min(LOOKS as u32)).any(|(first, part)| {
            let chains = self.chains(first);
            (0..part).any(|at| chains.newest(first.plus(at)).is_some_and(uncommitted))
        });
        let unseen = mutant::on("write_cache: a long zeroing looks at its beginning only");
        looked || len > LOOKS as u32 && !unseen
    }

    /// The superblock has `visible`: versions that this one has replaced are stale.
    pub(super) fn drop_replaced(&self, block: CacheBlock, visible: Epoch, mut stale: impl FnMut(CacheBlock)) {
        let (held, origin) = (&self.blocks[block], self.blocks[block].origin());
        // What it replaced lies behind it in its chain. Where there is nothing now, nothing comes: versions enter in front.
        if held.link().is_some_and(|behind| self.blocks[behind].origin() == origin) {
            self.chains(origin).drop_replaced(origin, visible, &mut stale);
        }
    }

    /// Begins to clear the entry of a stale block, if a crash that keeps any of what is cleared together brings nothing older back:
    /// either nothing older has an entry, or a newer version of an epoch below `committed` keeps its own, and hides all of them.
    pub(super) fn begin_clear(&self, block: CacheBlock, committed: Epoch) -> bool {
        let origin = self.blocks[block].origin();
        let chains = self.chains(origin);
        let older = self.blocks[block].link().is_some_and(|behind| self.blocks[behind].origin() == origin);
        let stays = |newer: CacheBlock| {
            let (stage, epoch) = self.blocks[newer].state();
            stage != Stage::Clearing && epoch < committed
        };
        let hidden = || chains.versions(origin).take_while(|&newer| newer != block).any(stays);
        if older && !hidden() && !mutant::on("write_cache: clear all versions at once") {
            return false;
        }
        self.blocks[block].advance(Stage::Stale, Stage::Clearing);
        true
    }

    /// The entry of a block is clear on the device, as are those that were cleared with it: those of its block of the origin leave.
    /// Those that nobody reads go to `free`. Returns how many left; none where they left with another.
    pub(super) fn end_clear(&self, block: CacheBlock, mut free: impl FnMut(CacheBlock)) -> u32 {
        // Only who clears changes this stage; a block in another one has left, and may be in use again.
        if self.stage(block) != Stage::Clearing {
            return 0;
        }
        let origin = self.blocks[block].origin();
        let cleared = self.chains(origin).unlink_cleared(origin);
        assert!(!cleared.is_empty(), "{block:?} is in its chain");
        let left = cleared.iter().filter(|&&cleared| self.blocks[cleared].leave(Stage::Clearing));
        left.for_each(|&left| free(left));
        cleared.len() as u32
    }

    /// What the entry of a block says on the device once the superblock has `visible`. Uncommitted versions are written as free: a crash
    /// must not find them, nor a later superblock commit them unseen. Stale ones are written until they are cleared in their turn,
    /// because they may hide something older. Takes no lock.
    pub(super) fn entry(&self, block: CacheBlock, visible: Epoch, block_sectors: u64) -> Entry {
        let (stage, epoch) = self.blocks[block].state();
        let written = stage.holds()
            || stage == Stage::Stale && !mutant::on("write_cache: clear with others before its turn");
        let visible = written && epoch < visible;
        let clearing =
            stage == Stage::Clearing && !mutant::on("write_cache: an entry that is cleared loses its sector");
        let original_sector = match visible || clearing {
            // Memory may tear between the two words of an entry: what is being cleared keeps its sector.
            true => u64::from(self.blocks[block].origin().0) * block_sectors,
            false => u64::MAX,
        };
        Entry { original_sector, seq_count: if visible { epoch.0 } else { FREE } }
    }

    /// A committed version that was found on the device, in any order: see [`Chains::recover`].
    pub(super) fn recover(&self, block: CacheBlock, origin: OriginBlock, epoch: Epoch, later: bool) {
        self.chains(origin).recover(block, origin, epoch, later);
    }

    /// An entry that was found and is not committed is to be cleared.
    pub(super) fn recover_stale(&self, block: CacheBlock) {
        self.blocks[block].advance(Stage::Empty, Stage::Clearing);
    }

    /// All entries were found. Returns how many are to be cleared; or duplicates that count both, and cannot be told apart.
    pub(super) fn end_recovery(&self) -> Result<u32, DuplicateEntries> {
        let mut clearing = 0;
        for block in self.blocks.all() {
            clearing += u32::from(self.stage(block) == Stage::Clearing);
            assert!(
                !matches!(self.stage(block), Stage::WritingBack | Stage::Stale),
                "{block:?} was just found"
            );
            if self.stage(block) != Stage::Live {
                continue;
            }
            let origin = self.blocks[block].origin();
            let other = self.chains(origin).versions(origin).find(|&version| version != block);
            if let Some(other) = other {
                return Err(DuplicateEntries(block, other));
            }
            self.held.fetch_add(1, Ordering::AcqRel);
            self.present.mark(self.regions.group(origin));
        }
        Ok(clearing)
    }

    /// All entries that were to be cleared when it was found are clear on the device.
    pub(super) fn end_clear_found(&self) {
        let cleared = self.blocks.all().filter(|&block| self.stage(block) == Stage::Clearing);
        cleared.for_each(|block| assert!(self.blocks[block].leave(Stage::Clearing), "nobody reads yet"));
    }

    /// Asserts that chains, stages and counts agree.
    /// Blocks in use are returned.
    pub(super) fn verify(&self) -> u32 {
        let (mut held, mut linked, mut writing_back) = (0, 0, 0);
        for (shard, buckets) in self.shards.iter().enumerate() {
            let chains = self.lock(buckets);
            for bucket in 0..chains.buckets.len() {
                let chain: Vec<CacheBlock> = chains.chain(bucket).collect();
                for versions in
                    chain.chunk_by(|one, next| self.blocks[*one].origin() == self.blocks[*next].origin())
                {
                    let origin = self.blocks[versions[0]].origin();
                    assert_eq!((self.shard_of(origin), chains.bucket(origin)), (shard, bucket), "{origin:?}");
                    assert_eq!(
                        chains.first(origin),
                        Some(versions[0]),
                        "versions of {origin:?} lie together"
                    );
                    chains.verify_versions(versions);
                    held += u32::from(self.blocks[versions[0]].stage().holds());
                    assert!(self.present.has(self.regions.group(origin)), "{origin:?} is present");
                }
                let being = |block: &&CacheBlock| self.blocks[**block].stage() == Stage::WritingBack;
                writing_back += chain.iter().filter(being).count() as u32;
                linked += chain.len();
            }
        }
        let in_use =
            |block: &CacheBlock| !matches!(self.blocks[*block].stage(), Stage::Empty | Stage::Leaving);
        assert_eq!(self.blocks.all().filter(in_use).count(), linked, "what is in use is in a chain");
        assert_eq!((held, writing_back), (self.held(), self.writing_back()), "counts of the index");
        self.blocks.all().filter(|&block| self.stage(block) != Stage::Empty).count() as u32
    }
}
