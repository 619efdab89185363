//! The spans of one size class, or a part of them.
//!
//! A plain single-threaded structure; [`super::size_class`] puts it behind a lock. Spans with free cells wait in bins by the number
//! of cells in use, and the fullest serves first, so that sparse spans run empty and go back. A span that is being emptied is in no
//! bin. Memory is taken and returned by the caller, outside the lock.

use spillway_core::mutant;
use spillway_policy::compaction;
use spillway_policy::size_classes::{CELLS_MAX, SizeClass};

use super::cell::{Position, SlotIndex};
use super::pages::{Pages, Span};
use super::spans::Spans;

/// Objects of a span and the slots that own them.
pub(crate) type Objects = Vec<(Position, SlotIndex)>;

/// A span, its cells in use and their owners.
pub(crate) struct SpanState {
    /// A bit for each cell in use, in words of 32, then the owner of each cell: one allocation, as small as the class allows.
    records: Box<[u32]>,
    span: Span,
    used: u16,
    /// Words before the owners.
    live_words: u8,
    leaving: bool,
}

const WORD_BITS: usize = u32::BITS as usize;

/// Words of the records of a span.
fn record_words(cells: usize) -> usize {
    cells.div_ceil(WORD_BITS) + cells
}

impl SpanState {
    /// A span of `class` with no cell in use.
    pub(crate) fn new(span: Span, class: &SizeClass) -> Self {
        assert!(class.cells <= CELLS_MAX, "{} cells in a span", class.cells);
        let records = vec![0; record_words(class.cells)].into();
        let live_words = class.cells.div_ceil(WORD_BITS) as u8;
        Self { records, span, used: 0, live_words, leaving: false }
    }

    /// The memory that it describes.
    pub(crate) fn span(&self) -> Span {
        self.span
    }

    fn cells(&self) -> usize {
        self.records.len() - usize::from(self.live_words)
    }

    fn first_free(&self) -> Position {
        let live = &self.records[..usize::from(self.live_words)];
        let word = live.iter().position(|&word| word != u32::MAX).expect("the span is not full");
        Position::new(word * WORD_BITS + live[word].trailing_ones() as usize)
    }

    fn is_live(&self, cell: Position) -> bool {
        self.records[cell.get() / WORD_BITS] >> (cell.get() % WORD_BITS) & 1 == 1
    }

    fn owner(&self, cell: Position) -> SlotIndex {
        SlotIndex(self.records[usize::from(self.live_words) + cell.get()])
    }

    /// Notes that a free cell is in use now.
    fn take(&mut self, cell: Position, owner: SlotIndex) {
        assert!(cell.get() < self.cells() && !self.is_live(cell), "{cell:?} of {:?} is free", self.span);
        assert!(!self.leaving, "{:?} is being emptied and takes nothing new", self.span);
        self.records[cell.get() / WORD_BITS] |= 1 << (cell.get() % WORD_BITS);
        self.records[usize::from(self.live_words) + cell.get()] = owner.0;
        self.used += 1;
    }

    /// Notes that a cell in use is free now.
    fn give(&mut self, cell: Position) {
        assert!(
            cell.get() < self.cells() && self.is_live(cell),
            "{cell:?} of {:?} was freed twice",
            self.span
        );
        self.records[cell.get() / WORD_BITS] &= !(1 << (cell.get() % WORD_BITS));
        self.used -= 1;
    }

    fn used(&self) -> usize {
        usize::from(self.used)
    }

    fn objects(&self) -> Objects {
        let cells = (0..self.cells()).map(Position::new);
        cells.filter(|&cell| self.is_live(cell)).map(|cell| (cell, self.owner(cell))).collect()
    }
}

/// Spans of one size class.
pub(crate) struct Arena {
    class: SizeClass,
    spans: Spans<SpanState>,
    /// Free cells in spans that wait in bins.
    free_cells: usize,
}

impl Arena {
    pub(crate) fn new(class: SizeClass) -> Self {
        Self { class, spans: Spans::new(class.cells), free_cells: 0 }
    }

    /// Bytes of an arena without spans.
    pub(crate) fn fixed_bytes(class: &SizeClass) -> u64 {
        (size_of::<Self>() + Spans::<SpanState>::fixed_bytes(class.cells)) as u64
    }

    /// Bytes beside the span itself that each span takes: its entry, and its records with the allocator's word.
    pub(crate) fn bytes_a_span(class: &SizeClass) -> u64 {
        (Spans::<SpanState>::BYTES_EACH + record_words(class.cells) * size_of::<u32>() + 16) as u64
    }

    /// Number of spans.
    pub(crate) fn spans(&self) -> usize {
        self.spans.len()
    }

    /// A free cell in the fullest span that has one.
    pub(crate) fn take(&mut self, owner: SlotIndex) -> Option<(Span, Position)> {
        let index = self.spans.fullest()?;
        let state = self.spans.at_mut(index);
        let cell = state.first_free();
        state.take(cell, owner);
        let span = state.span;
        self.free_cells -= 1;
        self.rebin(index);
        Some((span, cell))
    }

    /// Frees a cell. True with the span's last one: then the span is the caller's.
    #[must_use]
    pub(crate) fn give(&mut self, pages: &Pages, span: Span, cell: Position) -> bool {
        let index = pages.tag(span);
        let state = self.spans.at_mut(index);
        assert_eq!(state.span, span, "the tag of {span:?}");
        state.give(cell);
        let (emptied, leaving) = (state.used == 0, state.leaving);
        if !leaving {
            self.free_cells += 1;
        }
        if !emptied {
            self.rebin(index);
            return false;
        }
        if !leaving && !mutant::on("zram: count the cells of a span that is gone") {
            self.free_cells -= self.class.cells;
        }
        self.spans.remove(index, |moved| pages.set_tag(moved.span, index));
        true
    }

    /// Adds an empty span.
    pub(crate) fn add(&mut self, pages: &Pages, state: SpanState) {
        assert!(state.used == 0 && state.cells() == self.class.cells, "an empty span of this class");
        let span = state.span;
        let index = self.spans.push(state);
        pages.set_tag(span, index);
        self.free_cells += self.class.cells;
        self.rebin(index);
    }

    /// The sparsest span and its objects, taken out of its bin, if the others have room for them.
    pub(crate) fn sparsest_to_merge(&mut self) -> Option<(Span, Objects)> {
        if !compaction::can_free_a_span(self.free_cells, self.class.cells) {
            return None;
        }
        let index = self.spans.sparsest()?;
        Some(self.begin_eviction(index))
    }

    /// The sparsest span and its objects, taken out of its bin, if it has enough free cells to be worth packing.
    pub(crate) fn sparse_to_pack(&mut self) -> Option<(Span, Objects)> {
        let index = self.spans.sparsest()?;
        let used = self.spans.at(index).used();
        compaction::worth_rewriting(used, self.class.cells - used).then(|| self.begin_eviction(index))
    }

    fn begin_eviction(&mut self, index: u32) -> (Span, Objects) {
        self.spans.unlist(index);
        let state = self.spans.at_mut(index);
        assert!(!state.leaving, "one pass at a time empties {:?}", state.span);
        state.leaving = true;
        self.free_cells -= self.class.cells - state.used();
        (state.span, state.objects())
    }

    /// Puts a span that was being emptied back, if objects are left in it; returns the pages that went otherwise.
    pub(crate) fn end_eviction(&mut self, pages: &Pages, span: Span) -> usize {
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

    /// Shows every live object to `see`, and asserts that counts, bins and tags agree with the cells in use.
    pub(crate) fn verify(&self, pages: &Pages, mut see: impl FnMut(Span, Position, SlotIndex)) {
        let mut free_cells = 0;
        for (index, state, bin) in self.spans.verified() {
            let objects = state.objects();
            let used = objects.len();
            assert_eq!((state.used(), pages.tag(state.span)), (used, index), "{:?}", state.span);
            assert!((1..=self.class.cells).contains(&used), "{used} of {} cells in use", self.class.cells);
            let listed = (!state.leaving && used < self.class.cells).then_some(used);
            assert_eq!(bin, listed, "the bin of {:?}", state.span);
            free_cells += listed.map_or(0, |used| self.class.cells - used);
            objects.into_iter().for_each(|(cell, owner)| see(state.span, cell, owner));
        }
        assert_eq!(self.free_cells, free_cells, "free cells of spans in bins");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::Budget;
    use spillway_core::random::Random;
    use spillway_sim::memory::VecRegions;
    use std::sync::Arc;

    fn pages() -> Pages {
        let budget = Budget::new(32 << 20);
        Pages::new(Arc::new(VecRegions::new(64 << 20)), budget.clone(), budget)
    }

    fn take(arena: &mut Arena, pages: &Pages, owner: u32) -> (Span, Position) {
        let owner = SlotIndex(owner);
        arena.take(owner).unwrap_or_else(|| {
            let span = pages.take_span(arena.class.pages).unwrap();
            arena.add(pages, SpanState::new(span, &arena.class));
            arena.take(owner).unwrap()
        })
    }

    fn give(arena: &mut Arena, pages: &Pages, (span, cell): (Span, Position)) {
        if arena.give(pages, span, cell) {
            pages.give_span(span, arena.class.pages);
        }
    }

    #[test]
    fn cells_are_unique_and_counts_agree_under_random_use() {
        let class = SizeClass { cell_bytes: 1360, cells: 6, pages: 2 };
        let (pages, mut arena, mut random, mut kept) = (pages(), Arena::new(class), Random(3), Vec::new());
        for step in 0..20_000u32 {
            if random.below(2) == 0 || kept.is_empty() {
                let taken = take(&mut arena, &pages, step);
                assert!(!kept.contains(&taken));
                kept.push(taken);
            } else {
                let cell = kept.swap_remove(random.below(kept.len() as u64) as usize);
                give(&mut arena, &pages, cell);
            }
            if step % 8 == 0 {
                let mut seen = 0;
                arena.verify(&pages, |span, cell, _| {
                    assert!(kept.contains(&(span, cell)));
                    seen += 1;
                });
                assert_eq!(seen, kept.len());
            }
        }
        kept.into_iter().for_each(|cell| give(&mut arena, &pages, cell));
        assert!(arena.spans.len() == 0 && arena.free_cells == 0);
        pages.cool();
        assert_eq!(pages.budget().used(), pages.tag_bytes());
    }

    #[test]
    fn the_fullest_span_serves_first_and_the_sparsest_leaves_first() {
        // Of 40 cells: eighths of fullness would not tell 21 in use from 22.
        let class = SizeClass { cell_bytes: 816, cells: 40, pages: 8 };
        let (pages, mut arena) = (pages(), Arena::new(class));
        let all: Vec<_> = (0..160).map(|owner| take(&mut arena, &pages, owner)).collect();
        for (span, used) in [(0, 22), (1, 21), (2, 23), (3, 21)] {
            let cells = &all[span * 40 + used..(span + 1) * 40];
            cells.iter().for_each(|&cell| give(&mut arena, &pages, cell));
        }
        assert_eq!(take(&mut arena, &pages, 999).0, all[80].0);
        let (first, objects) = arena.sparsest_to_merge().unwrap();
        assert!((first == all[40].0 || first == all[120].0) && objects.len() == 21);
        assert_eq!(take(&mut arena, &pages, 999).0, all[80].0, "the fullest, still");
        assert_eq!(arena.end_eviction(&pages, first), 0);
        let (again, _) = arena.sparsest_to_merge().unwrap();
        assert!(again == all[40].0 || again == all[120].0);
    }
}
