//! What the cache holds, in memory: a plain structure without I/O, under the layer's one lock.
//!
//! Each origin block has at most a chain of versions, the newest first. A version is *published* once its data is written, belongs
//! to the *epoch* in which its blocks were reserved, and is *committed* once the superblock's seq_count is above that epoch. A
//! committed version is never written over; its block is free again only after its entry was cleared on the device. A
//! block that readers hold is freed by the last of them.
//!
//! Memory: 12 bytes for each block; for a used one 10 to 16 more in the tree of newest versions, for a free one at most 12 more in
//! the runs of free blocks: an index that was just opened takes 31 at most, whatever it holds, also while it is made. Older versions are
//! in a table of their own, because they are few: those of one commit.

use std::collections::{BTreeMap, VecDeque, btree_map};
use std::ops::Range;
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use spillway_core::mutant;
use spillway_policy::free_runs::{FreeRuns, Run};

use super::aside::Aside;
use super::block::{Block, Stage, Victim};
use super::format::{Entry, FREE};
use super::sweep::Sweep;

/// Where a stretch of a range is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the cache device, from this block on; pinned.
    Cache(u32),
    /// On the origin.
    Origin,
}

/// A stretch of blocks in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) place: Place,
    pub(super) len: u32,
}

/// Adds blocks to the last stretch if that goes on with them.
fn append(stretches: &mut Vec<Stretch>, place: Place, count: u32) {
    match (stretches.last_mut(), place) {
        (Some(Stretch { place: Place::Cache(first), len }), Place::Cache(index))
            if *first + *len == index =>
        {
            *len += count;
        }
        (Some(Stretch { place: Place::Origin, len }), Place::Origin) => *len += count,
        _ => stretches.push(Stretch { place, len: count }),
    }
}

/// Blocks reserved for a write.
#[derive(Clone, Debug)]
pub(super) struct Reserved {
    pub(super) runs: Vec<Run>,
    pub(super) epoch: u64,
}

/// What happened to a version when it was published.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Published {
    /// All of it is committed with this epoch.
    pub(super) epoch: u64,
    /// Blocks that had no version.
    pub(super) added: u32,
    /// Blocks that had an uncommitted one.
    pub(super) over_uncommitted: u32,
    /// Blocks that had a committed one.
    pub(super) over_committed: u32,
}

/// What is found when victims are looked for in a range.
pub(super) enum InRange {
    /// These, up to a block of the origin; they are marked.
    Taken(Vec<Victim>, u32),
    /// The first block is being copied: look again when that has ended.
    Copying,
}

/// Entries looked at under one lock. Longer walks let others have it in between.
pub(super) const LOOKS: usize = 2048;

pub(super) struct Index {
    pub(super) blocks: Vec<Block>,
    pub(super) newest: BTreeMap<u32, u32>,
    /// What a version replaced, where that is still there.
    older: HashMap<u32, u32>,
    pub(super) free: FreeRuns,
    pub(super) aside: Aside,
    /// Whether blocks are taken at a cursor, as the kernel does.
    pub(super) next_fit: bool,
    /// The epoch of new reservations.
    pub(super) epoch: u64,
    /// The superblock's seq_count on the device.
    pub(super) committed: u64,
    /// The seq_count of the superblock on the device: above `committed` while what a commit replaced is being marked.
    on_device: u64,
    /// Writes under way, by epoch.
    reserved: BTreeMap<u64, usize>,
    /// Published and not in a commit yet.
    fresh: Vec<u32>,
    /// To be cleared on the device, in the order of marking, with its number.
    stale: VecDeque<(u64, u32)>,
    /// The same, marked earlier: an older version of their block is being cleared.
    deferred: VecDeque<(u64, u32)>,
    /// Blocks of the origin with an entry that is being cleared.
    clearing_origins: HashSet<u32>,
    marked: u64,
    /// The first number among those that are being cleared.
    clearing_from: Option<u64>,
    clearing: u32,
    copying: u32,
    /// First blocks and lengths of what goes to the origin around the cache. Nothing of that is copied meanwhile: which of the two
    /// would last is open.
    outside: Vec<(u32, u32)>,
    pub(super) sweep: Sweep,
    /// Whether the next batch may come from the neighbourhood of free blocks.
    pub(super) island_next: bool,
}

impl Index {
    /// Bytes that an index of `n_blocks` blocks may take.
    pub(super) fn bytes(n_blocks: u32) -> u64 {
        32 * u64::from(n_blocks) + (64 << 10)
    }

    /// An index of `n_blocks` free blocks.
    pub(super) fn new(n_blocks: u32) -> Self {
        let mut index = Self::recovered(vec![Block::EMPTY; n_blocks as usize], Vec::new(), 0);
        index.free_all_empty();
        index
    }

    /// An index of what was found, the `newest` versions in the order of the origin. Nothing is free before [`Index::end_recovery`].
    pub(super) fn recovered(blocks: Vec<Block>, newest: Vec<(u32, u32)>, seq_count: u64) -> Self {
        let free = FreeRuns::none(blocks.len() as u32);
        Self {
            blocks,
            // Its nodes are full when it is made of a list in order.
            newest: newest.into_iter().collect(),
            older: HashMap::new(),
            free,
            aside: Aside::default(),
            next_fit: false,
            epoch: seq_count,
            committed: seq_count,
            on_device: seq_count,
            reserved: BTreeMap::new(),
            fresh: Vec::new(),
            stale: VecDeque::new(),
            deferred: VecDeque::new(),
            clearing_origins: HashSet::new(),
            marked: 0,
            clearing_from: None,
            clearing: 0,
            copying: 0,
            outside: Vec::new(),
            sweep: Sweep::from(seq_count),
            island_next: false,
        }
    }

    /// Those of these blocks whose entries are being cleared.
    pub(super) fn being_cleared(&self, range: Range<u32>) -> impl Iterator<Item = u32> {
        range.filter(|&index| self.blocks[index as usize].stage() == Stage::Clearing)
    }

    /// All entries that were being cleared are clear on the device: what holds nothing is free.
    pub(super) fn end_recovery(&mut self) {
        let clear = self.blocks.iter_mut().filter(|block| block.stage() == Stage::Clearing);
        clear.for_each(|block| *block = Block::EMPTY);
        self.free_all_empty();
    }

    fn free_all_empty(&mut self) {
        let count = self.empty_runs().count();
        let mut runs = Vec::with_capacity(count);
        runs.extend(self.empty_runs());
        self.free = FreeRuns::of(self.blocks.len() as u32, runs);
    }

    /// Runs of empty blocks, in order.
    fn empty_runs(&self) -> impl Iterator<Item = Run> {
        let alike =
            |one: &Block, next: &Block| (one.stage() == Stage::Empty) == (next.stage() == Stage::Empty);
        let mut start = 0;
        let runs = self.blocks.chunk_by(alike).map(move |blocks| {
            let run = Run { start, len: blocks.len() as u32 };
            start += run.len;
            (run, blocks[0].stage() == Stage::Empty)
        });
        runs.filter_map(|(run, empty)| empty.then_some(run))
    }

    pub(super) fn at(&mut self, index: u32) -> &mut Block {
        &mut self.blocks[index as usize]
    }

    /// Origin blocks that the cache holds.
    pub(super) fn used(&self) -> u32 {
        self.newest.len() as u32
    }

    /// Whether nothing is cached, on the device either, nor about to be.
    pub(super) fn is_empty(&self) -> bool {
        self.newest.is_empty() && self.cleared_to() == self.marked && self.reserved.is_empty()
    }

    /// Versions that are being copied or dropped.
    pub(super) fn copying(&self) -> u32 {
        self.copying
    }

    /// Versions that are in no commit yet.
    pub(super) fn uncommitted(&self) -> u32 {
        self.fresh.len() as u32
    }

    /// Blocks that are free, or will be without another copy.
    pub(super) fn free_soon(&self) -> u32 {
        self.free.count() + self.copying + self.clearing + self.to_be_cleared()
    }

    /// Entries that are to be cleared, and are not being cleared yet.
    pub(super) fn to_be_cleared(&self) -> u32 {
        (self.deferred.len() + self.stale.len()) as u32
    }

    /// Whether the first of `len` blocks from `origin` on is here, and how many that follow are like it, or [`LOOKS`].
    pub(super) fn presence(&self, origin: u32, len: u32) -> (bool, u32) {
        let mut held = self.newest.range(origin..origin + len).map(|(&origin, _)| origin).peekable();
        match held.peek() {
            Some(&first) if first == origin => {
                (true, (origin..).zip(held).take(LOOKS).take_while(|(at, held)| at == held).count() as u32)
            }
            Some(&first) => (false, first - origin),
            None => (false, len),
        }
    }

    /// Takes up to `wanted` blocks, in as few runs as can be had; `None` if nothing is free.
    pub(super) fn reserve(&mut self, wanted: u32) -> Option<Reserved> {
        let (mut runs, mut left) = (Vec::new(), wanted);
        while left > 0 {
            let run = if self.next_fit { self.free.take_next(left) } else { self.free.take_fit(left) };
            let Some(run) = run else { break };
            left -= run.len;
            runs.push(run);
        }
        if runs.is_empty() {
            return None;
        }
        *self.reserved.entry(self.epoch).or_default() += 1;
        Some(Reserved { runs, epoch: self.epoch })
    }

    fn settle(&mut self, epoch: u64) {
        let count = self.reserved.get_mut(&epoch).expect("it was reserved");
        *count -= 1;
        if *count == 0 {
            self.reserved.remove(&epoch);
        }
    }

    /// Writes of every epoch below this one have ended.
    pub(super) fn written(&self) -> u64 {
        self.reserved.keys().next().copied().unwrap_or(self.epoch)
    }

    /// A write was withdrawn, or failed: what of it is in `bad` could not be written, and is set aside.
    pub(super) fn abandon(&mut self, reserved: Reserved, bad: Vec<Run>, now: Duration) {
        self.settle(reserved.epoch);
        reserved.runs.into_iter().for_each(|run| self.free.free(run));
        for run in bad {
            self.free.take_out(run);
            self.aside.put(run, now);
        }
    }

    /// Hands out again what was set aside long ago.
    pub(super) fn retry_aside(&mut self, now: Duration) {
        while let Some(run) = self.aside.take_due(now) {
            self.free.free(run);
        }
    }

    /// A write has ended: its blocks hold the versions of the blocks from `origin` on.
    pub(super) fn publish(&mut self, reserved: Reserved, origin: u32) -> Published {
        self.settle(reserved.epoch);
        let mut published = Published { epoch: reserved.epoch, ..Published::default() };
        let blocks = reserved.runs.iter().flat_map(|run| run.start..run.start + run.len);
        for (index, origin) in blocks.zip(origin..) {
            self.publish_block(index, reserved.epoch, origin, &mut published);
        }
        published
    }

    fn publish_block(&mut self, index: u32, epoch: u64, origin: u32, published: &mut Published) {
        let mut newest = match self.newest.entry(origin) {
            btree_map::Entry::Occupied(newest) => newest,
            btree_map::Entry::Vacant(none) => {
                none.insert(index);
                published.added += 1;
                return self.put(index, epoch, origin);
            }
        };
        let before = *newest.get();
        let known = self.blocks[before as usize].epoch();
        match known < self.committed {
            true => published.over_committed += 1,
            false => published.over_uncommitted += 1,
        }
        if known > epoch {
            // A write that began later has ended before: it is the newer one, and has to be committed for this one to be.
            if !mutant::on("write_cache: commit what was overtaken, not what overtook it") {
                published.epoch = published.epoch.max(known);
            }
            return self.free.free(Run { start: index, len: 1 });
        }
        newest.insert(index);
        let older = if known == epoch { self.older.remove(&before) } else { Some(before) };
        if let Some(older) = older {
            self.older.insert(index, older);
        }
        self.put(index, epoch, origin);
        if known == epoch {
            self.leave(before);
        }
    }

    fn put(&mut self, index: u32, epoch: u64, origin: u32) {
        *self.at(index) = Block::live(origin, epoch);
        self.fresh.push(index);
    }

    /// Frees a block that the device has no entry of, or no more.
    fn leave(&mut self, index: u32) {
        let block = self.at(index);
        if block.readers() > 0 {
            return block.set_stage(Stage::Leaving);
        }
        *block = Block::EMPTY;
        self.free.free(Run { start: index, len: 1 });
    }

    /// Adds to `stretches`, which end before `origin`, where up to [`LOOKS`] of `len` blocks from there on are to be read; what
    /// lies on the cache device is pinned. Returns the first block that was not looked at.
    pub(super) fn look_up(&mut self, origin: u32, len: u32, stretches: &mut Vec<Stretch>) -> u32 {
        let (blocks, mut at) = (&mut self.blocks, origin);
        for (looks, (&held, &index)) in self.newest.range(origin..origin + len).enumerate() {
            if looks == LOOKS {
                return at;
            }
            blocks[index as usize].pin();
            if held > at {
                append(stretches, Place::Origin, held - at);
            }
            append(stretches, Place::Cache(index), 1);
            at = held + 1;
        }
        if at < origin + len {
            append(stretches, Place::Origin, origin + len - at);
        }
        origin + len
    }

    /// Readers of `len` blocks of the cache are done.
    pub(super) fn unpin(&mut self, index: u32, len: u32) {
        for index in index..index + len {
            let block = self.at(index);
            block.unpin();
            if block.readers() == 0 && block.stage() == Stage::Leaving {
                self.leave(index);
            }
        }
    }

    /// Whether something is published that is in no commit yet.
    pub(super) fn has_fresh(&self) -> bool {
        !self.fresh.is_empty()
    }

    /// Ends the present epoch; returns its number.
    pub(super) fn seal(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch - 1
    }

    /// Adds to `taken` what a commit up to `epoch` covers, as far as it is found in [`LOOKS`] looks from `from` on; returns
    /// where to go on, if there is more. No write of these epochs is under way any more.
    pub(super) fn take_fresh(&mut self, epoch: u64, from: usize, taken: &mut Vec<u32>) -> Option<usize> {
        let mut at = from;
        for _ in 0..LOOKS {
            let &index = self.fresh.get(at)?;
            let block = &self.blocks[index as usize];
            let covered = block.epoch() <= epoch;
            if block.stage() != Stage::Live || covered {
                self.fresh.swap_remove(at);
            } else {
                at += 1;
            }
            if block.stage() == Stage::Live && covered {
                taken.push(index);
            }
        }
        Some(at)
    }

    /// The superblock on the device has `seq_count` from now on.
    pub(super) fn superblock_written(&mut self, seq_count: u64) {
        assert!(seq_count > self.on_device, "a commit leads from {} to {seq_count}", self.on_device);
        self.on_device = seq_count;
    }

    /// The superblock on the device has `seq_count`: versions that these, which it has committed, replaced are stale.
    pub(super) fn drop_replaced(&mut self, taken: &[u32], seq_count: u64) {
        for &index in taken {
            if let Some(&older) = self.older.get(&index) {
                self.drop_if_replaced(index, older, seq_count);
            }
        }
    }

    /// A commit is on the device, and what it replaced is marked.
    pub(super) fn commit(&mut self, seq_count: u64) {
        assert_eq!(seq_count, self.on_device, "what is committed is on the device");
        self.committed = seq_count;
    }

    /// A version that a committed one has replaced is stale, unless it is on its way to the origin: then it stays in the chain
    /// until it is there.
    fn drop_if_replaced(&mut self, newer: u32, older: u32, seq_count: u64) {
        if self.at(older).stage() == Stage::Live && self.at(newer).epoch() < seq_count {
            self.drop_older(newer, older);
        }
    }

    /// Takes `older` out of the chain behind `newer`, and marks it.
    fn drop_older(&mut self, newer: u32, older: u32) {
        match self.older.remove(&older) {
            Some(oldest) => self.older.insert(newer, oldest),
            None => self.older.remove(&newer),
        };
        self.mark_stale(older);
    }

    fn mark_stale(&mut self, index: u32) {
        self.at(index).set_stage(Stage::Stale);
        self.marked += 1;
        self.stale.push_back((self.marked, index));
    }

    /// Whether entries are to be cleared.
    pub(super) fn has_stale(&self) -> bool {
        self.to_be_cleared() > 0
    }

    /// The number of the last entry that was marked to be cleared.
    pub(super) fn marked(&self) -> u64 {
        self.marked
    }

    /// Entries up to the one of this number are clear on the device.
    pub(super) fn cleared_to(&self) -> u64 {
        let waiting = [&self.deferred, &self.stale].map(|list| list.front().map(|(number, _)| *number));
        let first = self.clearing_from.into_iter().chain(waiting.into_iter().flatten()).min();
        first.map_or(self.marked, |first| first - 1)
    }

    /// Adds to `taken`, as far as they are found in [`LOOKS`] looks, entries to be cleared on the device together; whether there
    /// may be more. Of one origin block only the oldest is among them: were a newer one clear first, a crash would bring the
    /// older one back.
    pub(super) fn take_stale(&mut self, taken: &mut Vec<u32>) -> bool {
        let all = mutant::on("write_cache: clear all versions at once");
        for _ in 0..LOOKS {
            let Some((number, index)) = self.stale.pop_front() else { return false };
            let origin = self.at(index).origin();
            if !self.clearing_origins.insert(origin) && !all {
                self.deferred.push_back((number, index));
                continue;
            }
            self.at(index).set_stage(Stage::Clearing);
            self.clearing_from.get_or_insert(number);
            self.clearing += 1;
            taken.push(index);
        }
        true
    }

    /// The entries of these blocks are clear on the device.
    pub(super) fn cleared(&mut self, stale: &[u32]) {
        self.clearing -= stale.len() as u32;
        stale.iter().for_each(|&index| self.leave(index));
    }

    /// All entries that were taken are clear: what waited for that is next.
    pub(super) fn end_clearing(&mut self) {
        self.clearing_from = None;
        self.clearing_origins.clear();
        while let Some(deferred) = self.deferred.pop_back() {
            self.stale.push_front(deferred);
        }
    }

    /// What the entry of a block says on the device once the superblock has `seq_count`. What is not committed then is not told:
    /// a crash must not find it, nor a later superblock commit it unseen. What is stale is told until it is cleared in its turn,
    /// because it may hide something older.
    pub(super) fn entry(&self, index: u32, seq_count: u64, block_sectors: u64) -> Entry {
        let block = &self.blocks[index as usize];
        let told = matches!(block.stage(), Stage::Live | Stage::Copying)
            || block.stage() == Stage::Stale && !mutant::on("write_cache: clear with others before its turn");
        let shown = told && block.epoch() < seq_count;
        let clearing = block.stage() == Stage::Clearing
            && !mutant::on("write_cache: an entry that is cleared loses its sector");
        let original_sector = match shown || clearing {
            // Memory may tear between the two words of an entry: what is being cleared keeps its sector.
            true => u64::from(block.origin()) * block_sectors,
            false => u64::MAX,
        };
        Entry { original_sector, seq_count: if shown { block.epoch() } else { FREE } }
    }

    /// Whether a version may leave: it is committed in an epoch before `before`, and no older one is on its way to the origin.
    pub(super) fn may_leave(&self, index: u32, before: u64) -> bool {
        let block = &self.blocks[index as usize];
        block.stage() == Stage::Live
            && block.epoch() < before.min(self.committed)
            && !self.older.contains_key(&index)
    }

    /// Whether a block is on its way to the origin around the cache.
    pub(super) fn is_outside(&self, origin: u32) -> bool {
        self.outside.iter().any(|&(first, len)| (first..first + len).contains(&origin))
            && !mutant::on("write_cache: copy what is being written around")
    }

    /// Something goes around the cache.
    pub(super) fn begin_outside(&mut self, origin: u32, len: u32) {
        self.outside.push((origin, len));
    }

    /// It is done.
    pub(super) fn end_outside(&mut self, origin: u32, len: u32) {
        let at = self.outside.iter().position(|&range| range == (origin, len)).expect("it had begun");
        self.outside.swap_remove(at);
    }

    /// Marks and pins the newest versions of these blocks.
    pub(super) fn take(&mut self, origins: impl Iterator<Item = u32>) -> Vec<Victim> {
        let victims: Vec<Victim> =
            origins.map(|origin| Victim { origin, index: self.newest[&origin] }).collect();
        for victim in &victims {
            let block = self.at(victim.index);
            block.set_stage(Stage::Copying);
            block.pin();
        }
        self.copying += victims.len() as u32;
        victims
    }

    /// Whether a version of a range is in no commit, or there are too many to tell.
    pub(super) fn may_be_fresh(&self, origin: u32, len: u32) -> bool {
        let mut range = self.newest.range(origin..origin + len);
        let fresh = |(_, &index): (&u32, &u32)| self.blocks[index as usize].epoch() >= self.committed;
        range.by_ref().take(LOOKS).any(fresh) || range.next().is_some()
    }

    /// Whether this version, or one that it replaced, is being copied to the origin.
    fn is_on_its_way(&self, index: u32) -> bool {
        let mut chain = std::iter::successors(Some(index), |index| self.older.get(index).copied());
        chain.any(|index| self.blocks[index as usize].stage() == Stage::Copying)
    }

    /// Takes versions of a range that were there when `before` was the seq_count, up to one that is being copied, or as far as
    /// [`LOOKS`] looks go.
    pub(super) fn take_range(&mut self, first: u32, len: u32, before: u64) -> InRange {
        let (mut origins, mut end) = (Vec::new(), first + len);
        for (looks, (&origin, &index)) in self.newest.range(first..first + len).enumerate() {
            let copying = self.is_on_its_way(index);
            if copying && origin == first {
                return InRange::Copying;
            }
            if copying || looks == LOOKS {
                end = origin;
                break;
            }
            if self.may_leave(index, before) {
                origins.push(origin);
            }
        }
        InRange::Taken(self.take(origins.into_iter()), end)
    }

    /// The victims are durable on the origin, or the attempt has failed.
    pub(super) fn end_write_back(&mut self, victims: &[Victim], durable: bool) {
        self.copying -= victims.len() as u32;
        for &Victim { origin, index } in victims {
            self.unpin(index, 1);
            match (self.newest[&origin], durable) {
                (newest, true) if newest == index => {
                    self.newest.remove(&origin);
                    self.mark_stale(index);
                }
                (newest, true) => self.drop_older(self.above(newest, index), index),
                (newest, false) => {
                    self.at(index).set_stage(Stage::Live);
                    if newest != index {
                        self.drop_if_replaced(self.above(newest, index), index, self.on_device);
                    }
                }
            }
        }
    }

    /// The version that replaced `index`, in the chain that begins with `newest`.
    fn above(&self, newest: u32, index: u32) -> u32 {
        let mut newer = newest;
        while self.older[&newer] != index {
            newer = self.older[&newer];
        }
        newer
    }
}
