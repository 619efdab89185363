//! Free blocks as runs: a write takes blocks that follow each other, so that it is one I/O.
//!
//! A run is a stretch of free blocks with no free block beside it. Two ways to choose:
//!
//! - **Fit**: the shortest run that is long enough, or else the longest there is. Small writes use up islands, and long runs are
//!   kept for long writes.
//! - **Next fit**: what lies at a cursor that only moves forward and around. It takes no look at what follows, so a hole of one
//!   block splits a write; Linux's dm-writecache does this. It is kept to be compared with.
//!
//! Each run is kept by start and by length, in ordered trees of 8-byte keys: with every other block free, the worst case, that
//! is some 12 bytes for each block of the cache.

use std::collections::{BTreeMap, BTreeSet};

/// A stretch of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: u32,
    /// Blocks.
    pub len: u32,
}

/// The free ones among the blocks of a cache, at most 2^32 - 1 of them.
#[derive(Clone, Debug)]
pub struct FreeRuns {
    blocks: u32,
    by_start: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    free: u32,
    cursor: u32,
}

impl FreeRuns {
    /// `blocks` blocks, none of them free.
    pub fn none(blocks: u32) -> Self {
        Self { blocks, by_start: BTreeMap::new(), by_len: BTreeSet::new(), free: 0, cursor: 0 }
    }

    /// `blocks` blocks, all of them free.
    pub fn all(blocks: u32) -> Self {
        let mut all = Self::none(blocks);
        if blocks > 0 {
            all.free(Run { start: 0, len: blocks });
        }
        all
    }

    /// `blocks` blocks, of which these are free: runs in order, none beside another. The trees are as dense as can be, and all
    /// is done in 28 bytes for each run.
    pub fn of(blocks: u32, runs: Vec<Run>) -> Self {
        let apart = |pair: &[Run]| pair[0].start + pair[0].len < pair[1].start;
        assert!(runs.windows(2).all(apart), "runs in order with blocks between them");
        assert!(runs.iter().all(|run| run.len > 0), "a run has blocks");
        assert!(runs.last().is_none_or(|run| run.start + run.len <= blocks), "runs among {blocks} blocks");
        let free = runs.iter().map(|run| run.len).sum();
        // Both lists are made in the place of the one before, and the trees of lists in order.
        let mut lens: Vec<(u32, u32)> = runs.into_iter().map(|run| (run.len, run.start)).collect();
        let by_start = lens.iter().map(|&(len, start)| (start, len)).collect();
        lens.sort_unstable();
        Self { blocks, by_start, by_len: lens.into_iter().collect(), free, cursor: 0 }
    }

    /// Free blocks.
    pub fn count(&self) -> u32 {
        self.free
    }

    /// Runs that the free blocks form.
    pub fn runs(&self) -> usize {
        self.by_start.len()
    }

    /// Blocks of the longest run; 0 without any.
    pub fn longest(&self) -> u32 {
        self.longest_run().map_or(0, |run| run.len)
    }

    /// The longest run; of several the last.
    pub fn longest_run(&self) -> Option<Run> {
        self.by_len.last().map(|&(len, start)| Run { start, len })
    }

    /// Mean length of runs in blocks; 0 without any.
    pub fn mean_len(&self) -> f64 {
        if self.free == 0 { 0.0 } else { f64::from(self.free) / self.runs() as f64 }
    }

    /// The length in blocks that nine tenths of the runs reach; 0 without any. Takes time in proportion to the runs.
    pub fn p10_len(&self) -> u32 {
        self.by_len.iter().nth(self.runs() / 10).map_or(0, |(len, _)| *len)
    }

    /// Takes up to `wanted` blocks of the shortest run that is long enough, or of the longest; `None` if nothing is free.
    pub fn take_fit(&mut self, wanted: u32) -> Option<Run> {
        assert!(wanted > 0, "a write has blocks");
        let (len, start) = *self.by_len.range((wanted, 0)..).next().or_else(|| self.by_len.last())?;
        Some(self.take(Run { start, len }, start, len.min(wanted)))
    }

    /// Takes up to `wanted` blocks at the cursor: from the first free block at or behind it, around the end if need be, as far as
    /// they follow each other. `None` if nothing is free.
    pub fn take_next(&mut self, wanted: u32) -> Option<Run> {
        assert!(wanted > 0, "a write has blocks");
        let run = self.run_at_or_behind(self.cursor)?;
        let start = run.start.max(if run.start + run.len > self.cursor { self.cursor } else { 0 });
        let len = (run.start + run.len - start).min(wanted);
        let taken = self.take(run, start, len);
        self.cursor = if start + len == self.blocks { 0 } else { start + len };
        Some(taken)
    }

    /// Takes `run`, all of which is free.
    pub fn take_out(&mut self, run: Run) {
        let holding = self.run_at_or_behind(run.start).filter(|holding| {
            holding.start <= run.start && run.start + run.len <= holding.start + holding.len
        });
        self.take(holding.expect("it is free"), run.start, run.len);
    }

    /// The run that holds `block`, or else the next one, around the end.
    fn run_at_or_behind(&self, block: u32) -> Option<Run> {
        let run = |(&start, &len): (&u32, &u32)| Run { start, len };
        let holding = self.by_start.range(..=block).next_back().map(run);
        let holding = holding.filter(|run| run.start + run.len > block);
        let behind = || self.by_start.range(block..).next().map(run);
        holding.or_else(behind).or_else(|| self.by_start.iter().next().map(run))
    }

    /// Takes `len` blocks from `start` on out of `run`.
    fn take(&mut self, run: Run, start: u32, len: u32) -> Run {
        self.remove(run);
        self.insert(Run { start: run.start, len: start - run.start });
        self.insert(Run { start: start + len, len: run.start + run.len - start - len });
        Run { start, len }
    }

    /// Makes `run` free; none of it is.
    pub fn free(&mut self, run: Run) {
        let Run { start, len } = run;
        assert!(len > 0 && start.checked_add(len).is_some_and(|end| end <= self.blocks), "{run:?}");
        let mut merged = run;
        if let Some((&before, &before_len)) = self.by_start.range(..start).next_back() {
            assert!(before + before_len <= start, "{run:?} is free in part");
            if before + before_len == start {
                self.remove(Run { start: before, len: before_len });
                merged = Run { start: before, len: before_len + len };
            }
        }
        if let Some((&behind, &behind_len)) = self.by_start.range(start..).next() {
            assert!(behind >= start + len, "{run:?} is free in part");
            if behind == start + len {
                self.remove(Run { start: behind, len: behind_len });
                merged.len += behind_len;
            }
        }
        self.insert(merged);
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            self.by_start.insert(run.start, run.len);
            self.by_len.insert((run.len, run.start));
            self.free += run.len;
        }
    }

    fn remove(&mut self, run: Run) {
        let known =
            self.by_start.remove(&run.start) == Some(run.len) && self.by_len.remove(&(run.len, run.start));
        assert!(known, "{run:?} is a run");
        self.free -= run.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is free, block by block, and what each way to choose should take.
    struct Plain(Vec<bool>);

    impl Plain {
        fn runs(&self) -> Vec<Run> {
            let mut runs: Vec<Run> = Vec::new();
            for (block, _) in self.0.iter().enumerate().filter(|(_, free)| **free) {
                match runs.last_mut() {
                    Some(run) if (run.start + run.len) as usize == block => run.len += 1,
                    _ => runs.push(Run { start: block as u32, len: 1 }),
                }
            }
            runs
        }

        fn fit(&self, wanted: u32) -> Option<Run> {
            let runs = self.runs();
            let enough = runs.iter().filter(|run| run.len >= wanted).min_by_key(|run| (run.len, run.start));
            let run = enough.or_else(|| runs.iter().max_by_key(|run| (run.len, run.start)))?;
            Some(Run { start: run.start, len: run.len.min(wanted) })
        }

        fn next(&self, cursor: u32, wanted: u32) -> Option<Run> {
            let blocks = self.0.len() as u32;
            let start = (cursor..blocks).chain(0..cursor).find(|&block| self.0[block as usize])?;
            let len = (start..blocks).take_while(|&block| self.0[block as usize]).count() as u32;
            Some(Run { start, len: len.min(wanted) })
        }

        fn set(&mut self, run: Run, free: bool) {
            self.0[run.start as usize..(run.start + run.len) as usize].fill(free);
        }
    }

    fn agree(runs: &FreeRuns, plain: &Plain) {
        let expected = plain.runs();
        let found: Vec<Run> = runs.by_start.iter().map(|(&start, &len)| Run { start, len }).collect();
        assert_eq!(found, expected);
        assert_eq!(runs.count() as usize, plain.0.iter().filter(|free| **free).count());
        assert_eq!(runs.longest(), expected.iter().map(|run| run.len).max().unwrap_or(0));
    }

    /// Every set of free blocks among eight, every wish, every cursor.
    #[test]
    fn small_worlds_are_as_they_should_be() {
        for set in 0..256u32 {
            let mut plain = Plain((0..8).map(|block| set >> block & 1 == 1).collect());
            let mut runs = FreeRuns::none(8);
            plain.runs().into_iter().rev().for_each(|run| runs.free(run));
            agree(&runs, &plain);
            let at_once = FreeRuns::of(8, plain.runs());
            agree(&at_once, &plain);
            assert_eq!(at_once.by_len, runs.by_len);
            for wanted in 1..=9 {
                let mut fit = runs.clone();
                assert_eq!(fit.take_fit(wanted), plain.fit(wanted), "set {set:08b}, {wanted} wanted");
                for cursor in 0..8 {
                    let mut next = FreeRuns { cursor, ..runs.clone() };
                    assert_eq!(next.take_next(wanted), plain.next(cursor, wanted), "{set:08b} at {cursor}");
                }
            }
            for Run { start, len } in plain.runs() {
                let parts = (0..len).flat_map(|skip| (1..=len - skip).map(move |len| (start + skip, len)));
                for (start, len) in parts {
                    let (mut without, mut part) = (runs.clone(), Plain(plain.0.clone()));
                    without.take_out(Run { start, len });
                    part.set(Run { start, len }, false);
                    agree(&without, &part);
                }
            }
            if let Some(run) = plain.fit(2) {
                runs.take_fit(2);
                plain.set(run, false);
                agree(&runs, &plain);
            }
        }
    }

    proptest! {
        #[test]
        fn long_histories_agree_with_a_plain_array(steps in prop::collection::vec((0u8..4, 0u32..64, 1u32..20), 1..200)) {
            let (mut runs, mut plain, mut taken) = (FreeRuns::all(64), Plain(vec![true; 64]), Vec::new());
            for (kind, which, wanted) in steps {
                let got = match kind {
                    0 => runs.take_fit(wanted),
                    1 => runs.take_next(wanted),
                    _ if taken.is_empty() => None,
                    _ => {
                        let run: Run = taken.swap_remove(which as usize % taken.len());
                        runs.free(run);
                        plain.set(run, true);
                        None
                    }
                };
                if let Some(run) = got {
                    plain.set(run, false);
                    taken.push(run);
                }
                agree(&runs, &plain);
            }
        }
    }

    #[test]
    #[should_panic(expected = "free in part")]
    fn nothing_is_freed_twice() {
        let mut runs = FreeRuns::none(8);
        runs.free(Run { start: 2, len: 3 });
        runs.free(Run { start: 4, len: 2 });
    }

    /// Pieces of a write of 128 blocks, while the cache is 45 % full and single blocks come and go at random.
    fn pieces_after_churn(take: fn(&mut FreeRuns, u32) -> Option<Run>) -> f64 {
        const BLOCKS: u32 = 1 << 14;
        let mut random = 1u64;
        let mut draw = |bound: u32| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((random >> 33) % u64::from(bound)) as u32
        };
        let (mut runs, mut used) = (FreeRuns::all(BLOCKS), Vec::new());
        for _ in 0..BLOCKS * 10 {
            if used.len() as u32 >= BLOCKS / 20 * 9 {
                let oldest: u32 = used.swap_remove(draw(used.len() as u32) as usize);
                runs.free(Run { start: oldest, len: 1 });
            }
            used.push(take(&mut runs, 1).expect("more than half is free").start);
        }
        let (mut pieces, mut left) = (0, 32 * 128);
        while left > 0 {
            left -= take(&mut runs, left.min(128)).expect("enough is free").len;
            pieces += 1;
        }
        f64::from(pieces) / 32.0
    }

    #[test]
    fn fitting_keeps_long_runs_where_a_cursor_does_not() {
        let fit = pieces_after_churn(FreeRuns::take_fit);
        let next = pieces_after_churn(FreeRuns::take_next);
        assert!(fit <= 1.05, "{fit} pieces for a write of 128 blocks");
        assert!(next > 20.0, "{next} pieces behind a cursor");
    }
}
