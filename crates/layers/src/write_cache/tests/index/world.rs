//! Index, space and journal, and beside them a plain model of what was written, committed, cleared and written back.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use spillway_core::random::Random;
use spillway_policy::free_runs::Run;

use crate::write_cache::config::Placement;
use crate::write_cache::device::journal::Journal;
use crate::write_cache::index::Index;
use crate::write_cache::index::block::{Blocks, CacheBlock, Epoch, OriginBlock};
use crate::write_cache::index::chains::Limit;
use crate::write_cache::index::space::Space;
use crate::write_cache::index::stretch::BlockLocation;
use crate::write_cache::index::victims::{InRange, Victim};

const BLOCK: u64 = 64 << 10;

/// A write in flight.
pub(super) struct Write {
    epoch: Epoch,
    runs: Vec<Run>,
    origin: u32,
    value: u64,
}

pub(super) struct World {
    random: Random,
    pub(super) index: Index,
    pub(super) space: Space,
    pub(super) journal: Journal,
    origin_blocks: u32,
    pub(super) writes: Vec<Write>,
    pub(super) victims: Vec<Victim>,
    sealed: Option<Epoch>,
    /// What a block of the cache holds.
    values: HashMap<u32, u64>,
    /// The epoch and value of the newest version of each block.
    newest: BTreeMap<u32, (u64, u64)>,
    /// The epoch and value that the origin holds.
    pub(super) below: BTreeMap<u32, (u64, u64)>,
    /// Entries on the cache device, by block: block of the origin, and epoch.
    pub(super) entries: BTreeMap<u32, (u32, u64)>,
    /// Epochs of the writes of each block that the origin does not have, in order.
    dirty: BTreeMap<u32, Vec<u64>>,
    /// The epoch up to which versions of each block were committed.
    floors: BTreeMap<u32, u64>,
    next_value: u64,
}

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let (n_blocks, origin_blocks) = (2 + random.draw() % 90, 1 + random.draw() % 150);
        Self { random, ..Self::sized(seed, n_blocks, origin_blocks) }
    }

    pub(super) fn sized(seed: u64, n_blocks: u64, origin_blocks: u64) -> Self {
        let blocks = Arc::new(Blocks::new(n_blocks as u32));
        Self {
            random: Random(seed),
            index: Index::new(blocks.clone(), origin_blocks, BLOCK),
            space: Space::new(blocks, Placement::default()),
            journal: Journal::new(n_blocks as u32, Epoch(3)),
            origin_blocks: origin_blocks as u32,
            writes: Vec::new(),
            victims: Vec::new(),
            sealed: None,
            values: HashMap::new(),
            newest: BTreeMap::new(),
            below: BTreeMap::new(),
            entries: BTreeMap::new(),
            dirty: BTreeMap::new(),
            floors: BTreeMap::new(),
            next_value: 1,
        }
    }

    fn draw(&mut self, bound: u32) -> u32 {
        (self.random.draw() % u64::from(bound)) as u32
    }

    fn begin_write(&mut self) {
        let (origin, wanted) = (self.draw(self.origin_blocks), 1 + self.draw(20));
        let epoch = self.journal.enter();
        let runs = self.space.reserve(wanted.min(self.origin_blocks - origin));
        if runs.is_empty() {
            return self.journal.leave(epoch);
        }
        let value = self.next_value;
        self.next_value += 1;
        for block in runs.iter().flat_map(|run| run.start..run.start + run.len) {
            self.values.insert(block, value);
        }
        self.writes.push(Write { epoch, runs, origin, value });
    }

    pub(super) fn end_write(&mut self, at: usize) {
        let Write { epoch, runs, origin, value } = self.writes.swap_remove(at);
        let len: u32 = runs.iter().map(|run| run.len).sum();
        if self.draw(8) == 0 {
            self.space.give_back(runs, &[], std::time::Duration::ZERO);
            return self.journal.leave(epoch);
        }
        self.space.end_reservation(len);
        let (free, note) = (|block| self.space.free(block), |block| self.journal.note(epoch, block));
        let committed = self.journal.committed();
        let published = self.index.publish(&runs, epoch, OriginBlock(origin), committed, free, note);
        assert!(published.epoch >= epoch && published.added <= len);
        self.journal.leave(epoch);
        for block in origin..origin + len {
            let newest = self.newest.entry(block).or_default();
            if newest.0 <= epoch.0 {
                *newest = (epoch.0, value);
                self.dirty.entry(block).or_default().push(epoch.0);
            }
        }
    }

    /// Writes a block, from the begin of the write to its end.
    pub(super) fn write_now(&mut self, origin: u32) {
        let (epoch, runs) = (self.journal.enter(), self.space.reserve(1));
        self.values.insert(runs[0].start, epoch.0);
        self.space.end_reservation(1);
        let (free, note) = (|block| self.space.free(block), |block| self.journal.note(epoch, block));
        self.index.publish(&runs, epoch, OriginBlock(origin), self.journal.committed(), free, note);
        self.journal.leave(epoch);
    }

    /// A step of a commit: seals, or completes once the writers have left.
    pub(super) fn commit(&mut self) {
        let Some(sealed) = self.sealed else {
            self.sealed = Some(self.journal.seal());
            return;
        };
        if self.writes.iter().any(|write| write.epoch <= sealed) {
            return;
        }
        self.write_entries(sealed);
        self.journal.superblock_written(sealed.next());
        // A batch may end in the middle of this.
        if self.draw(2) == 0 {
            self.end_victims();
        }
        let mut from = 0;
        while let Some(block) = self.journal.next_of(sealed, from) {
            if self.index.is_of(block, sealed) {
                self.index.drop_replaced(block, sealed.next(), |stale| self.journal.mark_stale(stale));
            }
            self.journal.forget(sealed, block);
            from = block.0 + 1;
        }
        self.journal.end_commit(sealed);
        self.sealed = None;
    }

    /// A commit writes the entries of what was published in its epoch.
    fn write_entries(&mut self, sealed: Epoch) {
        let mut from = 0;
        while let Some(block) = self.journal.next_of(sealed, from) {
            if self.index.is_of(block, sealed) {
                let origin = self.index.blocks[block].origin().0;
                self.entries.insert(block.0, (origin, sealed.0));
                self.floors.insert(origin, sealed.0);
            }
            from = block.0 + 1;
        }
    }

    /// Power fails while these entries are cleared, of which some are clear on the device: nothing comes back that is older than what
    /// was committed.
    fn assert_survives_a_cut(&mut self, clearing: &[CacheBlock]) {
        let mut entries = self.entries.clone();
        clearing.iter().for_each(|block| _ = (self.draw(2) == 0).then(|| entries.remove(&block.0)));
        for (&origin, &floor) in &self.floors {
            let newest = entries.values().filter(|entry| entry.0 == origin).map(|entry| entry.1).max();
            let found = newest.or(self.below.get(&origin).map(|below| below.0));
            assert_eq!(found, Some(floor), "block {origin} after a cut");
        }
    }

    pub(super) fn take(&mut self) {
        let (from, len) = (u64::from(self.draw(self.origin_blocks)), 1 + self.draw(10));
        let committed = self.journal.committed();
        let dirty_before = Epoch(committed.0.saturating_sub(self.random.draw() % 4));
        let before = if self.draw(2) == 0 { Epoch(0) } else { committed };
        let limit = Limit { before, dirty_before, committed };
        let found = self.index.take_next(from, len, limit, |origin| origin.0 % 17 == 3);
        for &Victim { origin, block } in &found.victims {
            let (epoch, since) = (self.entries[&block.0].1, self.dirty[&origin.0][0]);
            assert!(epoch < before.0 || since < dirty_before.0, "{origin:?} of {epoch}, dirty since {since}");
        }
        assert!(found.victims.len() <= len as usize && found.next >= from);
        let consecutive = found.victims.windows(2).all(|pair| pair[0].origin.plus(1) == pair[1].origin);
        assert!(consecutive && found.victims.iter().all(|victim| victim.origin.0 % 17 != 3));
        self.victims.extend(found.victims);
        let (origin, len) = (self.draw(self.origin_blocks), 1 + self.draw(10));
        let range =
            self.index.take_range(OriginBlock(origin), len.min(self.origin_blocks - origin), committed);
        if let InRange::Taken(victims, _) = range {
            self.victims.extend(victims);
        }
    }

    pub(super) fn end_victims(&mut self) {
        let some = self.victims.split_off(self.victims.len() / 2);
        let durable = self.draw(3) > 0;
        for victim in some.iter().filter(|_| durable) {
            let epoch = self.entries[&victim.block.0].1;
            let before = self.below.insert(victim.origin.0, (epoch, self.values[&victim.block.0]));
            assert!(before.is_none_or(|before| before.0 < epoch), "{epoch} over {before:?}");
            self.dirty.get_mut(&victim.origin.0).expect("it was written").retain(|&write| write > epoch);
        }
        self.index.end_write_back(
            &some,
            durable,
            || self.journal.visible(),
            |stale| self.journal.mark_stale(stale),
        );
    }

    pub(super) fn clear(&mut self) {
        if self.journal.stale() == 0 {
            return;
        }
        let wanted = self.journal.clearing_all();
        assert!(wanted > self.journal.cleared.current(), "what is stale is not clear");
        let generation = self.journal.generation_to_clear();
        let (mut from, mut clearing) = (0, Vec::new());
        while let Some(block) = self.journal.next_stale(generation, from) {
            if self.index.begin_clear(block, self.journal.committed()) {
                self.journal.begin_clear(generation, block);
                clearing.push(block);
            }
            from = block.0 + 1;
        }
        assert!(!clearing.is_empty(), "the oldest of each block can be cleared");
        self.assert_survives_a_cut(&clearing);
        clearing.iter().for_each(|block| _ = self.entries.remove(&block.0));
        let mut free = Vec::new();
        let left = |&block: &CacheBlock| {
            self.index.end_clear(block, |free_now| free.push(Run { start: free_now.0, len: 1 }))
        };
        let count = clearing.iter().map(left).sum::<u32>();
        assert_eq!(count as usize, clearing.len(), "each leaves once");
        self.space.free_runs(free);
        self.journal.end_clear(generation, count);
        assert!(self.journal.stale() > 0 || self.journal.cleared.current() >= wanted, "nothing is left");
    }

    /// Reads everything, and looks at each count.
    pub(super) fn check(&self) {
        let mut stretches = Vec::new();
        let mut at = 0;
        while at < self.origin_blocks {
            at += self.index.look_up(OriginBlock(at), self.origin_blocks - at, &mut stretches);
        }
        let mut origin = 0;
        for stretch in &stretches {
            for nth in 0..stretch.len {
                let below = self.below.get(&origin).map_or(0, |below| below.1);
                let found = match stretch.location {
                    BlockLocation::Cache(first) => self.values[&first.plus(nth).0],
                    BlockLocation::Origin => below,
                };
                let expected = self.newest.get(&origin).map_or(0, |newest| newest.1);
                assert_eq!(found, expected, "block {origin}");
                origin += 1;
            }
            if let BlockLocation::Cache(first) = stretch.location {
                self.index.unpin(first, stretch.len, |block| self.space.free(block));
            }
        }
        assert_eq!(origin, self.origin_blocks);
        let (held, count) = self.index.presence(OriginBlock(0), self.origin_blocks);
        assert!(count >= 1 && held == (stretches[0].location != BlockLocation::Origin));
        for (&origin, writes) in &self.dirty {
            let since = self.index.dirty_since(OriginBlock(origin)).map(|since| since.0);
            assert_eq!(since, writes.first().copied(), "since when block {origin} is dirty");
        }
        let used = self.index.verify();
        self.space.verify();
        let all = used + self.space.count() + self.space.reserved();
        assert_eq!(all, self.index.blocks_count(), "no block is lost");
    }

    pub(super) fn step(&mut self) {
        match self.draw(12) {
            0..4 => self.begin_write(),
            4..7 if !self.writes.is_empty() => {
                let at = self.draw(self.writes.len() as u32) as usize;
                self.end_write(at);
            }
            7 => self.commit(),
            8 => self.take(),
            9 => self.end_victims(),
            _ => self.clear(),
        }
    }
}
