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
//! Lock order: the owner's shard, then a shelf or the packed spans, then [`Pages`].

use std::mem::MaybeUninit;
use std::sync::OnceLock;

use crossbeam_utils::CachePadded;
use hashbrown::HashMap;
use spillway_core::Kind;
use spillway_core::stats::lane;
use spillway_core::sync::{AtomicUsize, Mutex, MutexGuard, Ordering};
use spillway_policy::compaction;
use spillway_policy::size_classes::{CELL_STEP, PAGE_BYTES, SPAN_PAGES_MAX, SizeClass, SizeClasses};

use super::pages::{Pages, SPAN_BYTES, Span};
use super::shelf::Shelf;

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

/// The shelves of one size class: one, until threads are seen to collide on it.
struct Class {
    class: SizeClass,
    sides: [OnceLock<Box<LockedShelf>>; SIDES],
    open_sides: AtomicUsize,
    collisions: AtomicUsize,
}

impl Class {
    fn new(class: SizeClass) -> Self {
        let (open_sides, collisions) = (AtomicUsize::new(1), AtomicUsize::new(0));
        Self { class, sides: Default::default(), open_sides, collisions }
    }

    fn side(&self, side: usize) -> &LockedShelf {
        self.sides[side].get_or_init(|| Box::new(CachePadded::new(Mutex::new(Shelf::new(self.class)))))
    }

    /// The shelf of this thread.
    fn lock_own(&self) -> (usize, MutexGuard<'_, Shelf>) {
        let side = lane() % self.open_sides.load(Ordering::Relaxed);
        let shelf = self.side(side);
        let free = shelf.try_lock();
        (side, free.unwrap_or_else(|| self.lock_after_collision(shelf)))
    }

    #[cold]
    fn lock_after_collision<'a>(&self, shelf: &'a LockedShelf) -> MutexGuard<'a, Shelf> {
        let collisions = self.collisions.fetch_add(1, Ordering::Relaxed) + 1;
        let open = self.open_sides.load(Ordering::Relaxed);
        if collisions.is_multiple_of(COLLISIONS_PER_WIDENING) && open < SIDES {
            self.open_sides.store(open * 2, Ordering::Relaxed);
        }
        shelf.lock()
    }
}

/// The pool of one device.
pub(super) struct Pool {
    sizes: SizeClasses,
    classes: Box<[Class]>,
    packed: Mutex<Packed>,
}

impl Pool {
    pub(super) fn new() -> Self {
        let sizes = SizeClasses::new();
        let classes = sizes.classes().iter().map(|class| Class::new(*class)).collect();
        Self { sizes, classes, packed: Mutex::default() }
    }

    fn class(&self, len: usize) -> &Class {
        &self.classes[self.sizes.of(len)]
    }

    /// A cell for `len` bytes (1 to 4096) that will belong to slot `owner`.
    pub(super) fn allocate(&self, pages: &Pages, len: usize, owner: u32) -> Result<Fresh, Kind> {
        let (side, mut shelf) = self.class(len).lock_own();
        let (span, cell) = shelf.take(pages, owner)?;
        Ok(Fresh(Cell::new(span, cell, side, len)))
    }

    /// Frees the cell of an object that its slot no longer names.
    pub(super) fn free(&self, pages: &Pages, cell: Cell) {
        if cell.packed() {
            return self.packed.lock().free(pages, cell);
        }
        self.class(cell.len()).side(cell.side()).lock().give(pages, cell.span(), cell.place());
    }

    /// Fills a fresh cell.
    pub(super) fn fill(&self, pages: &Pages, fresh: &Fresh, bytes: &[u8]) {
        assert_eq!(bytes.len(), fresh.0.len());
        let target = self.address(pages, fresh.0);
        // SAFETY: the cell is `len` bytes of mapped memory that only the holder of `fresh` knows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
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
        self.classes[number / SIDES].sides[number % SIDES].get().map(|shelf| &**shelf)
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
    pub(super) fn end_eviction(&self, eviction: Eviction) -> usize {
        match eviction.shelf {
            Some(number) => {
                let shelf = self.shelf(number).expect("a span was found on it");
                shelf.lock().end_eviction(eviction.span)
            }
            None if self.packed.lock().spans.contains_key(&eviction.span.0) => 0,
            None => SPAN_PAGES_MAX,
        }
    }

    /// Packed spans in use.
    pub(super) fn packed_spans(&self) -> usize {
        self.packed.lock().spans.len()
    }

    /// A new place for an object of `len` bytes that leaves the sparse span of `left`: on the same shelf, if it has room.
    pub(super) fn place_merged(&self, len: usize, owner: u32, left: Cell) -> Option<Fresh> {
        let (span, cell) = self.class(len).side(left.side()).lock().take_in_use(owner)?;
        Some(Fresh(Cell::new(span, cell, left.side(), len)))
    }

    /// A new place for an object of `len` bytes among packed ones.
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

/// Spans in which objects of all lengths follow each other.
#[derive(Default)]
struct Packed {
    spans: HashMap<u32, PackedSpan>,
    /// The span that is being filled, and its first free unit.
    open: Option<(Span, usize)>,
}

#[derive(Default)]
struct PackedSpan {
    live_units: usize,
    /// Start in units and owner of each object ever put here.
    objects: Vec<(u16, u32)>,
    charged: u64,
}

const UNITS: usize = SPAN_BYTES / CELL_STEP;

fn units(len: usize) -> usize {
    len.div_ceil(CELL_STEP)
}

impl Packed {
    fn append(&mut self, pages: &Pages, len: usize, owner: u32) -> Result<(Span, usize), Kind> {
        let wanted = units(len);
        let (span, at) = match self.open {
            Some((span, at)) if at + wanted <= UNITS => (span, at),
            _ => (self.open_span(pages)?, 0),
        };
        let packed = self.spans.get_mut(&span.0).expect("the open span is listed");
        let before = packed.objects.capacity();
        packed.objects.push((at as u16, owner));
        packed.live_units += wanted;
        let grown = ((packed.objects.capacity() - before) * size_of::<(u16, u32)>()) as u64;
        // Bookkeeping of an object that is moved to save memory: where even this is refused it goes uncharged.
        if pages.budget().charge(grown).is_ok() {
            packed.charged += grown;
        }
        self.open = Some((span, at + wanted));
        Ok((span, at))
    }

    fn open_span(&mut self, pages: &Pages) -> Result<Span, Kind> {
        let span = pages.take_span(SPAN_PAGES_MAX)?;
        self.seal(pages);
        self.spans.insert(span.0, PackedSpan::default());
        self.open = Some((span, 0));
        Ok(span)
    }

    /// Closes the open span; if its objects are all gone already it goes back.
    fn seal(&mut self, pages: &Pages) {
        let Some((span, _)) = self.open.take() else { return };
        if self.spans[&span.0].live_units == 0 {
            self.remove(pages, span);
        }
    }

    fn free(&mut self, pages: &Pages, cell: Cell) {
        let packed = self.spans.get_mut(&cell.span().0).expect("a packed cell lies in a packed span");
        packed.live_units =
            packed.live_units.checked_sub(units(cell.len())).expect("no more is freed than was packed");
        if packed.live_units == 0 {
            self.open = self.open.filter(|(open, _)| *open != cell.span());
            self.remove(pages, cell.span());
        }
    }

    fn remove(&mut self, pages: &Pages, span: Span) {
        let packed = self.spans.remove(&span.0).expect("the span is listed");
        pages.budget().uncharge(packed.charged);
        pages.give_span(span, SPAN_PAGES_MAX);
    }

    /// The closed span with the most dead units, if it is worth rewriting.
    fn worst(&self) -> Option<(Span, Vec<(usize, u32)>)> {
        let open = self.open.map(|(span, _)| span.0);
        let closed = self.spans.iter().filter(|(span, _)| Some(**span) != open);
        let (span, packed) = closed.min_by_key(|(_, packed)| packed.live_units)?;
        let worth = compaction::worth_rewriting(packed.live_units, UNITS - packed.live_units);
        worth.then(|| {
            (Span(*span), packed.objects.iter().map(|&(at, owner)| (usize::from(at), owner)).collect())
        })
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
        Pages::new(Arc::new(VecRegions::new(64 << 20)), Budget::new(32 << 20))
    }

    fn read(pool: &Pool, pages: &Pages, cell: Cell) -> Vec<u8> {
        let mut scratch = Scratch::new();
        // SAFETY: one thread, and the cell was published to the test.
        unsafe { pool.copy_to(pages, cell, &mut scratch) }.to_vec()
    }

    #[test]
    fn objects_keep_their_bytes_among_each_other_and_all_memory_returns() {
        let (pool, pages, mut random) = (Pool::new(), pages(), Random(5));
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
        pages.cool();
        assert_eq!(pages.budget().used(), 0);
    }

    #[test]
    fn a_span_being_emptied_takes_nothing_new() {
        let (pool, pages) = (Pool::new(), pages());
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
        pool.end_eviction(eviction);
        assert!(pool.begin_merge(shelf).is_none(), "one span is left");
    }
}
