//! Pages for the pool and the table: where memory comes from and goes back to.
//!
//! Memory is mapped in large *chunks* that cost nothing until touched, and handed out as *spans* (runs of 1 to 8 pages at a
//! fixed distance of 32 KiB) and *leaves* (single pages of the slot table). Every page handed out is charged to the budget
//! first. A span given back is kept warm for the next taker up to a small bound, still charged; the rest goes back to the
//! system at once. Warm spans serve any taker: whoever finds the budget full has them cooled before it is refused.
//!
//! Moving objects together takes a span before it frees one, at the limit too. So the compactor has a *reserve*, charged when the
//! device begins: it borrows from that, and what then comes free pays it back before anybody else has it. Two spans are set aside
//! with it, for a chunk more would have to be charged.
//!
//! Each span has a *tag*, a word that says of a span in use where it is listed, and of a free one which is the next free one. So
//! neither a map nor a list grows with the device. Tags are charged with their chunk.
//!
//! A warm span that is being cut or cooled is in the *hand* of one thread. Another that finds no room meanwhile waits for that before
//! it is refused.
//!
//! Lock order: what is in hand, then the state, which is a leaf and not held while memory goes back to the system.
//! [`Pages::charge`], [`Pages::take_span`], [`Pages::give_span`], [`Pages::give_leaf`] and [`Pages::cool`], which may return memory,
//! are called with no lock held.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use spillway_core::sync::{AtomicU64, Mutex, MutexGuard, Ordering, RwLock, Semaphore, Take};
use spillway_core::{Budget, Charge, Kind, Region, Regions};
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
    tags: Box<[AtomicU64]>,
    _charge: Charge,
}

/// In a tag: no other span follows.
const NO_SPAN: u32 = u32::MAX;

/// Where a tag of a span of leaves has a bit for each page that is free; the next such span is below.
const FREE_SHIFT: u32 = 32;

struct State {
    /// Spans from this one on were never handed out.
    fresh: u32,
    /// First of the spans that hold no memory, linked by their tags.
    clean: u32,
    /// Spans that hold memory, by their pages less one.
    warm: [Vec<Span>; SPAN_PAGES_MAX],
    warm_pages: usize,
    /// First of the spans of leaves that have a free page, linked by their tags.
    leaves: u32,
    /// Spans without memory that go with the reserve: where the budget is full, there may be none for the tags of a chunk.
    aside: Vec<Span>,
}

/// Spans set aside for the reserve.
const ASIDE: usize = 2;

/// What waits for memory is told of so many spans at most that came free while nobody waited.
const FREED_MAX: u64 = 16;

/// The source of spans and leaves of one device.
pub(super) struct Pages {
    regions: Arc<dyn Regions>,
    budget: Arc<Budget>,
    fixed: Arc<Budget>,
    chunk_shift: u32,
    chunks: Box<[OnceLock<Chunk>]>,
    state: Mutex<State>,
    /// Read by whoever has a warm span in hand: its memory is in no list, and what is not needed of it is not given back yet.
    in_hand: RwLock<()>,
    /// A free unit for each span or leaf that came free and that nobody has been told of.
    freed: Semaphore,
    reserve: Option<Charge>,
    /// Bytes of the reserve that are in use: memory which is not charged to the budget.
    borrowed: AtomicU64,
}

impl Pages {
    /// Pages charged to `budget`; tags, which go back with the device alone, to `fixed`.
    pub(super) fn new(regions: Arc<dyn Regions>, budget: Arc<Budget>, fixed: Arc<Budget>) -> Self {
        let wished = (budget.room() / 256).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        let chunk_shift = wished.trailing_zeros() - SPAN_BYTES.trailing_zeros();
        let chunks = (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect();
        let (warm, aside) = (Default::default(), Vec::with_capacity(ASIDE));
        let state = State { fresh: 0, clean: NO_SPAN, warm, warm_pages: 0, leaves: NO_SPAN, aside };
        let freed = Semaphore::new(FREED_MAX);
        freed.force(FREED_MAX);
        Self {
            regions,
            budget,
            fixed,
            chunk_shift,
            chunks,
            state: Mutex::new(state),
            in_hand: RwLock::new(()),
            freed,
            reserve: None,
            borrowed: AtomicU64::new(0),
        }
    }

    /// Charges a reserve of `bytes` to the budget of what a device takes however little it holds.
    pub(super) fn with_reserve(self, bytes: u64) -> Result<Self, Kind> {
        let reserve = Some(self.fixed.hold(bytes)?);
        Ok(Self { reserve, ..self })
    }

    /// The budget that pages are charged to.
    pub(super) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Charges `bytes`; warm spans are given back for it where need be. Called with no lock held.
    pub(super) fn charge(&self, bytes: u64) -> Result<(), Kind> {
        let mut waited = false;
        loop {
            match self.budget.charge(bytes) {
                Err(_) if self.makes_room(&mut waited) => {}
                charged => return charged,
            }
        }
    }

    /// Gives a warm span back to the system, or waits once until what others have in hand has gone back; false where neither
    /// is left to do. Called with no lock held.
    pub(super) fn makes_room(&self, waited: &mut bool) -> bool {
        if self.cool_one() {
            return true;
        }
        let first = !std::mem::replace(waited, true);
        if first {
            drop(self.in_hand.write());
        }
        first
    }

    /// Takes `bytes` of the reserve: for who frees more soon.
    pub(super) fn borrow(&self, bytes: u64) -> Result<(), Kind> {
        let whole = self.reserve.as_ref().map_or(0, Charge::bytes);
        let fits = |borrowed: u64| borrowed.checked_add(bytes).filter(|&sum| sum <= whole);
        let borrowed = self.borrowed.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        borrowed.map(drop).map_err(|_| Kind::NoSpace)
    }

    /// A clean span with `pages` pages, borrowed with `beside` bytes from the reserve.
    pub(super) fn borrow_span(&self, pages: usize, beside: u64) -> Result<Span, Kind> {
        let bytes = (pages * PAGE_BYTES) as u64 + beside;
        self.borrow(bytes)?;
        let mut state = self.state.lock();
        let span = self.next_span(&mut state).or_else(|kind| state.aside.pop().ok_or(kind));
        drop(state);
        span.inspect_err(|_| self.uncharge(bytes))
    }

    /// Bytes in use of the reserve.
    pub(super) fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::Acquire)
    }

    /// Gives back what was charged or borrowed: to the reserve first.
    pub(super) fn uncharge(&self, bytes: u64) {
        let mut paid = 0;
        if self.borrowed() > 0 {
            let pay = |borrowed: u64| Some(borrowed.saturating_sub(bytes));
            let before = self.borrowed.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
            paid = before.expect("there is always a next number").min(bytes);
        }
        self.budget.uncharge(bytes - paid);
    }

    /// A span with `pages` pages, zeroed or warm. [`Kind::NoSpace`] at the budget, [`Kind::OutOfMemory`] where the system
    /// refuses.
    pub(super) fn take_span(&self, pages: usize) -> Result<Span, Kind> {
        if let Some(span) = self.take_warm_as(pages) {
            return Ok(span);
        }
        let bytes = (pages * PAGE_BYTES) as u64;
        self.charge(bytes)?;
        let span = self.state_with_span();
        span.map(|(_, span)| span).inspect_err(|_| self.uncharge(bytes))
    }

    /// A warm span and its pages: of `pages` if there is one, for what is cut off or added is a page fault later; else
    /// a longer one, else a shorter one.
    fn take_warm(&self, pages: usize) -> Option<(Span, usize)> {
        let mut state = self.state.lock();
        let mut sizes = (pages..=SPAN_PAGES_MAX).chain((1..pages).rev());
        let found = sizes.find(|&size| !state.warm[size - 1].is_empty())?;
        state.warm_pages -= found;
        state.warm[found - 1].pop().map(|span| (span, found))
    }

    /// A warm span, made one of `pages`. One that is too short goes back to the system where there is no room for the rest of it:
    /// who waits for others to give back what they have in hand has nothing in hand himself.
    fn take_warm_as(&self, pages: usize) -> Option<Span> {
        let _in_hand = self.in_hand.read();
        let (span, had) = self.take_warm(pages)?;
        if pages <= had {
            self.release(span, pages, had - pages);
        } else if self.budget.charge(((pages - had) * PAGE_BYTES) as u64).is_err() {
            self.clean(span, had);
            return None;
        }
        Some(span)
    }

    /// The state, locked, and a span without memory. Those aside come first.
    fn state_with_span(&self) -> Result<(MutexGuard<'_, State>, Span), Kind> {
        let mut state = self.state.lock();
        while self.lacks_aside(&state) {
            let span = self.next_span(&mut state)?;
            state.aside.push(span);
        }
        let span = self.next_span(&mut state)?;
        Ok((state, span))
    }

    fn lacks_aside(&self, state: &State) -> bool {
        self.reserve.is_some() && state.aside.len() < ASIDE
    }

    fn next_span(&self, state: &mut State) -> Result<Span, Kind> {
        if state.clean != NO_SPAN {
            let span = Span(state.clean);
            state.clean = self.tag(span);
            return Ok(span);
        }
        let span = Span(state.fresh);
        let chunk = self.chunks.get(self.chunk_of(span)).ok_or(Kind::OutOfMemory)?;
        if chunk.get().is_none() {
            assert!(chunk.set(self.map_chunk()?).is_ok(), "chunks are added under the lock");
        }
        state.fresh += 1;
        Ok(span)
    }

    fn map_chunk(&self) -> Result<Chunk, Kind> {
        let charge = self.fixed.hold(size_of::<AtomicU64>() as u64 * self.chunk_spans() as u64)?;
        let region = self.regions.map(SPAN_BYTES << self.chunk_shift)?;
        let tags = (0..self.chunk_spans()).map(|_| AtomicU64::new(0)).collect();
        Ok(Chunk { region, tags, _charge: charge })
    }

    /// Takes back a span of `pages` pages. No reference into it is left.
    pub(super) fn give_span(&self, span: Span, pages: usize) {
        self.put_back(span, pages);
        self.tell();
    }

    fn put_back(&self, span: Span, pages: usize) {
        {
            let mut state = self.state.lock();
            let wanted = self.borrowed() == 0 && (state.warm_pages + pages) * PAGE_BYTES <= WARM_BYTES_MAX;
            if wanted {
                state.warm_pages += pages;
                state.warm[pages - 1].push(span);
                return;
            }
        }
        self.clean(span, pages);
    }

    /// Gives the memory of a span back to the system.
    fn clean(&self, span: Span, pages: usize) {
        self.release(span, 0, pages);
        let mut state = self.state.lock();
        self.set_tag(span, state.clean);
        state.clean = span.0;
    }

    /// Gives a warm span back to the system; false where there is none.
    pub(super) fn cool_one(&self) -> bool {
        let _in_hand = self.in_hand.read();
        let warm = self.take_warm(SPAN_PAGES_MAX);
        warm.is_some_and(|(span, pages)| {
            self.clean(span, pages);
            true
        })
    }

    /// Gives all warm spans back to the system.
    pub(super) fn cool(&self) {
        while self.cool_one() {}
    }

    /// A zeroed page for the table. Returns no memory to the system and may be called with a shard locked.
    pub(super) fn take_leaf(&self) -> Result<Leaf, Kind> {
        self.budget.charge(PAGE_BYTES as u64)?;
        self.place_for_leaf().inspect_err(|_| self.uncharge(PAGE_BYTES as u64))
    }

    fn place_for_leaf(&self) -> Result<Leaf, Kind> {
        let mut state = self.state.lock();
        if state.leaves == NO_SPAN {
            drop(state);
            let (locked, span) = self.state_with_span()?;
            state = locked;
            self.word(span).store(0xff << FREE_SHIFT | u64::from(state.leaves), Ordering::Relaxed);
            state.leaves = span.0;
        }
        let span = Span(state.leaves);
        let word = self.word(span).load(Ordering::Relaxed);
        let page = (word >> FREE_SHIFT).trailing_zeros() as u8;
        let left = word & !(1 << (FREE_SHIFT + u32::from(page)));
        self.word(span).store(left, Ordering::Relaxed);
        if left >> FREE_SHIFT == 0 {
            state.leaves = left as u32;
        }
        let words = self.address(span, usize::from(page) * PAGE_BYTES).cast();
        Ok(Leaf { words, span, page })
    }

    /// Takes a leaf back.
    pub(super) fn give_leaf(&self, leaf: Leaf) {
        self.release(leaf.span, usize::from(leaf.page), 1);
        {
            let mut state = self.state.lock();
            let word = self.word(leaf.span).load(Ordering::Relaxed);
            let free = word | 1 << (FREE_SHIFT + u32::from(leaf.page));
            if word >> FREE_SHIFT == 0 {
                let next = u64::from(std::mem::replace(&mut state.leaves, leaf.span.0));
                self.word(leaf.span).store(free & !u64::from(u32::MAX) | next, Ordering::Relaxed);
            } else {
                self.word(leaf.span).store(free, Ordering::Relaxed);
            }
        }
        self.tell();
    }

    /// Tells one task that waits for memory that some came free, or the next one that will; unless the reserve had it.
    fn tell(&self) {
        if self.borrowed() == 0 {
            self.freed.try_give(1);
        }
    }

    /// Waits until a span or a leaf came free that no other task has been told of.
    pub(super) fn freed(&self) -> Take<'_> {
        self.freed.take(1)
    }

    /// The word that goes with a span: whoever has the span may use the lower half.
    fn word(&self, span: Span) -> &AtomicU64 {
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        &chunk.tags[span.0 as usize & (self.chunk_spans() - 1)]
    }

    /// What [`Pages::set_tag`] set last, under the lock of whoever has the span.
    pub(super) fn tag(&self, span: Span) -> u32 {
        self.word(span).load(Ordering::Relaxed) as u32
    }

    /// Sets the tag of a span that was handed out to the caller.
    pub(super) fn set_tag(&self, span: Span, tag: u32) {
        self.word(span).store(u64::from(tag), Ordering::Relaxed);
    }

    /// Spans of a chunk.
    fn chunk_spans(&self) -> usize {
        1 << self.chunk_shift
    }

    /// Tasks that wait for memory.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.freed.waiting()
    }

    /// Bytes of all tags.
    #[cfg(test)]
    pub(super) fn tag_bytes(&self) -> u64 {
        self.chunks.iter().filter_map(OnceLock::get).map(|chunk| chunk._charge.bytes()).sum()
    }

    /// The byte at `offset` of a span that has been handed out.
    pub(super) fn address(&self, span: Span, offset: usize) -> NonNull<u8> {
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        let start = (span.0 as usize & (self.chunk_spans() - 1)) * SPAN_BYTES;
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
        let start = (span.0 as usize & (self.chunk_spans() - 1)) * SPAN_BYTES;
        chunk.region.release(start + first * PAGE_BYTES, count * PAGE_BYTES);
        self.uncharge((count * PAGE_BYTES) as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_sim::memory::VecRegions;

    fn pages(bytes: u64) -> Pages {
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(bytes), Budget::new(1 << 20))
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
    fn warm_spans_serve_any_size_before_anything_is_refused() {
        let pages = pages(16 * PAGE_BYTES as u64);
        let small: Vec<_> = (0..16).map(|_| pages.take_span(1).unwrap()).collect();
        small.into_iter().for_each(|span| pages.give_span(span, 1));
        assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64, "sixteen warm spans of a page");
        let large = pages.take_span(8).expect("seven of them go for it");
        assert_eq!(pages.budget().used(), 16 * PAGE_BYTES as u64);
        pages.charge(8 * PAGE_BYTES as u64).expect("the others go for bookkeeping");
        assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
        pages.budget().uncharge(8 * PAGE_BYTES as u64);
        pages.give_span(large, 8);
        assert!(pages.cool_one() && !pages.cool_one());
        assert_eq!(pages.budget().used(), 0);
    }

    #[test]
    fn what_comes_free_pays_the_reserve_back_before_anybody_has_it() {
        let (budget, fixed, page) = (Budget::new(16 * 4096), Budget::new(1 << 20), PAGE_BYTES as u64);
        let pages = Pages::new(Arc::new(VecRegions::new(64 << 20)), budget.clone(), fixed.clone());
        let pages = pages.with_reserve(8 * page + 100).unwrap();
        let all = [pages.take_span(8).unwrap(), pages.take_span(8).unwrap()];
        assert_eq!(pages.take_span(1), Err(Kind::NoSpace));
        let borrowed = pages.borrow_span(8, 100).unwrap();
        assert_eq!((pages.borrow_span(1, 0), pages.borrow(1)), (Err(Kind::NoSpace), Err(Kind::NoSpace)));
        let told = || FREED_MAX - pages.freed.used();
        pages.give_span(all[0], 8);
        assert_eq!((pages.borrowed(), budget.used(), told()), (100, 16 * page, 0));
        assert_eq!(pages.take_span(1), Err(Kind::NoSpace), "the reserve had it");
        pages.give_span(all[1], 8);
        assert_eq!((pages.borrowed(), budget.used(), told()), (0, 8 * page + 100, 1));
        pages.give_span(borrowed, 8);
        pages.uncharge(100);
        pages.cool();
        assert_eq!((budget.used(), fixed.used()), (0, pages.tag_bytes() + 8 * page + 100));
        drop(pages);
        assert_eq!(fixed.used(), 0);
    }

    #[test]
    fn there_are_two_spans_to_borrow_where_not_even_tags_can_be_charged() {
        for count in 100..150 {
            let (regions, budget) = (Arc::new(VecRegions::new(64 << 20)), Budget::new(2 << 20));
            let pages = Pages::new(regions, budget.clone(), budget.clone());
            let pages = pages.with_reserve(2 * SPAN_BYTES as u64).unwrap();
            (0..count).for_each(|_| _ = pages.take_span(1).unwrap());
            pages.charge(budget.room()).unwrap();
            for _ in 0..3 {
                let borrowed = [(); 2].map(|()| pages.borrow_span(8, 0));
                borrowed.into_iter().for_each(|span| pages.give_span(span.expect("there is one"), 8));
            }
            assert_eq!(pages.borrowed(), 0);
        }
    }

    #[test]
    fn spans_that_come_and_go_in_several_sizes_keep_their_pages() {
        let pages = pages(1 << 20);
        let mut spans: Vec<_> = [3, 8, 5, 8, 3, 4].map(|size| (pages.take_span(size).unwrap(), size)).into();
        let used = pages.budget().used();
        for round in 0..10 {
            spans.iter().for_each(|&(span, size)| pages.give_span(span, size));
            spans.rotate_left(round % 5);
            for (span, size) in &mut spans {
                *span = pages.take_span(*size).unwrap();
                assert!(pages.budget().used() == used, "pages went back to the system and others came");
            }
        }
    }

    #[test]
    fn every_span_and_every_leaf_is_handed_out_once_however_they_come_and_go() {
        let (pages, mut random) = (pages(32 << 20), spillway_core::contract::Random(3));
        let (mut spans, mut leaves) = (Vec::new(), Vec::new());
        for step in 0..6000 {
            let least = if step < 3000 { 2 } else { 3 };
            match random.below(4) {
                0 => {
                    let (span, len) = (pages.take_span(8).unwrap(), 1 + random.below(8) as usize);
                    pages.release(span, len, 8 - len);
                    spans.push((span, len));
                }
                1 => leaves.push(pages.take_leaf().unwrap()),
                at if at >= least || spans.len() > 300 => {
                    while spans.len() > 150 {
                        let (span, len) = spans.swap_remove(random.below(spans.len() as u64) as usize);
                        pages.give_span(span, len);
                    }
                    while leaves.len() > 100 {
                        pages.give_leaf(leaves.swap_remove(random.below(leaves.len() as u64) as usize));
                    }
                }
                _ => {}
            }
            let mut known: Vec<u32> = spans.iter().map(|(span, _)| span.0 * 8 + 7).collect();
            known.extend(leaves.iter().map(|leaf| leaf.span.0 * 8 + u32::from(leaf.page)));
            let count = known.len();
            known.sort_unstable();
            known.dedup();
            // A span and a leaf of the same span would meet at page 7 at the latest once eight leaves are out.
            assert_eq!(known.len(), count, "step {step}");
            assert!(spans.iter().all(|(span, _)| leaves.iter().all(|leaf| leaf.span != *span)));
        }
        spans.into_iter().for_each(|(span, len)| pages.give_span(span, len));
        leaves.into_iter().for_each(|leaf| pages.give_leaf(leaf));
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
        let fixed = Budget::new(1 << 20);
        let pages = Pages::new(Arc::new(VecRegions::new(0)), Budget::new(1 << 20), fixed.clone());
        assert_eq!(pages.take_span(1), Err(Kind::OutOfMemory));
        assert!(pages.take_leaf().is_err());
        assert_eq!((pages.budget().used(), fixed.used()), (0, 0));
    }
}
