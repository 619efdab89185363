//! Spans in which objects of all lengths follow each other: where the compactor puts what is left in sparse spans.
//!
//! A plain single-threaded structure behind the pool's lock. Memory is taken and returned by the caller, outside the lock.

use spillway_core::{Kind, mutant};
use spillway_policy::compaction;
use spillway_policy::size_classes::{CELL_STEP, PAGE_BYTES, SPAN_PAGES_MAX};

use super::arena::Objects;
use super::cell::{Cell, Position, SlotIndex};
use super::pages::{Pages, SPAN_BYTES, Span};
use super::spans::Spans;

/// Units of a span.
const UNITS: usize = SPAN_BYTES / CELL_STEP;

/// Bins of 32 units.
const BINS: usize = UNITS / 32 + 1;

/// Objects of a packed span for which there is room at first: as many as there are of half a KiB.
const OBJECTS_AT_FIRST: usize = 64;

/// Units that an object takes.
fn units(len: usize) -> usize {
    len.div_ceil(CELL_STEP)
}

/// A span and what was packed into it.
pub(crate) struct PackedSpan {
    span: Span,
    live_units: usize,
    /// Start in units and owner of each object ever put here.
    objects: Objects,
}

impl PackedSpan {
    /// A span for objects that leave others behind: from the reserve as long as that lasts, for what is taken from the budget's
    /// room a writer may want before these others come free.
    pub(crate) fn take(pages: &Pages) -> Result<Self, Kind> {
        let bookkeeping = Self::bookkeeping(OBJECTS_AT_FIRST);
        let charged = || {
            pages.charge(bookkeeping)?;
            pages.take_span(SPAN_PAGES_MAX).inspect_err(|_| pages.uncharge(bookkeeping))
        };
        let span = pages.borrow_span(SPAN_PAGES_MAX, bookkeeping).or_else(|_| charged())?;
        Ok(Self { span, live_units: 0, objects: Vec::with_capacity(OBJECTS_AT_FIRST) })
    }

    const fn bookkeeping(objects: usize) -> u64 {
        (Spans::<Self>::BYTES_EACH + objects * size_of::<(Position, SlotIndex)>() + 16) as u64
    }

    /// Bytes that it is charged with.
    fn charged(&self) -> u64 {
        Self::bookkeeping(self.objects.capacity()) + (SPAN_PAGES_MAX * PAGE_BYTES) as u64
    }

    /// Notes an object, charging the growth of the list first.
    fn note(&mut self, pages: &Pages, at: Position, owner: SlotIndex) -> Result<(), Kind> {
        let room = self.objects.capacity();
        if self.objects.len() == room {
            let growth = Self::bookkeeping(room * 2) - Self::bookkeeping(room);
            pages.borrow(growth).or_else(|_| pages.budget().charge(growth))?;
            self.objects.reserve_exact(room);
            assert_eq!(self.objects.capacity(), room * 2, "a vector takes what it was asked to, exactly");
        }
        self.objects.push((at, owner));
        Ok(())
    }

    /// Gives it back once it is empty. Holds no lock.
    pub(crate) fn give(self, pages: &Pages) {
        assert_eq!(self.live_units, 0, "{:?} is empty", self.span);
        pages.uncharge(Self::bookkeeping(self.objects.capacity()));
        pages.give_span(self.span, SPAN_PAGES_MAX);
    }
}

/// Packed spans in bins by what is still in use of them.
pub(crate) struct Packed {
    spans: Spans<PackedSpan>,
    /// Number of the span that is being filled, in no bin, and its first free unit.
    open: Option<(u32, usize)>,
    /// The next one.
    pub(crate) spare: Option<PackedSpan>,
}

impl Packed {
    /// Bytes that no span takes.
    pub(crate) const RESERVE_BYTES: u64 = 2 * (SPAN_BYTES as u64 + PackedSpan::bookkeeping(UNITS));

    pub(crate) fn new() -> Self {
        Self { spans: Spans::new(BINS), open: None, spare: None }
    }

    /// Bytes of lists without spans.
    pub(crate) fn fixed_bytes() -> usize {
        Spans::<PackedSpan>::fixed_bytes(BINS)
    }

    /// Number of spans.
    pub(crate) fn len(&self) -> usize {
        self.spans.len()
    }

    pub(crate) fn holds(&self, pages: &Pages, span: Span) -> bool {
        self.spans.get(pages.tag(span)).is_some_and(|packed| packed.span == span)
    }

    /// A place for an object of `len` bytes. [`Kind::NoSpace`] where a span is needed and none is spare.
    pub(crate) fn append(&mut self, pages: &Pages, len: usize, owner: SlotIndex) -> Result<Cell, Kind> {
        let wanted = units(len);
        let (index, at) = match self.open {
            Some((index, at)) if at + wanted <= UNITS => (index, at),
            _ => (self.open_span(pages)?, 0),
        };
        let packed = self.spans.at_mut(index);
        packed.note(pages, Position::new(at), owner)?;
        packed.live_units += wanted;
        assert!(packed.live_units <= UNITS, "{} units live in {:?}", packed.live_units, packed.span);
        self.open = Some((index, at + wanted));
        Ok(Cell::new_packed(packed.span, Position::new(at), len))
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

    fn bin(live_units: usize) -> usize {
        live_units * (BINS - 1) / UNITS
    }

    fn rebin(&mut self, index: u32) {
        let bin = Self::bin(self.spans.at(index).live_units);
        self.spans.list(index, bin);
    }

    /// Frees an object; the span with its last one, which is the caller's then.
    pub(crate) fn free(&mut self, pages: &Pages, cell: Cell) -> Option<PackedSpan> {
        let index = pages.tag(cell.span());
        let packed = self.spans.at_mut(index);
        assert_eq!(packed.span, cell.span(), "a packed cell lies in a packed span");
        packed.live_units =
            packed.live_units.checked_sub(units(cell.len())).expect("no more is freed than was packed");
        let (emptied, open) = (packed.live_units == 0, self.open.map(|(open, _)| open));
        if emptied {
            return Some(self.remove(pages, index));
        }
        if open != Some(index) && !mutant::on("zram: leave a packed span in its bin") {
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

    /// A closed span with the most dead units and what was packed into it, if it is worth rewriting.
    pub(crate) fn worst(&self) -> Option<(Span, Objects)> {
        let packed = self.spans.at(self.spans.sparsest()?);
        let worth = compaction::worth_rewriting(packed.live_units, UNITS - packed.live_units);
        worth.then(|| (packed.span, packed.objects.clone()))
    }

    /// Shows every span with its live units and what was packed into it to `see`, and asserts that bins and tags agree.
    /// Returns the bytes that spans are charged with.
    pub(crate) fn verify(&self, pages: &Pages, mut see: impl FnMut(Span, usize, &Objects)) -> u64 {
        let mut charged = self.spare.as_ref().map_or(0, PackedSpan::charged);
        for (index, packed, bin) in self.spans.verified() {
            assert_eq!(pages.tag(packed.span), index, "{:?}", packed.span);
            let open = self.open.is_some_and(|(open, _)| open == index);
            assert_eq!(bin, (!open).then(|| Self::bin(packed.live_units)), "the bin of {:?}", packed.span);
            charged += packed.charged();
            see(packed.span, packed.live_units, &packed.objects);
        }
        charged
    }
}
