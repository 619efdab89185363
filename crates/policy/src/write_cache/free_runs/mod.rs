//! Free blocks as runs: a write takes blocks that follow each other, so that it is one I/O.
//!
//! A run is a stretch of free blocks with no free block beside it. A write gets the shortest one that is long enough, or else the longest there
//! is: small writes use up islands, and long runs are kept for long writes. From 16 blocks on, lengths of a bin, which are within a
//! quarter of each other, count as equal where a bin has many runs.
//!
//! Runs are binned by length, in bitmaps. Of a bin of runs of at least 2^k blocks no two begin within the same 2^k blocks: so its
//! bitmap has a bit for each 2^k blocks, and the block at their end belongs to the run. All bins together take less than five bits for
//! each block, whatever is free; the ends of a run are found in bitmaps of the free blocks and of the used ones.

mod bins;

use crate::bits::Bits;
use bins::{Bin, EXACT, bin_of, bins, bits_of, least_in, shift_of};

/// Runs of a bin that are compared.
const COMPARED: usize = 4;

/// A stretch of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First block.
    pub start: u32,
    /// Blocks.
    pub len: u32,
}

impl Run {
    /// The block behind.
    fn end(&self) -> u32 {
        self.start + self.len
    }
}

/// The free ones among the blocks of a cache, at most 2^32 - 1 of them.
#[derive(Clone, Debug)]
pub struct FreeRuns {
    blocks: u32,
    free: Bits,
    used: Bits,
    bins: Vec<Bin>,
    /// Bins that have runs, a bit each.
    filled: u128,
    count: u32,
}

impl FreeRuns {
    /// Bytes that it takes for `blocks` blocks.
    pub fn bytes(blocks: u32) -> u64 {
        let bins = bins(blocks).map(|bin| Bits::bytes(bits_of(bin, blocks)) + size_of::<Bin>() as u64);
        2 * Bits::bytes(blocks) + bins.sum::<u64>()
    }

    /// `blocks` blocks, none of them free.
    pub fn none(blocks: u32) -> Self {
        let (free, mut used) = (Bits::new(blocks), Bits::new(blocks));
        if blocks > 0 {
            used.set_range(0..blocks);
        }
        let bin = |bin| Bin { shift: shift_of(bin), starts: Bits::new(bits_of(bin, blocks)), runs: 0 };
        Self { blocks, free, used, bins: bins(blocks).map(bin).collect(), filled: 0, count: 0 }
    }

    /// `blocks` blocks, all of them free.
    pub fn all(blocks: u32) -> Self {
        let mut all = Self::none(blocks);
        if blocks > 0 {
            all.free(Run { start: 0, len: blocks });
        }
        all
    }

    /// Free blocks.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Runs that the free blocks form.
    pub fn runs(&self) -> usize {
        self.bins.iter().map(|bin| bin.runs as usize).sum()
    }

    /// The longest run; of several the last. Of a bin that has many runs, one of the last.
    pub fn longest_run(&self) -> Option<Run> {
        let bin = 127usize.checked_sub(self.filled.leading_zeros() as usize)?;
        let bits = &self.bins[bin].starts;
        let last = std::iter::successors(bits.prev(bits_of(bin, self.blocks) - 1), |bit| {
            bits.prev(bit.checked_sub(1)?)
        });
        let runs = last.take(COMPARED).map(|bit| self.run_in(bin, bit));
        runs.max_by_key(|run| (run.len, run.start))
    }

    /// All runs in order.
    pub fn iter(&self) -> impl Iterator<Item = Run> {
        std::iter::successors(self.next(0), |run| self.next(run.end()))
    }

    /// The first run at or behind a block; of one that began before it, the rest.
    pub fn next(&self, block: u32) -> Option<Run> {
        let start = self.free.next(block)?;
        Some(Run { start, len: self.run_at(start).end() - start })
    }

    /// The length in blocks that nine tenths of the runs reach, or somewhat less from 16 on; 0 without any.
    pub fn p10_len(&self) -> u32 {
        let mut left = self.runs() / 10;
        for (bin, of_bin) in self.bins.iter().enumerate() {
            match left.checked_sub(of_bin.runs as usize) {
                Some(more) => left = more,
                None => return least_in(bin),
            }
        }
        0
    }

    /// Takes up to `wanted` blocks of the shortest run that is long enough, or of the longest; `None` if nothing is free.
    pub fn take_fit(&mut self, wanted: u32) -> Option<Run> {
        assert!(wanted > 0, "a write has blocks");
        let bin = bin_of(wanted);
        let run = self.shortest_in(bin, wanted).or_else(|| {
            let behind = self.filled.checked_shr(bin as u32 + 1).filter(|&bins| bins != 0)?;
            self.shortest_in(bin + 1 + behind.trailing_zeros() as usize, wanted)
        });
        let run = run.or_else(|| self.longest_run())?;
        Some(self.take(run, run.start, run.len.min(wanted)))
    }

    /// The shortest run of a bin that is long enough; of several the first. Of a bin that has many runs, one of the first.
    fn shortest_in(&self, bin: usize, wanted: u32) -> Option<Run> {
        if self.filled >> bin & 1 == 0 {
            return None;
        }
        let bits = &self.bins[bin].starts;
        let compared = if bin < EXACT as usize - 1 { 1 } else { COMPARED };
        let first = std::iter::successors(bits.next(0), |bit| bits.next(bit + 1)).take(compared);
        let runs = first.map(|bit| self.run_in(bin, bit)).filter(|run| run.len >= wanted);
        runs.min_by_key(|run| (run.len, run.start))
    }

    /// Takes `run`, all of which is free.
    pub fn take_out(&mut self, run: Run) {
        let holding = self.run_at(run.start);
        assert!(holding.start <= run.start && run.end() <= holding.end(), "{run:?} is free");
        self.take(holding, run.start, run.len);
    }

    /// The run around a free block.
    fn run_at(&self, block: u32) -> Run {
        let start = self.used.prev(block).map_or(0, |used| used + 1);
        let end = self.used.next(block).unwrap_or(self.blocks);
        Run { start, len: end.saturating_sub(start) }
    }

    /// The run of a bin that begins among the blocks of a bit: it reaches the last of them.
    fn run_in(&self, bin: usize, bit: u32) -> Run {
        let shift = self.bins[bin].shift;
        let run = self.run_at((bit << shift) + (1 << shift) - 1);
        debug_assert_eq!((bin_of(run.len), run.start >> shift), (bin, bit), "{run:?}");
        run
    }

    /// Takes `len` blocks from `start` on out of `run`.
    fn take(&mut self, run: Run, start: u32, len: u32) -> Run {
        self.remove(run);
        self.free.clear_range(start..start + len);
        self.used.set_range(start..start + len);
        self.insert(Run { start: run.start, len: start - run.start });
        self.insert(Run { start: start + len, len: run.end() - start - len });
        Run { start, len }
    }

    /// Makes `run` free; none of it is.
    pub fn free(&mut self, run: Run) {
        let Run { start, len } = run;
        assert!(len > 0 && start.checked_add(len).is_some_and(|end| end <= self.blocks), "{run:?}");
        self.used.clear_range(start..start + len);
        self.free.set_range(start..start + len);
        let merged = self.run_at(start);
        if merged.start < start {
            self.remove(Run { start: merged.start, len: start - merged.start });
        }
        if merged.end() > run.end() {
            self.remove(Run { start: run.end(), len: merged.end() - run.end() });
        }
        self.insert(merged);
    }

    fn insert(&mut self, run: Run) {
        if run.len > 0 {
            let bin = bin_of(run.len);
            let of_bin = &mut self.bins[bin];
            of_bin.starts.set(run.start >> of_bin.shift);
            of_bin.runs += 1;
            self.filled |= 1 << bin;
            self.count += run.len;
        }
    }

    fn remove(&mut self, run: Run) {
        let bin = bin_of(run.len);
        let of_bin = &mut self.bins[bin];
        of_bin.starts.clear(run.start >> of_bin.shift);
        of_bin.runs -= 1;
        if of_bin.runs == 0 {
            self.filled &= !(1 << bin);
        }
        self.count -= run.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What is free, block by block.
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

        fn next(&self, block: u32) -> Option<Run> {
            let blocks = self.0.len() as u32;
            let start = (block..blocks).find(|&block| self.0[block as usize])?;
            let len = (start..blocks).take_while(|&block| self.0[block as usize]).count() as u32;
            Some(Run { start, len })
        }

        fn set(&mut self, run: Run, free: bool) {
            self.0[run.start as usize..(run.start + run.len) as usize].fill(free);
        }
    }

    fn agree(runs: &FreeRuns, plain: &Plain) {
        let expected = plain.runs();
        let found: Vec<Run> = runs.iter().collect();
        assert_eq!(found, expected);
        assert_eq!(runs.count() as usize, plain.0.iter().filter(|free| **free).count());
        assert_eq!(runs.longest_run().map(|run| run.len), expected.iter().map(|run| run.len).max());
    }

    /// Every set of free blocks among eight, every wish.
    #[test]
    fn small_worlds_are_as_they_should_be() {
        for set in 0..256u32 {
            let mut plain = Plain((0..8).map(|block| set >> block & 1 == 1).collect());
            let mut runs = FreeRuns::none(8);
            plain.runs().into_iter().rev().for_each(|run| runs.free(run));
            agree(&runs, &plain);
            for wanted in 1..=9 {
                let mut fit = runs.clone();
                assert_eq!(fit.take_fit(wanted), plain.fit(wanted), "set {set:08b}, {wanted} wanted");
            }
            (0..=8).for_each(|block| assert_eq!(runs.next(block), plain.next(block), "{set:08b} at {block}"));
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
                    1 => take_next(&mut runs, which, wanted),
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

    /// Next fit, as Linux's dm-writecache has it: up to so many blocks at or behind a cursor, around the end if need be.
    fn take_next(runs: &mut FreeRuns, cursor: u32, wanted: u32) -> Option<Run> {
        let run = runs.next(cursor).or_else(|| runs.next(0))?;
        let run = Run { len: run.len.min(wanted), ..run };
        runs.take_out(run);
        Some(run)
    }

    #[test]
    fn they_take_less_than_eleven_bits_a_block() {
        for blocks in [1u32 << 14, 1 << 20, 300_000] {
            let bytes = FreeRuns::bytes(blocks) as f64 / f64::from(blocks);
            assert!(bytes < 1.3, "{bytes} bytes for each of {blocks} blocks");
        }
    }

    #[test]
    #[should_panic(expected = "is there")]
    fn nothing_is_freed_twice() {
        let mut runs = FreeRuns::none(8);
        runs.free(Run { start: 2, len: 3 });
        runs.free(Run { start: 4, len: 2 });
    }

    /// Pieces of a write of 128 blocks, while the cache is 45 % full and single blocks come and go at random.
    fn pieces_after_churn(mut take: impl FnMut(&mut FreeRuns, u32) -> Option<Run>) -> f64 {
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
        let mut cursor = 0;
        let next = pieces_after_churn(|runs, wanted| {
            take_next(runs, cursor, wanted).inspect(|run| cursor = run.end())
        });
        assert!(fit <= 1.05, "{fit} pieces for a write of 128 blocks");
        assert!(next > 20.0, "{next} pieces behind a cursor");
    }
}
