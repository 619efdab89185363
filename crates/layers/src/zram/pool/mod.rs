//! The object pool: compressed pages in cells of size classes.
//!
//! An *arena* holds spans of one size class behind its own lock. A class has one arena until threads collide on it, then up
//! to eight, so that pages which all compress alike do not make all writers meet at one lock. Each cell in use records the slot that
//! owns its object, so that an object can be moved by asking the table: no table of handles stands between. A cell is allocated
//! (known to no other thread: [`NewCell`]), filled without any lock, and then published in the owner's slot; from then on its bytes
//! do not change, but for a deferred page's, under the lock of its slot. It is freed once no slot names it and no thread has picked it. A cell that is allocated and not published is
//! invisible to compaction, which trusts the table alone.
//!
//! Objects left over in the last, partly filled span of each class can be moved to *packed* spans, where objects of all
//! lengths follow each other; only the compactor writes there.
//!
//! Memory is taken and returned with no lock of the pool held; records of spans are charged with them.
//!
//! Lock order: an arena or the packed spans, then [`Pages`]. No slot is locked meanwhile.

pub(super) mod arena;
pub(super) mod cell;
pub(super) mod packed;
pub(super) mod pages;
pub(super) mod size_class;
pub(super) mod spans;

use std::sync::Arc;

use hashbrown::HashMap;
use spillway_core::sync::Mutex;
use spillway_core::{Budget, Charge, Kind};
use spillway_policy::size_classes::{CELL_STEP, SPAN_PAGES_MAX, SizeClasses};

use arena::{Arena, Objects};
use cell::{ArenaIndex, Cell, NewCell, Scratch, SlotIndex};
use packed::{Packed, PackedSpan};
use pages::{Pages, Span};
use size_class::Class;

/// An arena of the pool: a size class, and the number of an arena there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArenaId {
    class: u8,
    index: ArenaIndex,
}

impl ArenaId {
    /// The first arena of the first class.
    pub(super) const FIRST: Self = Self { class: 0, index: ArenaIndex(0) };

    fn new(class: usize, index: ArenaIndex) -> Self {
        Self { class: u8::try_from(class).expect("there are fewer than 256 classes"), index }
    }
}

/// Objects to be moved out of one span.
pub(super) struct Eviction {
    /// `None` for a packed span.
    arena: Option<ArenaId>,
    span: Span,
    /// Cells, of unknown length, and their owners at the time of asking.
    pub(super) objects: Vec<(Cell, SlotIndex)>,
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
    pub(super) const RESERVE_BYTES: u64 = Packed::RESERVE_BYTES;

    /// A pool without objects. What it takes itself is charged to `fixed`; [`Kind::NoSpace`] where that has no room.
    pub(super) fn new(fixed: &Arc<Budget>) -> Result<Self, Kind> {
        let sizes = SizeClasses::new();
        let arenas: u64 = sizes.classes().iter().map(Class::arena_bytes).sum();
        let packed = Packed::fixed_bytes() + sizes.classes().len() * size_of::<Class>();
        let charge = fixed.hold(arenas + packed as u64)?;
        let classes = sizes.classes().iter().map(|class| Class::new(*class, fixed.clone())).collect();
        Ok(Self { sizes, classes, packed: Mutex::new(Packed::new()), _charge: charge })
    }

    /// Whether objects of `len` bytes take less than those of `other`: their class is smaller.
    pub(super) fn is_smaller(&self, len: usize, other: usize) -> bool {
        self.sizes.of(len) < self.sizes.of(other)
    }

    fn class(&self, len: usize) -> &Class {
        &self.classes[self.sizes.of(len)]
    }

    /// A cell for `len` bytes (1 to 4096) that will belong to slot `owner`. Called with no lock held. [`Kind::NoSpace`] where the
    /// budget has no room, [`Kind::OutOfMemory`] where the system refuses.
    pub(super) fn allocate(&self, pages: &Pages, len: usize, owner: SlotIndex) -> Result<NewCell, Kind> {
        self.class(len).allocate(pages, len, owner)
    }

    /// Frees the cell of an object that its slot no longer names. Called with no lock held.
    pub(super) fn free(&self, pages: &Pages, cell: Cell) {
        if cell.packed() {
            let emptied = self.packed.lock().free(pages, cell);
            return emptied.into_iter().for_each(|packed| packed.give(pages));
        }
        self.class(cell.len()).free(pages, cell);
    }

    /// Fills a fresh cell, which is to be published then, or freed.
    pub(super) fn fill(&self, pages: &Pages, fresh: NewCell, bytes: &[u8]) -> Cell {
        assert_eq!(bytes.len(), fresh.cell().len(), "the object and its cell");
        let target = self.address(pages, fresh.cell());
        // SAFETY: the cell is `len` bytes of mapped memory that only the holder of `fresh` knows.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) }
        fresh.publish()
    }

    /// The bytes of an object.
    ///
    /// # Safety
    /// `cell` is published in its owner's slot, and the caller holds that slot's lock as long as it uses the bytes.
    pub(super) unsafe fn object<'a>(&self, pages: &'a Pages, cell: Cell) -> &'a [u8] {
        // SAFETY: a published cell is `len` initialised bytes of mapped memory, which stay as they are while a slot names it, and
        // it stays mapped as long as `pages` lives.
        unsafe { std::slice::from_raw_parts(self.address(pages, cell), cell.len()) }
    }

    /// Copies an object to `scratch`.
    ///
    /// # Safety
    /// `cell` is published in its owner's slot, and the caller holds that slot's lock.
    pub(super) unsafe fn copy_to<'a>(&self, pages: &Pages, cell: Cell, scratch: &'a mut Scratch) -> &'a [u8] {
        let target = scratch.as_mut_ptr();
        // SAFETY: a published cell is initialised and stays as it is under the lock that the caller holds; `len` is at most
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
        assert_eq!(target.len(), cell.len(), "the target and the object");
        // SAFETY: as in `copy_to`.
        unsafe { std::ptr::copy_nonoverlapping(self.address(pages, cell), target.as_mut_ptr(), cell.len()) }
    }

    /// Writes `page` over an object of the same length.
    ///
    /// # Safety
    /// `cell` is published in its owner's slot, the caller holds that slot's lock, and no other thread reads the cell's bytes without it.
    pub(super) unsafe fn overwrite(&self, pages: &Pages, cell: Cell, page: &[u8]) {
        assert_eq!(page.len(), cell.len(), "the page and the object");
        // SAFETY: the cell is `len` bytes of mapped memory, which stays mapped while a slot names it, and the caller sees to it that
        // nobody else uses them.
        unsafe { std::ptr::copy_nonoverlapping(page.as_ptr(), self.address(pages, cell), page.len()) }
    }

    fn address(&self, pages: &Pages, cell: Cell) -> *mut u8 {
        let unit = if cell.packed() { CELL_STEP } else { self.class(cell.len()).shape.cell_bytes };
        pages.address(cell.span(), cell.position().get() * unit).as_ptr()
    }

    /// The arena after `arena`, whether it exists or not; `None` after the last that there may be.
    pub(super) fn arena_after(&self, arena: ArenaId) -> Option<ArenaId> {
        let number = usize::from(arena.class) * ArenaIndex::COUNT + arena.index.get() + 1;
        let (class, index) = (number / ArenaIndex::COUNT, ArenaIndex::new(number % ArenaIndex::COUNT));
        (class < self.classes.len()).then(|| ArenaId::new(class, index))
    }

    fn arena(&self, arena: ArenaId) -> Option<&Mutex<Arena>> {
        self.classes[usize::from(arena.class)].arena(arena.index)
    }

    /// Lets each class begin again with one arena: the threads that collided have stopped.
    pub(super) fn narrow(&self) {
        self.classes.iter().for_each(Class::narrow);
    }

    /// Begins to empty the sparsest span of an arena, if its others have room for what it holds. End it with
    /// [`Pool::end_eviction`].
    pub(super) fn begin_merge(&self, arena: ArenaId) -> Option<Eviction> {
        let found = self.arena(arena)?.lock().sparsest_to_merge()?;
        Some(Self::evict(arena, found))
    }

    /// Begins to empty a partly filled span of an arena that is worth packing.
    pub(super) fn begin_pack(&self, arena: ArenaId) -> Option<Eviction> {
        let found = self.arena(arena)?.lock().sparse_to_pack()?;
        Some(Self::evict(arena, found))
    }

    fn evict(arena: ArenaId, (span, objects): (Span, Objects)) -> Eviction {
        // Length is not known here: the table completes each cell from its owner's slot.
        let cell = |position| Cell::new(span, position, arena.index, 1);
        let objects = objects.into_iter().map(|(position, owner)| (cell(position), owner)).collect();
        Eviction { arena: Some(arena), span, objects }
    }

    /// Begins to empty a packed span of which much is dead.
    pub(super) fn begin_rewrite(&self) -> Option<Eviction> {
        let (span, objects) = self.packed.lock().worst()?;
        let cell = |position| Cell::new_packed(span, position, 1);
        let objects = objects.into_iter().map(|(position, owner)| (cell(position), owner)).collect();
        Some(Eviction { arena: None, span, objects })
    }

    /// Ends an eviction and returns the pages that it freed: what could not be moved stays where it is.
    pub(super) fn end_eviction(&self, pages: &Pages, eviction: Eviction) -> usize {
        match eviction.arena {
            Some(arena) => {
                let arena = self.arena(arena).expect("a span was found in it");
                arena.lock().end_eviction(pages, eviction.span)
            }
            None if self.packed.lock().holds(pages, eviction.span) => 0,
            None => SPAN_PAGES_MAX,
        }
    }

    /// Packed spans in use.
    pub(super) fn packed_spans(&self) -> usize {
        self.packed.lock().len()
    }

    /// Whether there is a span for what is packed next.
    #[cfg(test)]
    pub(super) fn has_spare(&self) -> bool {
        self.packed.lock().spare.is_some()
    }

    /// A new place for an object of `len` bytes that leaves the sparse span of `left`: in the same arena, if it has room.
    pub(super) fn place_merged(&self, len: usize, owner: SlotIndex, left: Cell) -> Option<NewCell> {
        let (span, position) = self.class(len).lock(left.arena()).take(owner)?;
        Some(NewCell::new(Cell::new(span, position, left.arena(), len)))
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

    /// Gives back what [`Pool::prepare_packing`] took and no object needed. Called with no lock held.
    pub(super) fn end_packing(&self, pages: &Pages) {
        let spare = self.packed.lock().spare.take();
        spare.into_iter().for_each(|spare| spare.give(pages));
    }

    /// A new place for an object of `len` bytes among packed ones. Takes no memory but what was prepared; [`Kind::NoSpace`] where
    /// that is none.
    pub(super) fn place_packed(&self, pages: &Pages, len: usize, owner: SlotIndex) -> Result<NewCell, Kind> {
        self.packed.lock().append(pages, len, owner).map(NewCell::new)
    }

    /// Asserts that every live cell is named by the slot that owns it and by no other, that the slots name nothing else, and that
    /// counts, bins and tags agree. `named` is what all slots name. Returns the bytes that its spans are charged with.
    pub(super) fn verify(&self, pages: &Pages, named: impl Iterator<Item = (SlotIndex, Cell)>) -> u64 {
        let (mut owners, mut packed) = (HashMap::new(), HashMap::new());
        let mut charged = 0;
        for class in &self.classes {
            charged += class.verify(pages, |cell, owner| {
                assert!(
                    owners.insert((cell.span(), cell.position()), owner).is_none(),
                    "{cell:?} is live twice"
                );
            });
        }
        charged += self.packed.lock().verify(pages, |span, units, objects| {
            assert!(packed.insert(span, (units, objects.clone())).is_none(), "{span:?} is packed twice");
        });
        for (slot, cell) in named {
            if !cell.packed() {
                let owner = owners.remove(&(cell.span(), cell.position()));
                assert_eq!(owner, Some(slot), "the owner of {cell:?}, which {slot:?} names");
                continue;
            }
            let (units, objects) = packed.get_mut(&cell.span()).expect("a packed cell lies in a packed span");
            let known = objects.iter().position(|object| *object == (cell.position(), slot));
            objects.swap_remove(known.expect("a slot names what was packed for it, once"));
            *units = units.checked_sub(cell.len().div_ceil(CELL_STEP)).expect("live units of a packed span");
        }
        let unnamed = owners.iter().next();
        assert!(unnamed.is_none(), "{} cells in use that no slot names, such as {unnamed:?}", owners.len());
        assert!(packed.values().all(|(units, _)| *units == 0), "packed units that no slot names");
        charged
    }
}

#[cfg(test)]
mod tests;
