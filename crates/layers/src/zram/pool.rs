//! The object pool: compressed pages in cells of size classes.
//!
//! A *shelf* holds spans of one size class behind its own lock. A class has one shelf until threads collide on it, then up
//! to eight side by side, so that pages which all compress alike do not make all writers meet at one lock. Each cell in use records the slot that owns its object,
//! so that an object can be moved by asking the table: no table of handles stands between. A cell is allocated (nobody else
//! knows it: [`Fresh`]), filled without any lock, and then published in the owner's slot; from then on its bytes change
//! only under the owner's shard lock, and only to move. A cell that is allocated and not published is invisible to
//! compaction, which trusts the table alone.
//!
//! Objects left over in the last, partly filled span of each class can be moved to *packed* spans, where objects of all
//! lengths follow each other; only the compactor writes there.
//!
//! Memory is taken and returned with no lock of the pool held; what is known of spans is charged with them.
//!
//! Lock order: the owner's shard, then a shelf or the packed spans, then [`Pages`].

use std::mem::MaybeUninit;
use std::sync::{Arc, OnceLock};

use crossbeam_utils::CachePadded;
use spillway_core::stats::lane;
use spillway_core::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use spillway_core::{Budget, Charge, Kind};
use spillway_policy::compaction;
use spillway_policy::size_classes::{CELL_STEP, PAGE_BYTES, SPAN_PAGES_MAX, SizeClass, SizeClasses};

use super::pages::{Pages, SPAN_BYTES, Span};
use super::shelf::{Shelf, SpanState};
use super::spans::Spans;

/// Where an object lies and how long it is: 59 bits that fit a slot.
///
/// From the low end: 13 bits length (1 to 4096), 1 bit packed, 3 bits side, 12 bits place within the span, 30 bits span. The
/// place is the cell's number, or for packed objects the start in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell(pub(super) u64);

impl Cell {
    fn new(span: Span, place: usize, side: usize, len: usize) -> Self {
        assert!(place < 1 << 12 && side < SIDES && (1..=PAGE_BYTES).contains(&len) && span.0 < 1 << 30);
        Self(u64::from(span.0) << 29 | (place as u64) << 17 | (side as u64) << 14 | len as u64)
    }

    fn new_packed(span: Span, place: usize, len: usize) -> Self {
        Self(Self::new(span, place, 0, len).0 | 1 << 13)
    }

    fn side(self) -> usize {
        (self.0 >> 14 & 7) as usize
    }

    /// Bytes of the object.
    pub(super) fn len(self) -> usize {
        (self.0 & 0x1fff) as usize
    }

    fn packed(self) -> bool {
        self.0 >> 13 & 1 == 1
    }

    fn place(self) -> usize {
        (self.0 >> 17 & 0xfff) as usize
    }

    fn span(self) -> Span {
        Span((self.0 >> 29) as u32)
    }
}

/// A cell that nobody else knows yet: to be filled and published, or published and freed.
#[must_use]
pub(super) struct Fresh(Cell);

impl Fresh {
    /// The cell, to be stored in its owner's slot.
    pub(super) fn publish(self) -> Cell {
        self.0
    }
}

/// Room for the bytes of one object.
pub(super) struct Scratch(MaybeUninit<[u8; PAGE_BYTES]>);

impl Scratch {
    pub(super) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// Objects to be moved out of one span.
pub(super) struct Eviction {
    /// Number of the shelf; `None` for a packed span.
    shelf: Option<usize>,
    span: Span,
    /// Cells and their owners at the time of asking.
    pub(super) objects: Vec<(Cell, u32)>,
}

/// Shelves that one class may have side by side.
const SIDES: usize = 8;

/// Collisions on a class's shelves after which it gets twice as many.
const COLLISIONS_PER_WIDENING: usize = 64;

type LockedShelf = CachePadded<Mutex<Shelf>>;

/// A shelf and its bookkeeping; that of a class's first shelf is charged with the pool.
struct Side {
    shelf: LockedShelf,
    _charge: Option<Charge>,
}

/// The shelves of one size class: one, until threads are seen to collide on it.
struct Class {
    class: SizeClass,
    sides: [OnceLock<Box<Side>>; SIDES],
    open_sides: AtomicUsize,
    collisions: AtomicUsize,
    fixed: Arc<Budget>,
}

impl Class {
    fn new(class: SizeClass, fixed: Arc<Budget>) -> Self {
        let (open_sides, collisions) = (AtomicUsize::new(1), AtomicUsize::new(0));
        let class = Self { class, sides: Default::default(), open_sides, collisions, fixed };
        class.add_side(0, None);
        class
    }

    /// Bytes of a shelf without spans.
    fn side_bytes(class: &SizeClass) -> u64 {
        size_of::<Side>() as u64 + Shelf::fixed_bytes(class)
    }

    fn add_side(&self, side: usize, charge: Option<Charge>) {
        let shelf = CachePadded::new(Mutex::new(Shelf::new(self.class)));
        self.sides[side].get_or_init(|| Box::new(Side { shelf, _charge: charge }));
    }

    fn side(&self, side: usize) -> &LockedShelf {
        &self.sides[side].get().expect("a side is made before it is opened").shelf
    }

    /// The shelf of this thread.
    fn lock_own(&self) -> (usize, MutexGuard<'_, Shelf>) {
        let side = lane() % self.open_sides.load(Ordering::Acquire);
        let shelf = self.side(side);
        let free = shelf.try_lock();
        (side, free.unwrap_or_else(|| self.lock_after_collision(shelf)))
    }

    #[cold]
    fn lock_after_collision<'a>(&self, shelf: &'a LockedShelf) -> MutexGuard<'a, Shelf> {
        let collisions = self.collisions.fetch_add(1, Ordering::Relaxed) + 1;
        if collisions.is_multiple_of(COLLISIONS_PER_WIDENING) {
            self.widen();
        }
        shelf.lock()
    }

    /// Opens twice as many shelves, if there is memory for them.
    fn widen(&self) {
        let open = self.open_sides.load(Ordering::Relaxed);
        for side in open..(open * 2).min(SIDES) {
            if self.sides[side].get().is_none() {
                let Ok(charge) = self.fixed.hold(Self::side_bytes(&self.class)) else { return };
                self.add_side(side, Some(charge));
            }
        }
        self.open_sides.store((open * 2).min(SIDES), Ordering::Release);
    }

    /// A span, its bookkeeping charged. Holds no lock.
    fn take_span(&self, pages: &Pages) -> Result<SpanState, Kind> {
        let bookkeeping = Shelf::bytes_a_span(&self.class);
        pages.charge(bookkeeping)?;
        let span = pages.take_span(self.class.pages).inspect_err(|_| pages.uncharge(bookkeeping))?;
        Ok(SpanState::new(span, &self.class))
    }

    /// Gives a span back that has left its shelf. Holds no lock.
    fn give_span(&self, pages: &Pages, span: Span) {
        pages.uncharge(Shelf::bytes_a_span(&self.class));
        pages.give_span(span, self.class.pages);
    }
}

/// The pool of one device.
pub(super) struct Pool {
    sizes: SizeClasses,
    classes: Box<[Class]>,
    packed: Mutex<Packed>,
    _charge: Charge,
}

impl Pool {
    /// Bytes that moving objects takes at most before it has freed as many: a packed span is filled by what leaves spans of which
    /// an eighth is free, and of these only the last may still be there; a second span is taken when that is not yet empty.
    pub(super) const RESERVE_BYTES: u64 = 2 * (SPAN_BYTES as u64 + PackedSpan::bookkeeping(UNITS));

    /// A pool without objects. What it takes itself is charged to `fixed`.
    pub(super) fn new(fixed: &Arc<Budget>) -> Result<Self, Kind> {
        let sizes = SizeClasses::new();
        let shelves: u64 = sizes.classes().iter().map(Class::side_bytes).sum();
        let packed =
            Spans::<PackedSpan>::fixed_bytes(PACKED_BINS) + sizes.classes().len() * size_of::<Class>();
        let charge = fixed.hold(shelves + packed as u64)?;
        let classes = sizes.classes().iter().map(|class| Class::new(*class, fixed.clone())).collect();
        Ok(Self { sizes, classes, packed: Mutex::new(Packed::new()), _charge: charge })
    }

    fn class(&self, len: usize) -> &Class {
        &self.classes[self.sizes.of(len)]
    }

    /// A cell for `len` bytes (1 to 4096) that will belong to slot `owner`. Called with no lock held.
    pub(super) fn allocate(&self, pages: &Pages, len: usize, owner: u32) -> Result<Fresh, Kind> {
        let class = self.class(len);
        let (side, mut shelf) = class.lock_own();
        if let Some((span, cell)) = shelf.take(owner) {
            return Ok(Fresh(Cell::new(span, cell, side, len)));
        }
        drop(shelf);
        Self::allocate_in_new_span(class, pages, len, owner)
    }

    #[cold]
    fn allocate_in_new_span(class: &Class, pages: &Pages, len: usize, owner: u32) -> Result<Fresh, Kind> {
        let state = class.take_span(pages)?;
        let (side, mut shelf) = class.lock_own();
        // Where a cell has come free meanwhile the new span would stay behind, empty and charged, with nobody to free it.
        if let Some((span, cell)) = shelf.take(owner) {
            drop(shelf);
            class.give_span(pages, state.span());
            return Ok(Fresh(Cell::new(span, cell, side, len)));
        }
        shelf.add(pages, state);
        let (span, cell) = shelf.take(owner).expect("a span was added");
        Ok(Fresh(Cell::new(span, cell, side, len)))
    }

    /// Frees the cell of an object that its slot no longer names. Called with no lock held.
    pub(super) fn free(&self, pages: &Pages, cell: Cell) {
        if cell.packed() {
            let emptied = self.packed.lock().free(pages, cell);
            return emptied.into_iter().for_each(|packed| packed.give(pages));
        }
        let class = self.class(cell.len());
        let emptied = class.side(cell.side()).lock().give(pages, cell.span(), cell.place());
        if emptied {
            class.give_span(pages, cell.span());
        }
    }

    /// Fills a fresh cell.
    pub(super) fn fill(&self, pages: &Pages, fresh: &Fresh, bytes: &[u8]) {
        assert_eq!(bytes.len(), fresh.0.len());
        let target = self.address(pages, fresh.0);
        // SAFETY: the cell is `len` bytes of mapped memory that only the holder of `fresh` knows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// `cell` is published in its owner's slot, and the caller holds that slot's shard lock as long as it uses the bytes.
    pub(super) unsafe fn object<'a>(&self, pages: &'a Pages, cell: Cell) -> &'a [u8] {
        // SAFETY: a published cell is `len` initialised bytes of mapped memory, which change only under the lock that the
        // caller holds, and stays mapped as long as `pages` lives.
        unsafe { std::slice::from_raw_parts(self.address(pages, cell), cell.len()) }
    }

    /// Copies an object to `scratch`.
    ///
    /// # Safety
    /// `cell` is published in its owner's slot, and the caller holds that slot's shard lock.
    pub(super) unsafe fn copy_to<'a>(&self, pages: &Pages, cell: Cell, scratch: &'a mut Scratch) -> &'a [u8] {
        let target = scratch.0.as_mut_ptr().cast::<u8>();
        // SAFETY: a published cell is initialised and changes only under the lock that the caller holds; `len` is at most
        // a page, the size of `scratch`, whose first `len` bytes are initialised by the copy.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address(pages, cell), target, cell.len());
            std::slice::from_raw_parts(target, cell.len())
        }
    }

    /// Copies an object to `target`, which is as long as it.
    ///
    /// # Safety
    /// As for [`Pool::copy_to`].
    pub(super) unsafe fn copy_into(&self, pages: &Pages, cell: Cell, target: &mut [u8]) {
        assert_eq!(target.len(), cell.len());
        // SAFETY: as in `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(self.address(pages, cell), target.as_mut_ptr(), cell.len()) }
    }

    /// Copies an object to a fresh cell of the same length.
    ///
    /// # Safety
    /// As for [`Pool::copy_to`].
    pub(super) unsafe fn copy_cell(&self, pages: &Pages, from: Cell, to: &Fresh) {
        assert_eq!(from.len(), to.0.len());
        // SAFETY: as in `copy_to`; a fresh cell is known to its holder alone and overlaps no other.
        unsafe {
            std::ptr::copy_nonoverlapping(self.address(pages, from), self.address(pages, to.0), from.len());
        }
    }

    fn address(&self, pages: &Pages, cell: Cell) -> *mut u8 {
        let unit = if cell.packed() { CELL_STEP } else { self.class(cell.len()).class.cell_bytes };
        pages.address(cell.span(), cell.place() * unit).as_ptr()
    }

    /// Number of shelves that there may be.
    pub(super) fn shelves(&self) -> usize {
        self.classes.len() * SIDES
    }

    fn shelf(&self, number: usize) -> Option<&LockedShelf> {
        self.classes[number / SIDES].sides[number % SIDES].get().map(|side| &side.shelf)
    }

    /// Lets each class begin again with one shelf: the threads that collided have stopped.
    pub(super) fn narrow(&self) {
        self.classes.iter().for_each(|class| class.open_sides.store(1, Ordering::Relaxed));
    }

    /// Begins to empty the sparsest span of a shelf, if its others have room for what it holds. End it with
    /// [`Pool::end_eviction`].
    pub(super) fn begin_merge(&self, shelf: usize) -> Option<Eviction> {
        let found = self.shelf(shelf)?.lock().sparsest_to_merge()?;
        Some(Self::evict(shelf, found))
    }

    /// Begins to empty a partly filled span of a shelf that is worth packing.
    pub(super) fn begin_pack(&self, shelf: usize) -> Option<Eviction> {
        let found = self.shelf(shelf)?.lock().sparse_to_pack()?;
        Some(Self::evict(shelf, found))
    }

    fn evict(shelf: usize, (span, cells): (Span, Vec<(usize, u32)>)) -> Eviction {
        // Length is not known here: the table completes each cell from its owner's slot.
        let cell = |place| Cell::new(span, place, shelf % SIDES, 1);
        let objects = cells.into_iter().map(|(place, owner)| (cell(place), owner)).collect();
        Eviction { shelf: Some(shelf), span, objects }
    }

    /// Begins to empty a packed span of which much is dead.
    pub(super) fn begin_rewrite(&self) -> Option<Eviction> {
        let (span, objects) = self.packed.lock().worst()?;
        let objects =
            objects.into_iter().map(|(place, owner)| (Cell::new_packed(span, place, 1), owner)).collect();
        Some(Eviction { shelf: None, span, objects })
    }

    /// Ends an eviction and returns the pages that it freed: what could not be moved stays where it is.
    pub(super) fn end_eviction(&self, pages: &Pages, eviction: Eviction) -> usize {
        match eviction.shelf {
            Some(number) => {
                let shelf = self.shelf(number).expect("a span was found on it");
                shelf.lock().end_eviction(pages, eviction.span)
            }
            None if self.packed.lock().holds(pages, eviction.span) => 0,
            None => SPAN_PAGES_MAX,
        }
    }

    /// Packed spans in use.
    pub(super) fn packed_spans(&self) -> usize {
        self.packed.lock().spans.len()
    }

    /// Whether there is a span for what is packed next.
    #[cfg(test)]
    pub(super) fn has_spare(&self) -> bool {
        self.packed.lock().spare.is_some()
    }

    /// A new place for an object of `len` bytes that leaves the sparse span of `left`: on the same shelf, if it has room.
    pub(super) fn place_merged(&self, len: usize, owner: u32, left: Cell) -> Option<Fresh> {
        let (span, cell) = self.class(len).side(left.side()).lock().take(owner)?;
        Some(Fresh(Cell::new(span, cell, left.side(), len)))
    }

    /// Sees to it that the next object to be packed finds a span, if there is memory for one. Called with no lock held.
    pub(super) fn prepare_packing(&self, pages: &Pages) {
        if self.packed.lock().spare.is_some() {
            return;
        }
        let Ok(spare) = PackedSpan::take(pages) else { return };
        let second = self.packed.lock().spare.replace(spare);
        second.into_iter().for_each(|spare| spare.give(pages));
    }

    /// Gives back what [`Pool::prepare_packing`] took and nobody needed. Called with no lock held.
    pub(super) fn end_packing(&self, pages: &Pages) {
        let spare = self.packed.lock().spare.take();
        spare.into_iter().for_each(|spare| spare.give(pages));
    }

    /// A new place for an object of `len` bytes among packed ones. Takes no memory but what was prepared.
    pub(super) fn place_packed(&self, pages: &Pages, len: usize, owner: u32) -> Result<Fresh, Kind> {
        let (span, place) = self.packed.lock().append(pages, len, owner)?;
        Ok(Fresh(Cell::new_packed(span, place, len)))
    }

    /// Whether `published` is the object at `asked`, whose length was not known.
    pub(super) fn same_place(published: Cell, asked: Cell) -> bool {
        const PLACE: u64 = !0x1fff;
        published.0 & PLACE == asked.0 & PLACE
    }
}

/// Spans in which objects of all lengths follow each other, in bins by what is still in use of them.
struct Packed {
    spans: Spans<PackedSpan>,
    /// Number of the span that is being filled, in no bin, and its first free unit.
    open: Option<(u32, usize)>,
    /// The next one.
    spare: Option<PackedSpan>,
}

struct PackedSpan {
    span: Span,
    live_units: usize,
    /// Start in units and owner of each object ever put here.
    objects: Vec<(u16, u32)>,
}

const UNITS: usize = SPAN_BYTES / CELL_STEP;

/// Bins of 32 units.
const PACKED_BINS: usize = UNITS / 32 + 1;

/// Objects of a packed span for which there is room at first: as many as there are of half a KiB.
const OBJECTS_AT_FIRST: usize = 64;

fn units(len: usize) -> usize {
    len.div_ceil(CELL_STEP)
}

impl PackedSpan {
    /// A span for objects that leave others behind: from the reserve as long as that lasts, for what is taken from the budget's
    /// room a writer may want before these others come free.
    fn take(pages: &Pages) -> Result<Self, Kind> {
        let bookkeeping = Self::bookkeeping(OBJECTS_AT_FIRST);
        let charged = || {
            pages.charge(bookkeeping)?;
            pages.take_span(SPAN_PAGES_MAX).inspect_err(|_| pages.uncharge(bookkeeping))
        };
        let span = pages.borrow_span(SPAN_PAGES_MAX, bookkeeping).or_else(|_| charged())?;
        Ok(Self { span, live_units: 0, objects: Vec::with_capacity(OBJECTS_AT_FIRST) })
    }

    const fn bookkeeping(objects: usize) -> u64 {
        (Spans::<Self>::BYTES_EACH + objects * size_of::<(u16, u32)>() + 16) as u64
    }

    /// Notes an object, charging the growth of the list first.
    fn note(&mut self, pages: &Pages, at: usize, owner: u32) -> Result<(), Kind> {
        let room = self.objects.capacity();
        if self.objects.len() == room {
            let growth = Self::bookkeeping(room * 2) - Self::bookkeeping(room);
            pages.borrow(growth).or_else(|_| pages.budget().charge(growth))?;
            self.objects.reserve_exact(room);
            assert_eq!(self.objects.capacity(), room * 2, "a vector takes what it was asked to, exactly");
        }
        self.objects.push((at as u16, owner));
        Ok(())
    }

    /// Gives it back once it is empty. Holds no lock.
    fn give(self, pages: &Pages) {
        pages.uncharge(Self::bookkeeping(self.objects.capacity()));
        pages.give_span(self.span, SPAN_PAGES_MAX);
    }
}

impl Packed {
    fn new() -> Self {
        Self { spans: Spans::new(PACKED_BINS), open: None, spare: None }
    }

    fn holds(&self, pages: &Pages, span: Span) -> bool {
        self.spans.get(pages.tag(span)).is_some_and(|packed| packed.span == span)
    }

    fn append(&mut self, pages: &Pages, len: usize, owner: u32) -> Result<(Span, usize), Kind> {
        let wanted = units(len);
        let (index, at) = match self.open {
            Some((index, at)) if at + wanted <= UNITS => (index, at),
            _ => (self.open_span(pages)?, 0),
        };
        let packed = self.spans.at_mut(index);
        packed.note(pages, at, owner)?;
        packed.live_units += wanted;
        self.open = Some((index, at + wanted));
        Ok((packed.span, at))
    }

    fn open_span(&mut self, pages: &Pages) -> Result<u32, Kind> {
        let spare = self.spare.take().ok_or(Kind::NoSpace)?;
        if let Some((full, _)) = self.open.take() {
            self.rebin(full);
        }
        let span = spare.span;
        let index = self.spans.push(spare);
        pages.set_tag(span, index);
        self.open = Some((index, 0));
        Ok(index)
    }

    fn rebin(&mut self, index: u32) {
        let bin = self.spans.at(index).live_units * (PACKED_BINS - 1) / UNITS;
        self.spans.list(index, bin);
    }

    /// Frees an object; the span with its last one, which is the caller's then.
    fn free(&mut self, pages: &Pages, cell: Cell) -> Option<PackedSpan> {
        let index = pages.tag(cell.span());
        let packed = self.spans.at_mut(index);
        assert_eq!(packed.span, cell.span(), "a packed cell lies in a packed span");
        packed.live_units =
            packed.live_units.checked_sub(units(cell.len())).expect("no more is freed than was packed");
        let (emptied, open) = (packed.live_units == 0, self.open.map(|(open, _)| open));
        if emptied {
            return Some(self.remove(pages, index));
        }
        if open != Some(index) {
            self.rebin(index);
        }
        None
    }

    fn remove(&mut self, pages: &Pages, index: u32) -> PackedSpan {
        let last = self.spans.len() as u32 - 1;
        self.open = match self.open {
            Some((open, _)) if open == index => None,
            Some((open, at)) if open == last => Some((index, at)),
            open => open,
        };
        self.spans.remove(index, |moved| pages.set_tag(moved.span, index))
    }

    /// A closed span with the most dead units, if it is worth rewriting.
    fn worst(&self) -> Option<(Span, Vec<(usize, u32)>)> {
        let packed = self.spans.at(self.spans.sparsest()?);
        let worth = compaction::worth_rewriting(packed.live_units, UNITS - packed.live_units);
        worth.then(|| {
            let objects = packed.objects.iter().map(|&(at, owner)| (usize::from(at), owner)).collect();
            (packed.span, objects)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::contract::Random;
    use spillway_sim::memory::VecRegions;

    fn pages() -> Pages {
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(32 << 20), Budget::new(1 << 20))
    }

    fn pool() -> Pool {
        Pool::new(&Budget::new(1 << 20)).unwrap()
    }

    fn read(pool: &Pool, pages: &Pages, cell: Cell) -> Vec<u8> {
        let mut scratch = Scratch::new();
        // SAFETY: one thread, and the cell was published to the test.
        unsafe { pool.copy_to(pages, cell, &mut scratch) }.to_vec()
    }

    #[test]
    fn objects_keep_their_bytes_among_each_other_and_all_memory_returns() {
        let (pool, pages, mut random) = (pool(), pages(), Random(5));
        let mut kept: Vec<(Cell, Vec<u8>)> = Vec::new();
        for step in 0..20_000u32 {
            if kept.len() > 500 || (random.below(3) == 0 && !kept.is_empty()) {
                let (cell, bytes) = kept.swap_remove(random.below(kept.len() as u64) as usize);
                assert_eq!(read(&pool, &pages, cell), bytes);
                pool.free(&pages, cell);
                continue;
            }
            let mut bytes = vec![0; 1 + random.below(4096) as usize];
            random.fill(&mut bytes);
            let fresh = if step % 5 == 0 {
                pool.prepare_packing(&pages);
                pool.place_packed(&pages, bytes.len(), step).unwrap()
            } else {
                pool.allocate(&pages, bytes.len(), step).unwrap()
            };
            pool.fill(&pages, &fresh, &bytes);
            kept.push((fresh.publish(), bytes));
        }
        for (cell, bytes) in kept {
            assert_eq!(read(&pool, &pages, cell), bytes);
            pool.free(&pages, cell);
        }
        pool.end_packing(&pages);
        pages.cool();
        assert_eq!(pages.budget().used(), 0);
    }

    #[test]
    fn a_span_being_emptied_takes_nothing_new() {
        let (pool, pages) = (pool(), pages());
        let class = pool.sizes.of(1000);
        let (cells, shelf) = (pool.classes[class].class.cells, class * SIDES);
        let all: Vec<Cell> = (0..2 * cells as u32)
            .map(|owner| pool.allocate(&pages, 1000, owner).unwrap().publish())
            .collect();
        // Leave two in the first span and half in the second.
        all[2..cells].iter().chain(&all[cells + cells / 2..]).for_each(|&cell| pool.free(&pages, cell));
        let eviction = pool.begin_merge(shelf).unwrap();
        assert_eq!(eviction.objects.iter().map(|(_, owner)| *owner).collect::<Vec<_>>(), [0, 1]);
        for &cell in &all[..2] {
            let moved = pool.place_merged(1000, 9, cell).unwrap().publish();
            assert_ne!(moved.span(), cell.span());
            pool.free(&pages, cell);
        }
        pool.end_eviction(&pages, eviction);
        assert!(pool.begin_merge(shelf).is_none(), "one span is left");
    }

    /// Looks at spans that it takes to empty one of `count` spans of one class, each half full.
    fn looks_a_merge(count: usize) -> u64 {
        let (pool, pages) = (pool(), pages());
        let class = pool.sizes.of(1000);
        let (cells, shelf) = (pool.classes[class].class.cells, class * SIDES);
        let all: Vec<Cell> = (0..(count * cells) as u32)
            .map(|owner| pool.allocate(&pages, 1000, owner).unwrap().publish())
            .collect();
        all.iter().skip(1).step_by(2).for_each(|&cell| pool.free(&pages, cell));
        crate::zram::work::meter::take_looks();
        let eviction = pool.begin_merge(shelf).unwrap();
        for (asked, owner) in &eviction.objects {
            let left = Cell::new(asked.span(), asked.place(), 0, 1000);
            let _ = pool.place_merged(1000, *owner, left).unwrap().publish();
            pool.free(&pages, left);
        }
        pool.end_eviction(&pages, eviction);
        crate::zram::work::meter::take_looks()
    }

    #[test]
    fn emptying_a_span_costs_the_same_however_many_there_are() {
        let (few, many) = (looks_a_merge(10), looks_a_merge(500));
        assert!(many <= few + few / 4, "{few} looks among 10 spans, {many} among 500");
    }

    #[test]
    fn an_empty_pool_takes_little_and_none_where_that_is_refused() {
        let budget = Budget::new(1 << 20);
        let pool = Pool::new(&budget).unwrap();
        assert!((32 << 10..384 << 10).contains(&budget.used()), "{} bytes", budget.used());
        budget.set_limit(budget.used() + 100);
        assert_eq!(Pool::new(&budget).err(), Some(Kind::NoSpace));
        let class = &pool.classes[0];
        class.widen();
        assert_eq!(class.open_sides.load(Ordering::Relaxed), 1, "no memory, no second shelf");
        budget.set_limit(1 << 20);
        class.widen();
        assert_eq!(class.open_sides.load(Ordering::Relaxed), 2);
        drop(pool);
        assert_eq!(budget.used(), 0);
    }
}
