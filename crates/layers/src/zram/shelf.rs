//! The spans of one size class.
//!
//! A plain single-threaded structure; [`super::pool`] puts it behind a lock. Spans with free cells wait in bins by fullness,
//! and the fullest serves first, so that sparse spans run empty and go back. A span that is being emptied is in no bin.

use hashbrown::HashMap;
use spillway_core::Kind;
use spillway_policy::compaction;
use spillway_policy::size_classes::{CELLS_MAX, SizeClass};

use super::pages::{Pages, Span};

const BINS: usize = 8;
const WORDS: usize = CELLS_MAX / 64;

/// Where a span waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bin {
    /// All cells are in use.
    Full,
    /// Some are: bin number and place in it.
    Partial(usize, usize),
    /// It is being emptied.
    Leaving,
}

struct SpanState {
    span: Span,
    used: usize,
    bin: Bin,
    live: [u64; WORDS],
    owners: Box<[u32]>,
}

impl SpanState {
    fn first_free(&self) -> usize {
        let word = self.live.iter().position(|&word| word != u64::MAX).expect("the span is not full");
        word * 64 + self.live[word].trailing_ones() as usize
    }

    fn is_live(&self, cell: usize) -> bool {
        self.live[cell / 64] >> (cell % 64) & 1 == 1
    }

    fn objects(&self) -> Vec<(usize, u32)> {
        let cells = 0..self.owners.len();
        cells.filter(|&cell| self.is_live(cell)).map(|cell| (cell, self.owners[cell])).collect()
    }
}

pub(super) struct Shelf {
    class: SizeClass,
    spans: Vec<Option<SpanState>>,
    vacant: Vec<u32>,
    by_span: HashMap<u32, u32>,
    bins: [Vec<u32>; BINS],
    /// Free cells in spans that wait in bins.
    free_cells: usize,
}

impl Shelf {
    pub(super) fn new(class: SizeClass) -> Self {
        let (spans, vacant, bins) = (Vec::new(), Vec::new(), Default::default());
        Self { class, spans, vacant, by_span: HashMap::new(), bins, free_cells: 0 }
    }

    /// A free cell, in a new span if need be.
    pub(super) fn take(&mut self, pages: &Pages, owner: u32) -> Result<(Span, usize), Kind> {
        if let Some(taken) = self.take_in_use(owner) {
            return Ok(taken);
        }
        self.add_span(pages)?;
        Ok(self.take_in_use(owner).expect("a span was added"))
    }

    /// A free cell in the fullest span that has one.
    pub(super) fn take_in_use(&mut self, owner: u32) -> Option<(Span, usize)> {
        let index = *self.bins.iter().rev().find_map(|bin| bin.last())?;
        let state = self.spans[index as usize].as_mut().expect("a binned span exists");
        let cell = state.first_free();
        assert!(cell < self.class.cells, "a binned span has a free cell");
        state.live[cell / 64] |= 1 << (cell % 64);
        state.owners[cell] = owner;
        state.used += 1;
        let span = state.span;
        self.free_cells -= 1;
        self.rebin(index);
        Some((span, cell))
    }

    /// Frees a cell, and the span with its last one.
    pub(super) fn give(&mut self, pages: &Pages, span: Span, cell: usize) {
        let index = self.by_span[&span.0];
        let state = self.spans[index as usize].as_mut().expect("a listed span exists");
        assert!(state.is_live(cell), "cell {cell} of {span:?} was freed twice");
        state.live[cell / 64] &= !(1 << (cell % 64));
        state.used -= 1;
        if state.bin != Bin::Leaving {
            self.free_cells += 1;
        }
        if self.spans[index as usize].as_ref().is_some_and(|state| state.used == 0) {
            return self.remove_span(pages, index);
        }
        self.rebin(index);
    }

    /// The sparsest span and its objects, taken out of its bin, if the others have room for them.
    pub(super) fn sparsest_to_merge(&mut self) -> Option<(Span, Vec<(usize, u32)>)> {
        if !compaction::can_free_a_span(self.free_cells, self.class.cells) {
            return None;
        }
        let bin = self.bins.iter().find(|bin| !bin.is_empty())?;
        let used =
            |index: &&u32| self.spans[**index as usize].as_ref().map_or(usize::MAX, |state| state.used);
        let index = *bin.iter().min_by_key(used)?;
        Some(self.begin_eviction(index))
    }

    /// A span with enough free cells to be worth packing, and its objects, taken out of its bin.
    pub(super) fn sparse_to_pack(&mut self) -> Option<(Span, Vec<(usize, u32)>)> {
        let index = *self.bins.iter().find_map(|bin| bin.last())?;
        let used = self.spans[index as usize].as_ref().map_or(0, |state| state.used);
        compaction::worth_rewriting(used, self.class.cells - used).then(|| self.begin_eviction(index))
    }

    fn begin_eviction(&mut self, index: u32) -> (Span, Vec<(usize, u32)>) {
        self.unbin(index);
        let state = self.spans[index as usize].as_mut().expect("a binned span exists");
        state.bin = Bin::Leaving;
        self.free_cells -= self.class.cells - state.used;
        (state.span, state.objects())
    }

    /// Puts a span that was being emptied back, if objects are left in it; returns the pages that went otherwise.
    pub(super) fn end_eviction(&mut self, span: Span) -> usize {
        let Some(&index) = self.by_span.get(&span.0) else { return self.class.pages };
        let state = self.spans[index as usize].as_mut().expect("a listed span exists");
        if state.bin == Bin::Leaving {
            self.free_cells += self.class.cells - state.used;
            state.bin = Bin::Full;
            self.rebin(index);
        }
        0
    }

    fn add_span(&mut self, pages: &Pages) -> Result<(), Kind> {
        let bookkeeping = self.bookkeeping_bytes();
        pages.budget().charge(bookkeeping)?;
        let span = pages.take_span(self.class.pages).inspect_err(|_| pages.budget().uncharge(bookkeeping))?;
        let owners = vec![0; self.class.cells].into_boxed_slice();
        let state = SpanState { span, used: 0, bin: Bin::Full, live: [0; WORDS], owners };
        let index = self.vacant.pop().unwrap_or(self.spans.len() as u32);
        if index as usize == self.spans.len() {
            self.spans.push(None);
        }
        self.spans[index as usize] = Some(state);
        let known = self.by_span.insert(span.0, index);
        assert!(known.is_none(), "{span:?} was handed out twice");
        self.free_cells += self.class.cells;
        self.rebin(index);
        Ok(())
    }

    fn remove_span(&mut self, pages: &Pages, index: u32) {
        self.unbin(index);
        let state = self.spans[index as usize].take().expect("a listed span exists");
        if state.bin != Bin::Leaving {
            self.free_cells -= self.class.cells;
        }
        self.by_span.remove(&state.span.0);
        self.vacant.push(index);
        pages.give_span(state.span, self.class.pages);
        pages.budget().uncharge(self.bookkeeping_bytes());
    }

    /// Bytes beside the span itself: its state, its owners and its place in the map.
    fn bookkeeping_bytes(&self) -> u64 {
        (size_of::<Option<SpanState>>() + self.class.cells * size_of::<u32>() + 16) as u64
    }

    /// Moves a span to the bin of its fullness.
    fn rebin(&mut self, index: u32) {
        let state = self.spans[index as usize].as_ref().expect("a listed span exists");
        let wanted = (state.used < self.class.cells).then(|| state.used * BINS / self.class.cells);
        match (state.bin, wanted) {
            (Bin::Leaving, _) | (Bin::Full, None) => return,
            (Bin::Partial(bin, _), Some(wanted)) if bin == wanted => return,
            _ => self.unbin(index),
        }
        let bin = wanted.map_or(Bin::Full, |bin| {
            self.bins[bin].push(index);
            Bin::Partial(bin, self.bins[bin].len() - 1)
        });
        self.spans[index as usize].as_mut().expect("a listed span exists").bin = bin;
    }

    fn unbin(&mut self, index: u32) {
        let Some(Bin::Partial(bin, place)) = self.spans[index as usize].as_ref().map(|state| state.bin)
        else {
            return;
        };
        self.bins[bin].swap_remove(place);
        if let Some(&moved) = self.bins[bin].get(place) {
            self.spans[moved as usize].as_mut().expect("a binned span exists").bin = Bin::Partial(bin, place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::Budget;
    use spillway_core::contract::Random;
    use spillway_sim::memory::VecRegions;
    use std::sync::Arc;

    #[test]
    fn cells_are_unique_and_counts_agree_under_random_use() {
        let class = SizeClass { cell_bytes: 1360, cells: 6, pages: 2 };
        let pages = Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(32 << 20));
        let (mut shelf, mut random, mut kept) = (Shelf::new(class), Random(3), Vec::new());
        for step in 0..20_000u32 {
            if random.below(2) == 0 || kept.is_empty() {
                let taken = shelf.take(&pages, step).unwrap();
                assert!(!kept.contains(&taken));
                kept.push(taken);
            } else {
                let (span, cell) = kept.swap_remove(random.below(kept.len() as u64) as usize);
                shelf.give(&pages, span, cell);
            }
            let spans = shelf.spans.iter().flatten();
            let free: usize = spans.map(|state| class.cells - state.used).sum();
            assert_eq!(shelf.free_cells, free);
        }
        kept.into_iter().for_each(|(span, cell)| shelf.give(&pages, span, cell));
        assert!(shelf.by_span.is_empty() && shelf.free_cells == 0);
        pages.cool();
        assert_eq!(pages.budget().used(), 0);
    }

    #[test]
    fn the_fullest_span_serves_first() {
        let class = SizeClass { cell_bytes: 2048, cells: 8, pages: 4 };
        let pages = Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(32 << 20));
        let mut shelf = Shelf::new(class);
        let all: Vec<_> = (0..16).map(|owner| shelf.take(&pages, owner).unwrap()).collect();
        all[1..8].iter().for_each(|&(span, cell)| shelf.give(&pages, span, cell));
        shelf.give(&pages, all[8].0, all[8].1);
        assert_eq!(shelf.take(&pages, 99).unwrap().0, all[8].0);
        assert_eq!(shelf.take(&pages, 99).unwrap().0, all[0].0);
    }
}
