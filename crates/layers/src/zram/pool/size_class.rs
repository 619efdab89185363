//! A size class of the pool and its arenas: one, until threads are seen to collide on it, then up to eight.
//!
//! Takes and gives back spans with no lock held.

use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use spillway_core::{Budget, Charge, Kind};
use spillway_policy::size_classes::SizeClass;

use super::arena::{Arena, SpanState};
use super::cell::{ArenaIndex, Cell, NewCell, SlotIndex};
use super::pages::{Pages, Span};

/// Collisions on a class's arenas after which it gets twice as many.
const COLLISIONS_PER_WIDENING: usize = 64;

/// An arena behind its lock; a class's first is charged with the pool.
struct Charged {
    arena: CachePadded<Mutex<Arena>>,
    _charge: Option<Charge>,
}

/// The arenas of one size class.
pub(crate) struct Class {
    pub(crate) shape: SizeClass,
    arenas: [OnceLock<Box<Charged>>; ArenaIndex::COUNT],
    open: AtomicUsize,
    collisions: AtomicUsize,
    fixed: Arc<Budget>,
}

impl Class {
    /// A class with one arena. What further ones take is charged to `fixed`.
    pub(crate) fn new(shape: SizeClass, fixed: Arc<Budget>) -> Self {
        let (open, collisions) = (AtomicUsize::new(1), AtomicUsize::new(0));
        let class = Self { shape, arenas: Default::default(), open, collisions, fixed };
        class.add_arena(0, None);
        class
    }

    /// Bytes of an arena without spans.
    pub(crate) fn arena_bytes(shape: &SizeClass) -> u64 {
        size_of::<Charged>() as u64 + Arena::fixed_bytes(shape)
    }

    fn add_arena(&self, arena: usize, charge: Option<Charge>) {
        let new = CachePadded::new(Mutex::new(Arena::new(self.shape)));
        self.arenas[arena].get_or_init(|| Box::new(Charged { arena: new, _charge: charge }));
    }

    /// The arena of that number, if there is one.
    pub(crate) fn arena(&self, arena: ArenaIndex) -> Option<&Mutex<Arena>> {
        self.arenas[arena.get()].get().map(|charged| &*charged.arena)
    }

    /// Locks the arena that an object was taken from.
    pub(crate) fn lock(&self, arena: ArenaIndex) -> MutexGuard<'_, Arena> {
        self.arena(arena).expect("an object was taken from it").lock()
    }

    /// The arena of this thread.
    fn lock_own(&self) -> (ArenaIndex, MutexGuard<'_, Arena>) {
        let index = ArenaIndex::new(lane() % self.open.load(Ordering::Acquire));
        let arena = self.arena(index).expect("an arena is made before it is opened");
        let free = arena.try_lock();
        (index, free.unwrap_or_else(|| self.lock_after_collision(arena)))
    }

    #[cold]
    fn lock_after_collision<'a>(&self, arena: &'a Mutex<Arena>) -> MutexGuard<'a, Arena> {
        let collisions = self.collisions.fetch_add(1, Ordering::Relaxed) + 1;
        if collisions.is_multiple_of(COLLISIONS_PER_WIDENING) {
            self.widen();
        }
        arena.lock()
    }

    /// Opens twice as many arenas, if there is memory for them.
    pub(crate) fn widen(&self) {
        let open = self.open.load(Ordering::Relaxed);
        let wanted = (open * 2).min(ArenaIndex::COUNT);
        assert!((1..=wanted).contains(&open), "{open} arenas are open");
        for arena in open..wanted {
            if self.arenas[arena].get().is_none() {
                let Ok(charge) = self.fixed.hold(Self::arena_bytes(&self.shape)) else { return };
                self.add_arena(arena, Some(charge));
            }
        }
        self.open.store(wanted, Ordering::Release);
    }

    /// Begins again with one arena.
    pub(crate) fn narrow(&self) {
        self.open.store(1, Ordering::Relaxed);
    }

    /// Arenas that serve.
    #[cfg(test)]
    pub(crate) fn open(&self) -> usize {
        self.open.load(Ordering::Relaxed)
    }

    /// A cell for `len` bytes of slot `owner`. Called with no lock held.
    pub(crate) fn allocate(&self, pages: &Pages, len: usize, owner: SlotIndex) -> Result<NewCell, Kind> {
        let (index, mut arena) = self.lock_own();
        if let Some((span, position)) = arena.take(owner) {
            return Ok(NewCell::new(Cell::new(span, position, index, len)));
        }
        drop(arena);
        self.allocate_in_new_span(pages, len, owner)
    }

    #[cold]
    fn allocate_in_new_span(&self, pages: &Pages, len: usize, owner: SlotIndex) -> Result<NewCell, Kind> {
        let state = self.take_span(pages)?;
        let (index, mut arena) = self.lock_own();
        // Where a cell has come free meanwhile, the new span would stay behind, empty and charged.
        if let Some((span, position)) = arena.take(owner) {
            drop(arena);
            self.give_span(pages, state.span());
            return Ok(NewCell::new(Cell::new(span, position, index, len)));
        }
        arena.add(pages, state);
        let (span, position) = arena.take(owner).expect("a span was added");
        Ok(NewCell::new(Cell::new(span, position, index, len)))
    }

    /// Frees a cell, and with its last one the span. Called with no lock held.
    pub(crate) fn free(&self, pages: &Pages, cell: Cell) {
        assert!(cell.len() <= self.shape.cell_bytes, "{cell:?} fits its class");
        let emptied = self.lock(cell.arena()).give(pages, cell.span(), cell.position());
        if emptied {
            self.give_span(pages, cell.span());
        }
    }

    /// A span, its bookkeeping charged. Holds no lock.
    fn take_span(&self, pages: &Pages) -> Result<SpanState, Kind> {
        let bookkeeping = Arena::bytes_a_span(&self.shape);
        pages.charge(bookkeeping)?;
        let span = pages.take_span(self.shape.pages).inspect_err(|_| pages.uncharge(bookkeeping))?;
        Ok(SpanState::new(span, &self.shape))
    }

    /// Gives a span back that has left its arena. Holds no lock.
    fn give_span(&self, pages: &Pages, span: Span) {
        pages.uncharge(Arena::bytes_a_span(&self.shape));
        pages.give_span(span, self.shape.pages);
    }

    /// Shows every live object's address and owner to `see`, and asserts that counts, bins and tags agree. Returns the bytes
    /// that its spans are charged with.
    pub(crate) fn verify(&self, pages: &Pages, mut see: impl FnMut(Cell, SlotIndex)) -> u64 {
        let mut charged = 0;
        for index in (0..ArenaIndex::COUNT).map(ArenaIndex::new) {
            let Some(arena) = self.arena(index) else { continue };
            let arena = arena.lock();
            arena.verify(pages, |span, position, owner| see(Cell::new(span, position, index, 1), owner));
            let bytes_each = Arena::bytes_a_span(&self.shape) + pages_bytes(self.shape.pages);
            charged += arena.spans() as u64 * bytes_each;
        }
        charged
    }
}

/// Bytes of so many pages.
fn pages_bytes(pages: usize) -> u64 {
    (pages * spillway_policy::size_classes::PAGE_BYTES) as u64
}
