//! Which versions leave the cache: they are marked while they are written back, or replaced on the origin.

use spillway_core::mutant;
use spillway_core::sync::Ordering;

use super::block::{CacheBlock, Epoch, OriginBlock, Stage};
use super::chains::Limit;
use crate::write_cache::index::{Index, LOOKS};

/// A version that leaves for the origin, or because the origin holds something newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Victim {
    pub(crate) origin: OriginBlock,
    pub(crate) block: CacheBlock,
}

/// What is found when victims are looked for in a range.
pub(crate) enum InRange {
    /// These, in so many blocks; they are marked.
    Taken(Vec<Victim>, u32),
    /// The first block is being written back: look again when that has ended.
    WritingBack,
}

/// What a look of a lap came to.
pub(crate) struct LapStep {
    /// Versions of consecutive blocks.
    pub(crate) victims: Vec<Victim>,
    /// Where to go on.
    pub(crate) next: u64,
    /// A version that the limit lets go could not leave.
    pub(crate) skipped: bool,
    /// Nothing lies behind.
    pub(crate) at_end: bool,
}

impl Index {
    /// Takes the next versions within `limit` from block `from` on, at most `len_max` of consecutive blocks, and none that `is_busy`.
    /// Looks at no more than [`LOOKS`] blocks and a group. One caller at a time.
    pub(crate) fn take_next(
        &self,
        from: u64,
        len_max: u32,
        limit: Limit,
        is_busy: impl Fn(OriginBlock) -> bool,
    ) -> LapStep {
        let mut found = LapStep { victims: Vec::new(), next: from, skipped: false, at_end: false };
        assert!(len_max > 0 && limit.before <= limit.committed, "up to {len_max} within {limit:?}");
        let mut looks = 0;
        while looks < LOOKS {
            let Some(group) = self.present.next(self.regions.group_at(found.next)) else {
                found.at_end = found.victims.is_empty();
                break;
            };
            if !self.take_in_group(group, len_max, limit, &is_busy, &mut found) {
                break;
            }
            looks += self.regions.group_range(group).count();
        }
        found
    }

    /// Looks at a group; whether there may be more to take behind it.
    fn take_in_group(
        &self,
        group: u64,
        len_max: u32,
        limit: Limit,
        is_busy: &impl Fn(OriginBlock) -> bool,
        found: &mut LapStep,
    ) -> bool {
        let range = self.regions.group_range(group);
        let from = range.start.max(found.next);
        if from > found.next && !found.victims.is_empty() {
            return false;
        }
        let (chains, mut any) = (self.chains(OriginBlock(from as u32)), from > range.start);
        for at in from..range.end {
            let origin = OriginBlock(at as u32);
            any |= chains.first(origin).is_some();
            let wanted = chains.wanted(origin, limit);
            let leaves = |&block: &CacheBlock| chains.may_leave(block, limit.committed) && !is_busy(origin);
            match wanted.filter(leaves) {
                Some(block) => found.victims.push(self.begin_write_back(origin, block)),
                None if !found.victims.is_empty() => return false,
                None => found.skipped |= wanted.is_some(),
            }
            found.next = at + 1;
            if found.victims.len() == len_max as usize {
                return false;
            }
        }
        if !any {
            self.present.unmark(group);
        }
        true
    }

    fn begin_write_back(&self, origin: OriginBlock, block: CacheBlock) -> Victim {
        self.blocks[block].advance(Stage::Live, Stage::WritingBack);
        self.writing_back.fetch_add(1, Ordering::AcqRel);
        Victim { origin, block }
    }

    /// What a block of the cache is to its neighbours: the block of the origin whose newest version it is, if that may leave.
    pub(crate) fn leaving(&self, block: CacheBlock, before: Epoch) -> Option<OriginBlock> {
        let origin = self.blocks[block].origin();
        let chains = self.chains(origin);
        (chains.newest(origin) == Some(block) && chains.may_leave(block, before)).then_some(origin)
    }

    /// Takes the newest versions of these blocks that may still leave.
    pub(crate) fn take_each(
        &self,
        origins: &[OriginBlock],
        before: Epoch,
        is_busy: impl Fn(OriginBlock) -> bool,
    ) -> Vec<Victim> {
        let take = |&origin: &OriginBlock| {
            let chains = self.chains(origin);
            let newest = chains.newest(origin)?;
            let leaves = chains.may_leave(newest, before) && !is_busy(origin);
            leaves.then(|| self.begin_write_back(origin, newest))
        };
        origins.iter().filter_map(take).collect()
    }

    /// Takes versions of the first blocks of a range that are of epochs below `before`, up to one that is being written back.
    pub(crate) fn take_range(&self, first: OriginBlock, len: u32, before: Epoch) -> InRange {
        let (mut victims, part) = (Vec::new(), self.regions.first_part(first, len));
        let chains = self.chains(first);
        for at in 0..part {
            let origin = first.plus(at);
            if chains.versions(origin).any(|block| self.blocks[block].stage() == Stage::WritingBack) {
                return if at == 0 { InRange::WritingBack } else { InRange::Taken(victims, at) };
            }
            let newest = chains.newest(origin).filter(|&block| chains.may_leave(block, before));
            victims.extend(newest.map(|block| self.begin_write_back(origin, block)));
        }
        InRange::Taken(victims, part)
    }

    /// The victims are durable on the origin, or the attempt has failed. The superblock has `visible()`; what is stale goes to `stale`.
    pub(crate) fn end_write_back(
        &self,
        victims: &[Victim],
        durable: bool,
        visible: impl Fn() -> Epoch,
        mut stale: impl FnMut(CacheBlock),
    ) {
        let early = mutant::on("write_cache: ask what is visible before the lock").then(&visible);
        for &Victim { origin, block } in victims {
            let chains = self.chains(origin);
            if durable {
                let newest = chains.newest(origin) == Some(block);
                chains.note_clean(origin, block);
                self.blocks[block].advance(Stage::WritingBack, Stage::Stale);
                stale(block);
                let before = self.held.fetch_sub(u32::from(newest), Ordering::AcqRel);
                assert!(before >= u32::from(newest), "{origin:?} is held, and counted");
            } else {
                self.blocks[block].advance(Stage::WritingBack, Stage::Live);
            }
            // Asked under the lock: a commit that is not seen here comes to this chain later, and finds the write-back ended.
            chains.drop_replaced(origin, early.unwrap_or_else(&visible), &mut stale);
        }
        let before = self.writing_back.fetch_sub(victims.len() as u32, Ordering::AcqRel);
        assert!(before as usize >= victims.len(), "{} of {before} end", victims.len());
    }
}
