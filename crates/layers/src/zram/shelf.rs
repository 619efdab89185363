//! The spans of one size class.
//!
//! A plain single-threaded structure; [`super::pool`] puts it behind a lock. Spans with free cells wait in bins by the number
//! of cells in use, and the fullest serves first, so that sparse spans run empty and go back. A span that is being emptied is in no
//! bin. Memory is taken and returned by the caller, outside the lock.

use spillway_policy::compaction;
use spillway_policy::size_classes::{CELLS_MAX, SizeClass};

use super::pages::{Pages, Span};
use super::spans::Spans;

const WORDS: usize = CELLS_MAX / 64;

/// A span, its cells in use and their owners.
pub(super) struct SpanState {
    live: [u64; WORDS],
    owners: Box<[u32]>,
    span: Span,
    used: u16,
    leaving: bool,
}

impl SpanState {
    /// A span of `class` with no cell in use.
    pub(super) fn new(span: Span, class: &SizeClass) -> Self {
        Self { live: [0; WORDS], owners: vec![0; class.cells].into(), span, used: 0, leaving: false }
    }

    /// The memory that it describes.
    pub(super) fn span(&self) -> Span {
        self.span
    }

    fn first_free(&self) -> usize {
        let word = self.live.iter().position(|&word| word != u64::MAX).expect("the span is not full");
        word * 64 + self.live[word].trailing_ones() as usize
    }

    fn is_live(&self, cell: usize) -> bool {
        self.live[cell / 64] >> (cell % 64) & 1 == 1
    }

    fn used(&self) -> usize {
        usize::from(self.used)
    }

    fn objects(&self) -> Vec<(usize, u32)> {
        let cells = 0..self.owners.len();
        cells.filter(|&cell| self.is_live(cell)).map(|cell| (cell, self.owners[cell])).collect()
    }
}

pub(super) struct Shelf {
    class: SizeClass,
    spans: Spans<SpanState>,
    /// Free cells in spans that wait in bins.
    free_cells: usize,
}

impl Shelf {
    pub(super) fn new(class: SizeClass) -> Self {
        Self { class, spans: Spans::new(class.cells), free_cells: 0 }
    }

    /// Bytes of a shelf without spans.
    pub(super) fn fixed_bytes(class: &SizeClass) -> u64 {
        (size_of::<Self>() + Spans::<SpanState>::fixed_bytes(class.cells)) as u64
    }

    /// Bytes beside the span itself that each span takes: its entry, and its owners with the allocator's word.
    pub(super) fn bytes_a_span(class: &SizeClass) -> u64 {
        (Spans::<SpanState>::BYTES_EACH + class.cells * size_of::<u32>() + 16) as u64
    }

    /// A free cell in the fullest span that has one.
    pub(super) fn take(&mut self, owner: u32) -> Option<(Span, usize)> {
        let index = self.spans.fullest()?;
        let state = self.spans.at_mut(index);
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

    /// Frees a cell. True with the span's last one: then the span is the caller's.
    #[must_use]
    pub(super) fn give(&mut self, pages: &Pages, span: Span, cell: usize) -> bool {
        let index = pages.tag(span);
        let state = self.spans.at_mut(index);
        assert!(state.span == span && state.is_live(cell), "cell {cell} of {span:?} was freed twice");
        state.live[cell / 64] &= !(1 << (cell % 64));
        state.used -= 1;
        let (emptied, leaving) = (state.used == 0, state.leaving);
        if !leaving {
            self.free_cells += 1;
        }
        if !emptied {
            self.rebin(index);
            return false;
        }
        if !leaving {
            self.free_cells -= self.class.cells;
        }
        self.spans.remove(index, |moved| pages.set_tag(moved.span, index));
        true
    }

    /// Adds an empty span.
    pub(super) fn add(&mut self, pages: &Pages, state: SpanState) {
        let span = state.span;
        let index = self.spans.push(state);
        pages.set_tag(span, index);
        self.free_cells += self.class.cells;
        self.rebin(index);
    }

    /// The sparsest span and its objects, taken out of its bin, if the others have room for them.
    pub(super) fn sparsest_to_merge(&mut self) -> Option<(Span, Vec<(usize, u32)>)> {
        if !compaction::can_free_a_span(self.free_cells, self.class.cells) {
            return None;
        }
        let index = self.spans.sparsest()?;
        Some(self.begin_eviction(index))
    }

    /// The sparsest span and its objects, taken out of its bin, if it has enough free cells to be worth packing.
    pub(super) fn sparse_to_pack(&mut self) -> Option<(Span, Vec<(usize, u32)>)> {
        let index = self.spans.sparsest()?;
        let used = self.spans.at(index).used();
        compaction::worth_rewriting(used, self.class.cells - used).then(|| self.begin_eviction(index))
    }

    fn begin_eviction(&mut self, index: u32) -> (Span, Vec<(usize, u32)>) {
        self.spans.unlist(index);
        let state = self.spans.at_mut(index);
        state.leaving = true;
        self.free_cells -= self.class.cells - state.used();
        (state.span, state.objects())
    }

    /// Puts a span that was being emptied back, if objects are left in it; returns the pages that went otherwise.
    pub(super) fn end_eviction(&mut self, pages: &Pages, span: Span) -> usize {
        // Its tag may be another's by now; what lies at that number here tells.
        let index = pages.tag(span);
        let Some(state) = self.spans.get(index).filter(|state| state.span == span) else {
            return self.class.pages;
        };
        if state.leaving {
            self.free_cells += self.class.cells - state.used();
            self.spans.at_mut(index).leaving = false;
            self.rebin(index);
        }
        0
    }

    /// Moves a span to the bin of its fullness.
    fn rebin(&mut self, index: u32) {
        let state = self.spans.at(index);
        match state.used() {
            _ if state.leaving => {}
            used if used == self.class.cells => self.spans.unlist(index),
            used => self.spans.list(index, used),
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

    fn pages() -> Pages {
        let budget = Budget::new(32 << 20);
        Pages::new(Arc::new(VecRegions::new(64 << 20)), budget.clone(), budget)
    }

    fn take(shelf: &mut Shelf, pages: &Pages, owner: u32) -> (Span, usize) {
        shelf.take(owner).unwrap_or_else(|| {
            let span = pages.take_span(shelf.class.pages).unwrap();
            shelf.add(pages, SpanState::new(span, &shelf.class));
            shelf.take(owner).unwrap()
        })
    }

    fn give(shelf: &mut Shelf, pages: &Pages, (span, cell): (Span, usize)) {
        if shelf.give(pages, span, cell) {
            pages.give_span(span, shelf.class.pages);
        }
    }

    #[test]
    fn cells_are_unique_and_counts_agree_under_random_use() {
        let class = SizeClass { cell_bytes: 1360, cells: 6, pages: 2 };
        let (pages, mut shelf, mut random, mut kept) = (pages(), Shelf::new(class), Random(3), Vec::new());
        for step in 0..20_000u32 {
            if random.below(2) == 0 || kept.is_empty() {
                let taken = take(&mut shelf, &pages, step);
                assert!(!kept.contains(&taken));
                kept.push(taken);
            } else {
                let place = kept.swap_remove(random.below(kept.len() as u64) as usize);
                give(&mut shelf, &pages, place);
            }
            let free: usize = shelf.spans.iter().map(|state| class.cells - state.used()).sum();
            assert_eq!(shelf.free_cells, free);
        }
        kept.into_iter().for_each(|place| give(&mut shelf, &pages, place));
        assert!(shelf.spans.len() == 0 && shelf.free_cells == 0);
        pages.cool();
        assert_eq!(pages.budget().used(), pages.tag_bytes());
    }

    #[test]
    fn the_fullest_span_serves_first_and_the_sparsest_leaves_first() {
        // Of 40 cells: eighths of fullness would not tell 21 in use from 22.
        let class = SizeClass { cell_bytes: 816, cells: 40, pages: 8 };
        let (pages, mut shelf) = (pages(), Shelf::new(class));
        let all: Vec<_> = (0..160).map(|owner| take(&mut shelf, &pages, owner)).collect();
        for (span, used) in [(0, 22), (1, 21), (2, 23), (3, 21)] {
            let cells = &all[span * 40 + used..(span + 1) * 40];
            cells.iter().for_each(|&place| give(&mut shelf, &pages, place));
        }
        assert_eq!(take(&mut shelf, &pages, 999).0, all[80].0);
        let (first, objects) = shelf.sparsest_to_merge().unwrap();
        assert!((first == all[40].0 || first == all[120].0) && objects.len() == 21);
        assert_eq!(take(&mut shelf, &pages, 999).0, all[80].0, "the fullest, still");
        assert_eq!(shelf.end_eviction(&pages, first), 0);
        let (again, _) = shelf.sparsest_to_merge().unwrap();
        assert!(again == all[40].0 || again == all[120].0);
    }
}
