//! Names of objects: which slot, which span, where in it.

use std::mem::MaybeUninit;

use spillway_policy::size_classes::PAGE_BYTES;

use super::pages::Span;

/// Bits of a cell's length, and of its length and the flag above.
const LEN_BITS: u32 = 13;
const LEN: u64 = (1 << LEN_BITS) - 1;
const PACKED: u64 = 1 << LEN_BITS;

/// Number of a slot: its offset in the device in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SlotIndex(pub(crate) u32);

impl SlotIndex {
    /// The slot of that number. A device has at most 2^32.
    pub(crate) fn new(number: u64) -> Self {
        Self(u32::try_from(number).expect("a device has at most 2^32 slots"))
    }
}

/// Where in its span an object lies: the number of its cell, or in a packed span its start in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Position(pub(crate) u16);

impl Position {
    /// Positions in a span.
    pub(crate) const COUNT: usize = 1 << 12;

    pub(crate) fn new(position: usize) -> Self {
        assert!(position < Self::COUNT, "position {position} in a span");
        Self(position as u16)
    }

    pub(crate) fn get(self) -> usize {
        usize::from(self.0)
    }
}

/// Number of an arena within its size class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ArenaIndex(pub(crate) u8);

impl ArenaIndex {
    /// Arenas that one class may have.
    pub(crate) const COUNT: usize = 8;

    pub(crate) fn new(arena: usize) -> Self {
        assert!(arena < Self::COUNT, "arena {arena} of a size class");
        Self(arena as u8)
    }

    pub(crate) fn get(self) -> usize {
        usize::from(self.0)
    }
}

/// Where an object lies and how long it is.
///
/// From the low end: 13 bits length (1 to 4096), 1 bit packed, 3 bits arena, 12 bits position within the span, 30 bits span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cell(u64);

impl Cell {
    pub(crate) fn new(span: Span, position: Position, arena: ArenaIndex, len: usize) -> Self {
        assert!((1..=PAGE_BYTES).contains(&len), "an object of {len} bytes");
        assert!(span.0 < 1 << 30, "{span:?} does not fit a slot");
        Self(u64::from(span.0) << 29 | u64::from(position.0) << 17 | u64::from(arena.0) << 14 | len as u64)
    }

    pub(crate) fn new_packed(span: Span, position: Position, len: usize) -> Self {
        Self(Self::new(span, position, ArenaIndex(0), len).0 | PACKED)
    }

    /// The cell of an object of `len` bytes at an address.
    pub(crate) fn at_address(address: u64, len: usize) -> Self {
        Self(address | len as u64)
    }

    /// What is the same for objects of any length that lie there.
    pub(crate) fn address(self) -> u64 {
        self.0 & !LEN
    }

    /// Bytes of the object.
    pub(crate) fn len(self) -> usize {
        (self.0 & LEN) as usize
    }

    pub(crate) fn packed(self) -> bool {
        self.0 & PACKED != 0
    }

    pub(crate) fn arena(self) -> ArenaIndex {
        ArenaIndex((self.0 >> 14 & 7) as u8)
    }

    pub(crate) fn position(self) -> Position {
        Position((self.0 >> 17 & 0xfff) as u16)
    }

    pub(crate) fn span(self) -> Span {
        Span((self.0 >> 29) as u32)
    }

    /// Whether both lie at the same address; an arena knows its objects without their length.
    pub(crate) fn is_at(self, other: Cell) -> bool {
        self.address() == other.address()
    }
}

/// A cell that no other thread knows yet: to be filled and published, or published and freed.
#[must_use]
pub(crate) struct NewCell(Cell);

impl NewCell {
    pub(crate) fn new(cell: Cell) -> Self {
        Self(cell)
    }

    pub(crate) fn cell(&self) -> Cell {
        self.0
    }

    /// The cell, to be stored in its owner's slot.
    pub(crate) fn publish(self) -> Cell {
        self.0
    }
}

/// Room for the bytes of one object.
pub(crate) struct Scratch(MaybeUninit<[u8; PAGE_BYTES]>);

impl Scratch {
    pub(crate) const fn new() -> Self {
        Self(MaybeUninit::uninit())
    }

    /// Its first byte of [`PAGE_BYTES`].
    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_holds_its_parts_up_to_their_bounds() {
        for (span, position, arena, len) in
            [(0, 0, 0, 1), ((1 << 30) - 1, 4095, 7, PAGE_BYTES), (5, 9, 3, 77)]
        {
            let (span, position, arena) = (Span(span), Position::new(position), ArenaIndex::new(arena));
            let cell = Cell::new(span, position, arena, len);
            assert_eq!(
                (cell.span(), cell.position(), cell.arena(), cell.len()),
                (span, position, arena, len)
            );
            let packed = Cell::new_packed(span, position, len);
            assert_eq!((packed.span(), packed.position(), packed.len()), (span, position, len));
            assert!(packed.packed() && !cell.packed() && !packed.is_at(cell));
            assert!(cell.is_at(Cell::new(span, position, arena, 1)));
            assert_eq!(Cell::at_address(cell.address(), len), cell);
        }
    }
}
