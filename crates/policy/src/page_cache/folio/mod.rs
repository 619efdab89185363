//! The blocks of a folio: which hold data, which of it is dirty, what is being written back, and what is being read in.
//!
//! ```text
//!   missing -> reading -> valid -> dirty -> writeback -> valid
//!                 |                  ^          |
//!                 +-- overwritten ---+----------+ dirtied again, or failed
//! ```
//!
//! A block that is written back may be dirty as well. Nothing is allocated for a folio of few blocks, or one all of whose blocks are
//! valid and either all clean or all dirty. Facts about the kernel's counterpart: `iomap_folio_state`.

use std::ops::Range;

/// Bits of a word.
const BITS: u32 = 64;

/// What is kept of each block, a plane of bits each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plane {
    /// The folio has its content.
    Valid,
    /// The device below does not have its content.
    Dirty,
    /// Its content is on the way to the device below.
    Writeback,
    /// Its content is on the way from there.
    Reading,
}

const PLANES: usize = 4;

/// What a block is to a reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Its content is there.
    Valid,
    /// It is being read in.
    Reading,
    /// Neither.
    Missing,
}

/// The state of a folio's blocks. It takes 16 bytes, and memory beside where blocks of a folio of more than 16 differ.
#[derive(Clone, Debug)]
pub struct FolioState(Bits);

/// Blocks whose planes need no memory of their own.
const FEW: u32 = u16::BITS;

/// The number of blocks, and what they are.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Bits {
    /// All are valid.
    Clean(u16),
    /// All are valid and dirty.
    Dirty(u16),
    /// They differ, and are few.
    Few(u16, [u16; PLANES]),
    /// They differ, and are many.
    Many(u16, Box<Planes>),
}

const _: () = assert!(size_of::<FolioState>() == 16, "there is one for each folio");

/// The planes, one behind the other.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Planes(Box<[u64]>);

/// A word of each plane.
type Words = [u64; PLANES];

/// The bits of `range` in word `at`.
fn mask(at: u32, range: &Range<u32>) -> u64 {
    let from = range.start.saturating_sub(at * BITS).min(BITS);
    let to = range.end.saturating_sub(at * BITS).min(BITS);
    let below = |bit: u32| if bit == BITS { u64::MAX } else { (1 << bit) - 1 };
    below(to) & !below(from)
}

fn words_of(range: &Range<u32>) -> Range<u32> {
    range.start / BITS..range.end.div_ceil(BITS)
}

impl Bits {
    /// So many blocks that differ, by the words that `word` gives.
    fn mixed(blocks: u16, word: impl Fn(u32) -> Words) -> Self {
        if u32::from(blocks) <= FEW {
            return Self::Few(blocks, word(0).map(|word| word as u16));
        }
        let count = u32::from(blocks).div_ceil(BITS);
        let place = |plane: usize| (0..count).map(move |at| (plane, at));
        let planes = (0..PLANES).flat_map(place).map(|(plane, at)| word(at)[plane]).collect();
        Self::Many(blocks, Box::new(Planes(planes)))
    }
}

impl FolioState {
    /// A folio of so many blocks, none of which is valid.
    pub fn new(blocks: u32) -> Self {
        let count = u16::try_from(blocks).expect("a folio has no more blocks than can be counted");
        assert!(count > 0, "a folio has blocks");
        Self(Bits::mixed(count, |_| [0; PLANES]))
    }

    /// Bytes that the state of a folio of so many blocks takes, at most.
    pub const fn bytes_max(blocks: u32) -> u64 {
        if blocks <= FEW {
            return 0;
        }
        size_of::<Planes>() as u64 + PLANES as u64 * blocks.div_ceil(BITS) as u64 * 8
    }

    /// Blocks.
    pub fn blocks(&self) -> u32 {
        let (Bits::Clean(blocks) | Bits::Dirty(blocks) | Bits::Few(blocks, _) | Bits::Many(blocks, _)) =
            self.0;
        blocks.into()
    }

    fn words(&self, at: u32) -> Words {
        let all = mask(at, &(0..self.blocks()));
        match &self.0 {
            Bits::Clean(_) => [all, 0, 0, 0],
            Bits::Dirty(_) => [all, all, 0, 0],
            Bits::Few(_, planes) => planes.map(u64::from),
            Bits::Many(_, planes) => {
                let words = planes.0.len() / PLANES;
                [0, 1, 2, 3].map(|plane| planes.0[plane * words + at as usize])
            }
        }
    }

    /// Changes a word of each plane; the blocks may differ from then on.
    fn put(&mut self, at: u32, words: Words) {
        match &mut self.0 {
            Bits::Few(_, planes) => *planes = words.map(|word| word as u16),
            Bits::Many(_, planes) => {
                let count = planes.0.len() / PLANES;
                let changed = words.into_iter().enumerate();
                changed.for_each(|(plane, word)| planes.0[plane * count + at as usize] = word);
            }
            Bits::Clean(blocks) | Bits::Dirty(blocks) => {
                let blocks = *blocks;
                self.0 = Bits::mixed(blocks, |at| self.words(at));
                self.put(at, words);
            }
        }
    }

    /// Changes the words of `range`: `change` gets each with the mask of the range.
    fn change(&mut self, range: &Range<u32>, mut change: impl FnMut(&mut Words, u64)) {
        let blocks = self.blocks();
        assert!(range.start < range.end && range.end <= blocks, "{range:?} of {blocks} blocks");
        for at in words_of(range) {
            let mut words = self.words(at);
            change(&mut words, mask(at, range));
            self.put(at, words);
        }
        self.settle();
    }

    /// Frees the planes where all blocks are alike.
    fn settle(&mut self) {
        let blocks = self.blocks();
        let alike = |state: &Self, expected: fn(u64) -> Words| {
            words_of(&(0..blocks)).all(|at| state.words(at) == expected(mask(at, &(0..blocks))))
        };
        if alike(self, |all| [all, 0, 0, 0]) {
            self.0 = Bits::Clean(blocks as u16);
        } else if alike(self, |all| [all, all, 0, 0]) {
            self.0 = Bits::Dirty(blocks as u16);
        }
    }

    /// The first run of blocks in `range` for which `pick` has bits.
    fn run(&self, range: Range<u32>, pick: impl Fn(Words) -> u64) -> Option<Range<u32>> {
        let word = |at: u32| pick(self.words(at)) & mask(at, &(0..self.blocks()));
        let start = next(&range, word)?;
        let end = next(&(start..range.end), |at| !word(at)).unwrap_or(range.end);
        Some(start..end)
    }

    fn runs(
        &self,
        range: Range<u32>,
        pick: impl Fn(Words) -> u64 + Copy,
    ) -> impl Iterator<Item = Range<u32>> {
        let end = range.end;
        let first = self.run(range, pick);
        std::iter::successors(first, move |run| self.run(run.end..end, pick))
    }

    fn count(&self, plane: Plane) -> u32 {
        words_of(&(0..self.blocks())).map(|at| self.words(at)[plane as usize].count_ones()).sum()
    }

    /// What the first block of `range` is to a reader, and where the run of such blocks ends.
    #[inline]
    pub fn look(&self, range: Range<u32>) -> (Look, u32) {
        match self.0 {
            Bits::Clean(_) | Bits::Dirty(_) => (Look::Valid, range.end),
            _ => self.look_at_blocks(range),
        }
    }

    fn look_at_blocks(&self, range: Range<u32>) -> (Look, u32) {
        let is =
            |plane: Plane| self.words(range.start / BITS)[plane as usize] >> (range.start % BITS) & 1 == 1;
        let valid = Plane::Valid as usize;
        let reading = Plane::Reading as usize;
        let run =
            |pick: &dyn Fn(Words) -> u64| self.run(range.clone(), pick).map_or(range.end, |run| run.end);
        if is(Plane::Valid) {
            (Look::Valid, run(&|words| words[valid]))
        } else if is(Plane::Reading) {
            (Look::Reading, run(&|words| words[reading]))
        } else {
            (Look::Missing, run(&|words| !(words[valid] | words[reading])))
        }
    }

    /// The content of `range` was put in the folio; returns how many blocks have become dirty by that.
    pub fn write(&mut self, range: Range<u32>) -> u32 {
        if matches!(self.0, Bits::Dirty(_)) {
            return 0;
        }
        let mut dirtied = 0;
        self.change(&range, |words, mask| {
            dirtied += (mask & !words[Plane::Dirty as usize]).count_ones();
            words[Plane::Valid as usize] |= mask;
            words[Plane::Dirty as usize] |= mask;
            words[Plane::Reading as usize] &= !mask;
        });
        dirtied
    }

    /// A read of `range` begins; all of it is missing.
    pub fn begin_read(&mut self, range: Range<u32>) {
        self.change(&range, |words, mask| {
            let known = words[Plane::Valid as usize] | words[Plane::Reading as usize];
            assert_eq!(known & mask, 0, "a block that is to be read is missing");
            words[Plane::Reading as usize] |= mask;
        });
    }

    /// The runs of `range` that a read may fill: what was overwritten meanwhile has newer content.
    pub fn reading(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        self.runs(range, |words| words[Plane::Reading as usize])
    }

    /// A read of `range` ends; what of it is still being read is valid where it has `landed`, and missing otherwise.
    pub fn end_read(&mut self, range: Range<u32>, landed: bool) {
        self.change(&range, |words, mask| {
            let filled = words[Plane::Reading as usize] & mask;
            words[Plane::Reading as usize] &= !mask;
            words[Plane::Valid as usize] |= if landed { filled } else { 0 };
        });
    }

    /// The dirty runs.
    pub fn dirty_runs(&self) -> impl Iterator<Item = Range<u32>> {
        self.runs(0..self.blocks(), |words| words[Plane::Dirty as usize])
    }

    /// The runs of `range` that the device below does not have, or may not have yet.
    pub fn unsaved_runs(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        self.runs(range, |words| words[Plane::Dirty as usize] | words[Plane::Writeback as usize])
    }

    /// Write-back of a dirty run begins; none of it is being written back.
    pub fn begin_writeback(&mut self, range: Range<u32>) {
        self.change(&range, |words, mask| {
            assert_eq!(words[Plane::Dirty as usize] & mask, mask, "what is written back is dirty");
            assert_eq!(words[Plane::Writeback as usize] & mask, 0, "a block is written back once at a time");
            words[Plane::Dirty as usize] &= !mask;
            words[Plane::Writeback as usize] |= mask;
        });
    }

    /// Write-back of a run ends. Unless it has `landed` the blocks are dirty again; returns how many have become so by that.
    pub fn end_writeback(&mut self, range: Range<u32>, landed: bool) -> u32 {
        let mut dirtied = 0;
        self.change(&range, |words, mask| {
            assert_eq!(words[Plane::Writeback as usize] & mask, mask, "write-back ends where it began");
            words[Plane::Writeback as usize] &= !mask;
            if !landed {
                dirtied += (mask & !words[Plane::Dirty as usize]).count_ones();
                words[Plane::Dirty as usize] |= mask;
            }
        });
        dirtied
    }

    /// The content of `range` is not needed any more; returns how many blocks were dirty. None is on its way anywhere.
    pub fn forget(&mut self, range: Range<u32>) -> u32 {
        let mut dirty = 0;
        self.change(&range, |words, mask| {
            let moving = words[Plane::Writeback as usize] | words[Plane::Reading as usize];
            assert_eq!(moving & mask, 0, "a block that is forgotten is not on its way");
            dirty += (words[Plane::Dirty as usize] & mask).count_ones();
            words[Plane::Valid as usize] &= !mask;
            words[Plane::Dirty as usize] &= !mask;
        });
        dirty
    }

    /// Blocks that are dirty, and blocks that are being written back.
    pub fn unsaved(&self) -> (u32, u32) {
        match self.0 {
            Bits::Clean(_) => (0, 0),
            Bits::Dirty(blocks) => (blocks.into(), 0),
            _ => (self.count(Plane::Dirty), self.count(Plane::Writeback)),
        }
    }

    /// Whether the folio can go: nothing is dirty, or on its way anywhere.
    pub fn is_idle(&self) -> bool {
        match self.0 {
            Bits::Clean(_) => true,
            Bits::Dirty(_) => false,
            _ => self
                .run(0..self.blocks(), |[_, dirty, writeback, reading]| dirty | writeback | reading)
                .is_none(),
        }
    }
}

/// The first bit in `range` that is set in the words that `word` gives.
fn next(range: &Range<u32>, word: impl Fn(u32) -> u64) -> Option<u32> {
    let at = words_of(range).find(|&at| word(at) & mask(at, range) != 0)?;
    Some(at * BITS + (word(at) & mask(at, range)).trailing_zeros())
}

#[cfg(test)]
mod tests;
