//! Pages for the pool and the table: where memory comes from and goes back to.
//!
//! Memory is mapped in large *chunks* that cost nothing until touched, and handed out as *spans* (runs of 1 to 8 pages at a
//! fixed distance of 32 KiB) and *leaves* (single pages of the slot table). Every page handed out is charged to the budget
//! first. A span given back is kept warm for the next taker up to a small bound, still charged; the rest goes back to the
//! system at once.
//!
//! Lock order: this lock is a leaf, taken with a class's or a shard's lock held; it is never held across I/O, only across
//! the system's giving and taking of memory.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use spillway_core::sync::Mutex;
use spillway_core::{Budget, Kind, Region, Regions};
use spillway_policy::size_classes::{PAGE_BYTES, SPAN_PAGES_MAX};

/// Distance between the starts of two spans in bytes.
pub(super) const SPAN_BYTES: usize = PAGE_BYTES * SPAN_PAGES_MAX;

/// Chunks a device may map; with the largest chunk size this is 16 TiB of address space.
const CHUNKS_MAX: usize = 4096;
const CHUNK_BYTES_MIN: u64 = 4 << 20;
const CHUNK_BYTES_MAX: u64 = 4 << 30;

/// Bytes of warm spans kept for the next taker.
const WARM_BYTES_MAX: usize = 1 << 20;

/// Number of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Span(pub(super) u32);

/// A page of the slot table, as words. Not freed on drop: [`Pages::give_leaf`] takes it back.
pub(super) struct Leaf {
    words: NonNull<[u64; PAGE_BYTES / 8]>,
    span: Span,
    page: u8,
}

// SAFETY: a leaf owns its page: `Pages` hands each page out once and never touches it until it is given back.
unsafe impl Send for Leaf {}

impl std::ops::Deref for Leaf {
    type Target = [u64; PAGE_BYTES / 8];

    fn deref(&self) -> &Self::Target {
        // SAFETY: the page is mapped, aligned, initialised (zeroed by the system) and owned by this leaf.
        unsafe { self.words.as_ref() }
    }
}

impl std::ops::DerefMut for Leaf {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: as above, and `&mut self` is the only way to it.
        unsafe { self.words.as_mut() }
    }
}

struct Chunk {
    region: Box<dyn Region>,
}

#[derive(Default)]
struct State {
    fresh: u32,
    clean: Vec<Span>,
    warm: Vec<(Span, u8)>,
    warm_pages: usize,
    leaves: Vec<(Span, u8)>,
}

/// The source of spans and leaves of one device.
pub(super) struct Pages {
    regions: Arc<dyn Regions>,
    budget: Arc<Budget>,
    chunk_shift: u32,
    chunks: Box<[OnceLock<Chunk>]>,
    state: Mutex<State>,
}

impl Pages {
    /// Pages charged to `budget`.
    pub(super) fn new(regions: Arc<dyn Regions>, budget: Arc<Budget>) -> Self {
        let wished = (budget.room() / 256).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        let chunk_shift = wished.trailing_zeros() - SPAN_BYTES.trailing_zeros();
        let chunks = (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect();
        Self { regions, budget, chunk_shift, chunks, state: Mutex::default() }
    }

    /// The budget that pages are charged to.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// A span with `pages` pages, zeroed or warm. [`Kind::NoSpace`] at the budget, [`Kind::OutOfMemory`] where the system
    /// refuses.
    pub(super) fn take_span(&self, pages: usize) -> Result<Span, Kind> {
        let mut state = self.state.lock();
        if let Some((span, had)) = state.warm.pop() {
            state.warm_pages -= usize::from(had);
            return self.fit_warm(&mut state, span, usize::from(had), pages);
        }
        self.budget.charge((pages * PAGE_BYTES) as u64)?;
        let span = self.place_for_span(&mut state);
        if span.is_err() {
            self.budget.uncharge((pages * PAGE_BYTES) as u64);
        }
        span
    }

    /// Makes a warm span of `had` pages one of `pages`.
    fn fit_warm(&self, state: &mut State, span: Span, had: usize, pages: usize) -> Result<Span, Kind> {
        if pages <= had {
            self.release(span, pages, had - pages);
            return Ok(span);
        }
        let charged = self.budget.charge(((pages - had) * PAGE_BYTES) as u64);
        if let Err(kind) = charged {
            state.warm.push((span, had as u8));
            state.warm_pages += had;
            return Err(kind);
        }
        Ok(span)
    }

    fn place_for_span(&self, state: &mut State) -> Result<Span, Kind> {
        if let Some(span) = state.clean.pop() {
            return Ok(span);
        }
        let span = Span(state.fresh);
        let chunk = self.chunks.get(self.chunk_of(span)).ok_or(Kind::OutOfMemory)?;
        if chunk.get().is_none() {
            let region = self.regions.map(SPAN_BYTES << self.chunk_shift)?;
            assert!(chunk.set(Chunk { region }).is_ok(), "chunks are added under the lock");
        }
        state.fresh += 1;
        Ok(span)
    }

    /// Takes back a span of `pages` pages. No reference into it is left.
    pub(super) fn give_span(&self, span: Span, pages: usize) {
        let mut state = self.state.lock();
        if (state.warm_pages + pages) * PAGE_BYTES <= WARM_BYTES_MAX {
            state.warm_pages += pages;
            state.warm.push((span, pages as u8));
            return;
        }
        self.release(span, 0, pages);
        state.clean.push(span);
    }

    /// Gives all warm spans back to the system.
    pub(super) fn cool(&self) {
        let mut state = self.state.lock();
        let warm = std::mem::take(&mut state.warm);
        state.warm_pages = 0;
        for (span, pages) in warm {
            self.release(span, 0, usize::from(pages));
            state.clean.push(span);
        }
    }

    /// A zeroed page for the table.
    pub(super) fn take_leaf(&self) -> Result<Leaf, Kind> {
        self.budget.charge(PAGE_BYTES as u64)?;
        let mut state = self.state.lock();
        if state.leaves.is_empty() {
            let span =
                self.place_for_span(&mut state).inspect_err(|_| self.budget.uncharge(PAGE_BYTES as u64))?;
            state.leaves.extend((0..SPAN_PAGES_MAX as u8).rev().map(|page| (span, page)));
        }
        let (span, page) = state.leaves.pop().expect("filled above");
        let words = self.address(span, usize::from(page) * PAGE_BYTES).cast();
        Ok(Leaf { words, span, page })
    }

    /// Takes a leaf back.
    pub(super) fn give_leaf(&self, leaf: Leaf) {
        self.release(leaf.span, usize::from(leaf.page), 1);
        self.state.lock().leaves.push((leaf.span, leaf.page));
    }

    /// The byte at `offset` of a span that has been handed out.
    pub(super) fn address(&self, span: Span, offset: usize) -> NonNull<u8> {
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        let start = (span.0 as usize & ((1 << self.chunk_shift) - 1)) * SPAN_BYTES;
        assert!(start + offset < chunk.region.len());
        // SAFETY: the sum stays within the region, as asserted, and a region is one mapping.
        unsafe { chunk.region.base().add(start + offset) }
    }

    fn chunk_of(&self, span: Span) -> usize {
        (span.0 >> self.chunk_shift) as usize
    }

    /// Gives `count` pages from page `first` of a span back to the system and to the budget.
    fn release(&self, span: Span, first: usize, count: usize) {
        if count == 0 {
            return;
        }
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        let start = (span.0 as usize & ((1 << self.chunk_shift) - 1)) * SPAN_BYTES;
        chunk.region.release(start + first * PAGE_BYTES, count * PAGE_BYTES);
        self.budget.uncharge((count * PAGE_BYTES) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_sim::memory::VecRegions;

    fn pages(budget: u64) -> Pages {
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(budget))
    }

    #[test]
    fn spans_are_charged_and_given_back() {
        let pages = pages(16 * PAGE_BYTES as u64);
        let first = pages.take_span(8).unwrap();
        let second = pages.take_span(8).unwrap();
        assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
        pages.give_span(first, 8);
        assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64, "a warm span stays charged");
        let again = pages.take_span(3).unwrap();
        assert_eq!((again, pages.budget().used()), (first, 11 * PAGE_BYTES as u64));
        pages.give_span(again, 3);
        pages.give_span(second, 8);
        pages.cool();
        assert_eq!(pages.budget().used(), 0);
    }

    #[test]
    fn a_leaf_is_zero_again_when_taken_again() {
        let pages = pages(1 << 20);
        let mut leaf = pages.take_leaf().unwrap();
        assert!(leaf.iter().all(|&word| word == 0));
        leaf.fill(7);
        pages.give_leaf(leaf);
        assert_eq!(pages.budget().used(), 0);
        let leaf = pages.take_leaf().unwrap();
        assert!(leaf.iter().all(|&word| word == 0));
        pages.give_leaf(leaf);
    }

    #[test]
    fn a_refusing_system_is_an_error_and_charges_nothing() {
        let pages = Pages::new(Arc::new(VecRegions::new(0)), Budget::new(1 << 20));
        assert_eq!(pages.take_span(1), Err(Kind::OutOfMemory));
        assert!(pages.take_leaf().is_err());
        assert_eq!(pages.budget().used(), 0);
    }
}
