//! Memory of the pool: where it comes from and goes back to.
//!
//! Memory is mapped in large *chunks* that cost nothing until touched, and handed out as *spans*, runs of 1 to 8 pages at a
//! fixed distance of 32 KiB. Every page handed out is charged to the budget first, and so are those of the slot table. A span given
//! back is kept warm for the next taker up to a small bound, still charged; the rest goes back to the system at once. Warm spans
//! serve any taker: where the budget is full they are cooled before anything is refused.
//!
//! Moving objects together takes a span before it frees one, at the limit too. So the compactor has a *reserve*, charged when the
//! device begins: it borrows from that, and what then comes free pays it back first. Two spans are set aside with it, because
//! another chunk would have to be charged.
//!
//! Each span has a *tag*, a word: the number of a span in use in its list, or the next free span after a free one. So neither a map
//! nor a list grows with the device. Tags are charged with their chunk.
//!
//! A warm span that one thread cuts or cools is *in transit*: its memory is in no list, and not yet given back. A thread that finds
//! no room meanwhile waits for it before it is refused.
//!
//! Lock order: transit, then the state, which is a leaf and not held while memory goes back to the system.
//! [`Pages::charge`], [`Pages::take_span`], [`Pages::give_span`] and [`Pages::cool`], which may return memory, are called with no
//! lock of the pool held.

use std::ptr::NonNull;
use std::sync::{Arc, OnceLock};

use spillway_core::sync::{AtomicU32, AtomicU64, Mutex, Ordering, RwLock};
use spillway_core::{Budget, Charge, Kind, Region, Regions, mutant};
use spillway_policy::size_classes::{PAGE_BYTES, SPAN_PAGES_MAX};

/// Distance between the starts of two spans in bytes.
pub(crate) const SPAN_BYTES: usize = PAGE_BYTES * SPAN_PAGES_MAX;

/// Chunks a device may map; with the largest chunk size this is 16 TiB of address space.
const CHUNKS_MAX: usize = 4096;
const CHUNK_BYTES_MIN: u64 = 4 << 20;
const CHUNK_BYTES_MAX: u64 = 4 << 30;

/// Bytes of warm spans kept for the next taker.
const WARM_BYTES_MAX: usize = 1 << 20;

/// Number of a span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Span(pub(crate) u32);

struct Chunk {
    region: Box<dyn Region>,
    tags: Box<[AtomicU32]>,
    _charge: Charge,
}

/// Whether a device may keep so many warm pages from the others of its server.
fn may_be_warm(pages: usize) -> bool {
    pages * PAGE_BYTES <= WARM_BYTES_MAX
}

/// In a tag: no other span follows.
const NO_SPAN: u32 = u32::MAX;

struct State {
    /// Spans from this one on were never handed out.
    fresh: u32,
    /// First of the spans that hold no memory, linked by their tags.
    clean: u32,
    /// Spans that hold memory, by their pages less one.
    warm: [Vec<Span>; SPAN_PAGES_MAX],
    warm_pages: usize,
    /// Spans without memory that go with the reserve: where the budget is full, there may be none for the tags of a chunk.
    aside: Vec<Span>,
}

/// Spans set aside for the reserve.
const ASIDE: usize = 2;

/// The source of spans of one device.
pub(crate) struct Pages {
    regions: Arc<dyn Regions>,
    budget: Arc<Budget>,
    fixed: Arc<Budget>,
    chunk_shift: u32,
    chunks: Box<[OnceLock<Chunk>]>,
    state: Mutex<State>,
    /// Held for reading while a warm span is in transit.
    transit: RwLock<()>,
    reserve: Option<Charge>,
    /// Bytes of the reserve that are in use: memory which is not charged to the budget.
    borrowed: AtomicU64,
}

impl Pages {
    /// Pages charged to `budget`; tags, which go back with the device alone, to `fixed`.
    pub(crate) fn new(regions: Arc<dyn Regions>, budget: Arc<Budget>, fixed: Arc<Budget>) -> Self {
        let wished = (budget.room() / 256).clamp(CHUNK_BYTES_MIN, CHUNK_BYTES_MAX).next_power_of_two();
        let chunk_shift = wished.trailing_zeros() - SPAN_BYTES.trailing_zeros();
        let chunks = (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect();
        let (warm, aside) = (Default::default(), Vec::with_capacity(ASIDE));
        let state = State { fresh: 0, clean: NO_SPAN, warm, warm_pages: 0, aside };
        Self {
            regions,
            budget,
            fixed,
            chunk_shift,
            chunks,
            state: Mutex::new(state),
            transit: RwLock::new(()),
            reserve: None,
            borrowed: AtomicU64::new(0),
        }
    }

    /// Charges a reserve of `bytes` to the budget of what a device takes however little it holds.
    pub(crate) fn with_reserve(self, bytes: u64) -> Result<Self, Kind> {
        let reserve = Some(self.fixed.hold(bytes)?);
        Ok(Self { reserve, ..self })
    }

    /// The budget that pages are charged to.
    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Charges `bytes`; warm spans are given back for it where need be. Called with no lock held.
    pub(crate) fn charge(&self, bytes: u64) -> Result<(), Kind> {
        let mut waited = false;
        loop {
            match self.budget.charge(bytes) {
                Err(_) if self.makes_room(&mut waited) => {}
                charged => return charged,
            }
        }
    }

    /// Gives a warm span back to the system, or waits once for those in transit; false where neither is left to do. Called with
    /// no lock held.
    pub(crate) fn makes_room(&self, waited: &mut bool) -> bool {
        if self.cool_one() {
            return true;
        }
        let first = !std::mem::replace(waited, true);
        if first {
            drop(self.transit.write());
        }
        first
    }

    /// Takes `bytes` of the reserve, which the caller is about to free. [`Kind::NoSpace`] where less is left.
    pub(crate) fn borrow(&self, bytes: u64) -> Result<(), Kind> {
        let whole = self.reserve.as_ref().map_or(0, Charge::bytes);
        let fits = |borrowed: u64| borrowed.checked_add(bytes).filter(|&sum| sum <= whole);
        let borrowed = self.borrowed.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        borrowed.map(drop).map_err(|_| Kind::NoSpace)
    }

    /// A clean span with `pages` pages, borrowed with `beside` bytes from the reserve.
    pub(crate) fn borrow_span(&self, pages: usize, beside: u64) -> Result<Span, Kind> {
        let bytes = (pages * PAGE_BYTES) as u64 + beside;
        self.borrow(bytes)?;
        let mut state = self.state.lock();
        let span = self.next_span(&mut state).or_else(|kind| state.aside.pop().ok_or(kind));
        drop(state);
        span.inspect_err(|_| self.uncharge(bytes))
    }

    /// Bytes in use of the reserve.
    pub(crate) fn borrowed(&self) -> u64 {
        self.borrowed.load(Ordering::Acquire)
    }

    /// Gives back what was charged or borrowed: to the reserve first.
    pub(crate) fn uncharge(&self, bytes: u64) {
        let mut paid = 0;
        if self.borrowed() > 0 && !mutant::on("zram: pay the reserve nothing back") {
            let pay = |borrowed: u64| Some(borrowed.saturating_sub(bytes));
            let before = self.borrowed.fetch_update(Ordering::AcqRel, Ordering::Acquire, pay);
            paid = before.expect("there is always a next number").min(bytes);
        }
        self.budget.uncharge(bytes - paid);
    }

    /// A span with `pages` pages, zeroed or warm. [`Kind::NoSpace`] at the budget, [`Kind::OutOfMemory`] where the system
    /// refuses.
    pub(crate) fn take_span(&self, pages: usize) -> Result<Span, Kind> {
        if let Some(span) = self.take_warm_as(pages) {
            return Ok(span);
        }
        let bytes = (pages * PAGE_BYTES) as u64;
        self.charge(bytes)?;
        self.take_clean().inspect_err(|_| self.uncharge(bytes))
    }

    /// A warm span and its pages: of `pages` if there is one, for what is cut off or added is a page fault later; else
    /// a longer one, else a shorter one.
    fn take_warm(&self, pages: usize) -> Option<(Span, usize)> {
        assert!((1..=SPAN_PAGES_MAX).contains(&pages), "a span of {pages} pages is wanted");
        let mut state = self.state.lock();
        let mut sizes = (pages..=SPAN_PAGES_MAX).chain((1..pages).rev());
        let found = sizes.find(|&size| !state.warm[size - 1].is_empty())?;
        assert!(state.warm_pages >= found, "{} warm pages, {found} of one span", state.warm_pages);
        state.warm_pages -= found;
        state.warm[found - 1].pop().map(|span| (span, found))
    }

    /// A warm span, made one of `pages`. One that is too short goes back to the system where there is no room for the rest of it:
    /// a thread that waits for spans in transit has none in transit itself.
    fn take_warm_as(&self, pages: usize) -> Option<Span> {
        let _transit = self.transit.read();
        let (span, had) = self.take_warm(pages)?;
        if pages <= had {
            self.release(span, pages, had - pages);
        } else if self.budget.charge(((pages - had) * PAGE_BYTES) as u64).is_err() {
            self.clean(span, had);
            return None;
        }
        Some(span)
    }

    /// A span without memory. Those aside come first.
    fn take_clean(&self) -> Result<Span, Kind> {
        let mut state = self.state.lock();
        while self.lacks_aside(&state) {
            let span = self.next_span(&mut state)?;
            state.aside.push(span);
        }
        self.next_span(&mut state)
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
        let charge = self.fixed.hold(size_of::<AtomicU32>() as u64 * self.chunk_spans() as u64)?;
        let region = self.regions.map(SPAN_BYTES << self.chunk_shift)?;
        let tags = (0..self.chunk_spans()).map(|_| AtomicU32::new(0)).collect();
        Ok(Chunk { region, tags, _charge: charge })
    }

    /// Takes back a span of `pages` pages. No reference into it is left.
    pub(crate) fn give_span(&self, span: Span, pages: usize) {
        self.put_back(span, pages);
        self.wake_one();
    }

    fn put_back(&self, span: Span, pages: usize) {
        assert!((1..=SPAN_PAGES_MAX).contains(&pages), "{span:?} of {pages} pages is given back");
        {
            let mut state = self.state.lock();
            // Where others wait for memory, it goes back for them.
            let wanted = self.borrowed() == 0 && !self.fixed.is_waited_for();
            let wanted = wanted && may_be_warm(state.warm_pages + pages);
            if wanted {
                state.warm_pages += pages;
                state.warm[pages - 1].push(span);
                return;
            }
        }
        self.clean(span, pages);
    }

    /// Gives back what a page of slots was charged with, and wakes a task that waits for memory.
    pub(crate) fn uncharge_page(&self) {
        self.uncharge(PAGE_BYTES as u64);
        self.wake_one();
    }

    /// Gives the memory of a span back to the system.
    fn clean(&self, span: Span, pages: usize) {
        self.release(span, 0, pages);
        let mut state = self.state.lock();
        self.set_tag(span, state.clean);
        state.clean = span.0;
    }

    /// Gives a warm span back to the system; false where there is none.
    pub(crate) fn cool_one(&self) -> bool {
        let _transit = self.transit.read();
        let warm = self.take_warm(SPAN_PAGES_MAX);
        warm.is_some_and(|(span, pages)| {
            self.clean(span, pages);
            true
        })
    }

    /// Gives all warm spans back to the system.
    pub(crate) fn cool(&self) {
        while self.cool_one() {}
    }

    /// Lets a request try that waits for memory, or the next one that will; unless the reserve had what came free.
    fn wake_one(&self) {
        if self.borrowed() == 0 {
            self.budget.wake_one();
        }
    }

    /// The word that goes with a span and belongs to its holder.
    fn word(&self, span: Span) -> &AtomicU32 {
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        &chunk.tags[span.0 as usize & (self.chunk_spans() - 1)]
    }

    /// What [`Pages::set_tag`] set last, under the lock of the span's holder.
    pub(crate) fn tag(&self, span: Span) -> u32 {
        self.word(span).load(Ordering::Relaxed)
    }

    /// Sets the tag of a span that was handed out to the caller.
    pub(crate) fn set_tag(&self, span: Span, tag: u32) {
        self.word(span).store(tag, Ordering::Relaxed);
    }

    /// Spans of a chunk.
    fn chunk_spans(&self) -> usize {
        1 << self.chunk_shift
    }

    /// Bytes of warm spans, after asserting that lists and counts of free spans agree and that no span is free twice.
    pub(crate) fn warm_bytes(&self) -> u64 {
        let state = self.state.lock();
        let warm = || {
            state.warm.iter().zip(1..).flat_map(|(spans, pages)| spans.iter().map(move |span| (span, pages)))
        };
        let pages: usize = warm().map(|(_, pages)| pages).sum();
        assert_eq!(pages, state.warm_pages, "pages of warm spans");
        assert!(may_be_warm(pages), "{pages} warm pages");
        let mut free: Vec<Span> = warm().map(|(span, _)| *span).chain(state.aside.iter().copied()).collect();
        free.extend(self.clean_spans(&state));
        let count = free.len();
        free.sort_unstable();
        free.dedup();
        assert_eq!(free.len(), count, "a span is free twice");
        assert!(free.last().is_none_or(|span| span.0 < state.fresh), "a free span was handed out before");
        (pages * PAGE_BYTES) as u64
    }

    /// Free spans without memory.
    fn clean_spans(&self, state: &State) -> Vec<Span> {
        let some = |span: u32| (span != NO_SPAN).then_some(Span(span));
        let all = std::iter::successors(some(state.clean), |&span| some(self.tag(span)));
        all.take(state.fresh as usize + 1).collect()
    }

    /// The byte at `offset` of a span that has been handed out.
    pub(crate) fn address(&self, span: Span, offset: usize) -> NonNull<u8> {
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        let start = (span.0 as usize & (self.chunk_spans() - 1)) * SPAN_BYTES;
        assert!(offset < SPAN_BYTES, "byte {offset} of {span:?}");
        assert!(start + offset < chunk.region.len(), "{span:?} lies in its chunk");
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
        assert!(first + count <= SPAN_PAGES_MAX, "pages {first}+{count} of {span:?}");
        let chunk = self.chunks[self.chunk_of(span)].get().expect("a span lies in a mapped chunk");
        let start = (span.0 as usize & (self.chunk_spans() - 1)) * SPAN_BYTES;
        chunk.region.release(start + first * PAGE_BYTES, count * PAGE_BYTES);
        self.uncharge((count * PAGE_BYTES) as u64);
    }
}

#[cfg(test)]
mod tests;
