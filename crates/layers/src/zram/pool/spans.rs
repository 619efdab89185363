//! Records of spans, and lists of them by how much is in use.
//!
//! Entries lie close together in small blocks, so that nothing large is ever moved or allocated at once; removing one moves the
//! last into its place. A span waits in the list of its *bin*, the exact number of its cells in use for a size class. Every
//! operation takes the same time however many spans there are.

use crate::zram::work;

const BLOCK: usize = 8;
const NONE: u32 = u32::MAX;
const NO_BIN: u16 = u16::MAX;

struct Entry<T> {
    value: T,
    bin: u16,
    before: u32,
    after: u32,
}

/// Spans in bins.
pub(crate) struct Spans<T> {
    blocks: Vec<Vec<Entry<T>>>,
    first: Box<[u32]>,
    /// A bit for each bin that is not empty.
    occupied: Box<[u64]>,
}

impl<T> Spans<T> {
    /// Bytes that lists of `bins` bins take before there is any span, with the block that is not yet full.
    pub(crate) fn fixed_bytes(bins: usize) -> usize {
        let block = BLOCK * size_of::<Entry<T>>() + 4 * size_of::<Vec<Entry<T>>>();
        block + bins * size_of::<u32>() + bins.div_ceil(64) * size_of::<u64>()
    }

    /// Bytes for each span: its entry, and its share of the list of blocks, which may be half empty while it is copied.
    pub(crate) const BYTES_EACH: usize = size_of::<Entry<T>>() + 3 * size_of::<Vec<Entry<T>>>() / BLOCK;

    pub(crate) fn new(bins: usize) -> Self {
        let (first, occupied) = (vec![NONE; bins].into(), vec![0; bins.div_ceil(64)].into());
        Self { blocks: Vec::new(), first, occupied }
    }

    pub(crate) fn len(&self) -> usize {
        self.blocks.last().map_or(0, |last| (self.blocks.len() - 1) * BLOCK + last.len())
    }

    /// Adds a span that waits in no bin; returns its number.
    pub(crate) fn push(&mut self, value: T) -> u32 {
        let index = self.len();
        if index.is_multiple_of(BLOCK) {
            self.blocks.push(Vec::with_capacity(BLOCK));
        }
        let entry = Entry { value, bin: NO_BIN, before: NONE, after: NONE };
        self.blocks[index / BLOCK].push(entry);
        index as u32
    }

    /// Removes a span. The one that takes its number is shown to `renumber`.
    pub(crate) fn remove(&mut self, index: u32, renumber: impl FnOnce(&T)) -> T {
        self.unlist(index);
        let last = self.blocks.last_mut().and_then(Vec::pop).expect("there is the span to be removed");
        if self.blocks.last().is_some_and(Vec::is_empty) {
            self.blocks.pop();
            if self.blocks.len() * 3 < self.blocks.capacity() {
                self.blocks.shrink_to(self.blocks.len() * 2);
            }
        }
        if index as usize == self.len() {
            return last.value;
        }
        renumber(&last.value);
        self.point_at(&last, index);
        std::mem::replace(self.entry_mut(index), last).value
    }

    /// Makes what pointed at `moved` point at its new number.
    fn point_at(&mut self, moved: &Entry<T>, index: u32) {
        match moved.before {
            NONE if moved.bin == NO_BIN => {}
            NONE => self.first[usize::from(moved.bin)] = index,
            before => self.entry_mut(before).after = index,
        }
        if moved.after != NONE {
            self.entry_mut(moved.after).before = index;
        }
    }

    fn entry(&self, index: u32) -> &Entry<T> {
        work::note_look();
        &self.blocks[index as usize / BLOCK][index as usize % BLOCK]
    }

    fn entry_mut(&mut self, index: u32) -> &mut Entry<T> {
        work::note_look();
        &mut self.blocks[index as usize / BLOCK][index as usize % BLOCK]
    }

    /// The span of a number, if there is one.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        self.blocks.get(index as usize / BLOCK)?.get(index as usize % BLOCK).map(|entry| &entry.value)
    }

    pub(crate) fn at(&self, index: u32) -> &T {
        &self.entry(index).value
    }

    pub(crate) fn at_mut(&mut self, index: u32) -> &mut T {
        &mut self.entry_mut(index).value
    }

    /// Puts a span into a bin.
    pub(crate) fn list(&mut self, index: u32, bin: usize) {
        assert!(bin < self.first.len(), "bin {bin} of {}", self.first.len());
        if usize::from(self.entry(index).bin) == bin {
            return;
        }
        self.unlist(index);
        let after = std::mem::replace(&mut self.first[bin], index);
        if after != NONE {
            self.entry_mut(after).before = index;
        }
        let entry = self.entry_mut(index);
        (entry.bin, entry.before, entry.after) = (bin as u16, NONE, after);
        self.occupied[bin / 64] |= 1 << (bin % 64);
    }

    /// Takes a span out of its bin, if it is in one.
    pub(crate) fn unlist(&mut self, index: u32) {
        let Entry { bin, before, after, .. } = *self.entry(index);
        if bin == NO_BIN {
            return;
        }
        let bin = usize::from(bin);
        match before {
            NONE => self.first[bin] = after,
            before => self.entry_mut(before).after = after,
        }
        match after {
            NONE if before == NONE => self.occupied[bin / 64] &= !(1 << (bin % 64)),
            NONE => {}
            after => self.entry_mut(after).before = before,
        }
        let entry = self.entry_mut(index);
        (entry.bin, entry.before, entry.after) = (NO_BIN, NONE, NONE);
    }

    /// A span of the highest bin that has one.
    pub(crate) fn fullest(&self) -> Option<u32> {
        let (word, bits) = self.occupied.iter().enumerate().rev().find(|(_, bits)| **bits != 0)?;
        Some(self.first[word * 64 + bits.ilog2() as usize])
    }

    /// A span of the lowest bin that has one.
    pub(crate) fn sparsest(&self) -> Option<u32> {
        let (word, bits) = self.occupied.iter().enumerate().find(|(_, bits)| **bits != 0)?;
        Some(self.first[word * 64 + bits.trailing_zeros() as usize])
    }

    /// Number, value and bin of every span, after asserting that lists, bins and the bits of bins agree.
    pub(crate) fn verified(&self) -> impl Iterator<Item = (u32, &T, Option<usize>)> {
        let entries = || self.blocks.iter().flatten();
        assert_eq!(entries().count(), self.len(), "only the last block has room");
        assert!(self.len() > 0 || self.occupied.iter().all(|bits| *bits == 0), "a bin of no spans");
        let bins = if self.len() > 0 { self.first.len() } else { 0 };
        let listed: usize = (0..bins).map(|bin| self.verify_bin(bin)).sum();
        assert_eq!(entries().filter(|entry| entry.bin != NO_BIN).count(), listed, "spans in bins");
        let bin = |entry: &Entry<T>| (entry.bin != NO_BIN).then_some(usize::from(entry.bin));
        (0..).zip(entries()).map(move |(index, entry)| (index, &entry.value, bin(entry)))
    }

    /// Follows the list of a bin; returns its length.
    fn verify_bin(&self, bin: usize) -> usize {
        let (mut at, mut before, mut count) = (self.first[bin], NONE, 0);
        while at != NONE {
            let entry = self.entry(at);
            assert_eq!(
                (entry.before, usize::from(entry.bin)),
                (before, bin),
                "span {at} in the list of a bin"
            );
            (before, at, count) = (at, entry.after, count + 1);
            assert!(count <= self.len(), "the list of bin {bin} has an end");
        }
        assert_eq!(self.occupied[bin / 64] >> (bin % 64) & 1 == 1, count > 0, "the bit of bin {bin}");
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::random::Random;

    /// A name, and the bin that it should be in.
    type Known = (u64, Option<usize>);

    fn check(spans: &Spans<Known>) {
        let bins = || spans.verified().filter_map(|(_, (_, bin), _)| *bin);
        let bin_of = |index: Option<u32>| index.map(|index| spans.at(index).1.expect("it is in a bin"));
        assert_eq!(bin_of(spans.fullest()), bins().max());
        assert_eq!(bin_of(spans.sparsest()), bins().min());
        let lists = spans.blocks.capacity() * size_of::<Vec<Entry<Known>>>();
        let taken = spans.blocks.len() * BLOCK * size_of::<Entry<Known>>() + lists;
        let heads = spans.first.len() * 4 + spans.occupied.len() * 8;
        let charged = Spans::<Known>::fixed_bytes(BINS) + spans.len() * Spans::<Known>::BYTES_EACH;
        assert!(taken + heads <= charged, "{taken} + {heads} bytes were charged with {charged}");
        assert!(spans.verified().all(|(_, (_, wanted), bin)| *wanted == bin));
    }

    const BINS: usize = 130;

    #[test]
    fn lists_and_numbers_agree_with_a_model_under_random_use() {
        let (mut spans, mut random) = (Spans::new(BINS), Random(7));
        let mut names: Vec<u64> = Vec::new();
        for step in 0..20_000u64 {
            let grow = step < 8_000;
            match random.below(if grow { 3 } else { 6 }) {
                0 if grow || names.len() < 20 => {
                    assert_eq!(spans.push((step, None)) as usize, names.len());
                    names.push(step);
                }
                1 | 4 if !names.is_empty() && random.below(3) > 0 => {
                    let index = random.below(names.len() as u64) as usize;
                    let (name, last) = (names.swap_remove(index), names.len());
                    let mut moved = None;
                    assert_eq!(spans.remove(index as u32, |known| moved = Some(known.0)).0, name);
                    assert_eq!(moved, (index < last).then(|| names[index]));
                }
                2 | 5 if !names.is_empty() => {
                    let index = random.below(names.len() as u64) as u32;
                    let bin = random.below(BINS as u64 + 20) as usize;
                    spans.at_mut(index).1 = (bin < BINS).then_some(bin);
                    if bin < BINS { spans.list(index, bin) } else { spans.unlist(index) }
                }
                _ => {}
            }
            if step % 16 == 0 {
                check(&spans);
            }
        }
        assert!(spans.get(names.len() as u32).is_none());
        while !names.is_empty() {
            names.pop();
            spans.remove(0, |_| {});
            check(&spans);
        }
        assert!(spans.blocks.is_empty() && spans.blocks.capacity() <= 4);
    }
}
