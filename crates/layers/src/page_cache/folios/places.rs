//! Where a byte of the device lies: its block, unit, region and shard; and in which folio.

use std::ops::Range;

use spillway_core::ByteRange;
use spillway_policy::buddy::fitting;
use spillway_policy::dirty_regions::RegionNumber;

/// A unit of the device: as much as the smallest folio has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnitNumber(pub(crate) u64);

/// Orders that a folio can have: from 4 KiB to 2 MiB.
pub(crate) const ORDERS: usize = 10;

/// How the device is cut. All sizes are powers of two.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) block_shift: u32,
    /// Of the smallest folio.
    pub(crate) unit_shift: u32,
    /// The largest folio has 2^order units, and no more than a region.
    pub(crate) order_max: u8,
    pub(crate) region_shift: u32,
    pub(crate) shards: u64,
}

/// The part of the device that a folio has: 2^order units, at a multiple of its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FolioSpan {
    pub(crate) unit: UnitNumber,
    pub(crate) order: u8,
}

impl FolioSpan {
    /// The first unit behind it.
    #[inline]
    pub(crate) fn end(self) -> UnitNumber {
        UnitNumber(self.unit.0 + self.units())
    }

    /// Units.
    #[inline]
    pub(crate) fn units(self) -> u64 {
        1 << self.order
    }

    /// It as a number.
    pub(crate) fn name(self) -> u64 {
        self.unit.0 << 4 | u64::from(self.order)
    }
}

/// The part of a range that lies in one folio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) folio: FolioSpan,
    /// Blocks of the folio.
    pub(crate) blocks: Range<u32>,
    /// Bytes of the folio.
    pub(crate) bytes: Range<usize>,
    /// Where it begins in the range.
    pub(crate) start: usize,
}

impl Places {
    pub(crate) fn unit_bytes(&self) -> u64 {
        1 << self.unit_shift
    }

    pub(crate) fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    /// Blocks of the smallest folio.
    pub(crate) fn unit_blocks(&self) -> u32 {
        1 << (self.unit_shift - self.block_shift)
    }

    /// Blocks of a folio of `order`.
    pub(crate) fn blocks(&self, order: u8) -> u32 {
        self.unit_blocks() << order
    }

    /// The unit that a byte lies in.
    #[inline]
    pub(crate) fn unit_at(&self, offset: u64) -> UnitNumber {
        UnitNumber(offset >> self.unit_shift)
    }

    /// Where a unit begins on the device.
    #[inline]
    pub(crate) fn start(&self, unit: UnitNumber) -> u64 {
        unit.0 << self.unit_shift
    }

    pub(crate) fn region_of(&self, unit: UnitNumber) -> RegionNumber {
        RegionNumber(unit.0 >> (self.region_shift - self.unit_shift))
    }

    /// The region that a byte lies in.
    #[inline]
    pub(crate) fn region_at(&self, offset: u64) -> RegionNumber {
        RegionNumber(offset >> self.region_shift)
    }

    /// Each shard has a part of the memory: regions at equal distances, as file systems use some, are spread over all of them as those that follow
    /// each other are (Fibonacci hashing: the upper bits tell).
    #[inline]
    pub(crate) fn shard_of(&self, region: RegionNumber) -> usize {
        let hash = region.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        ((hash * self.shards) >> 32) as usize
    }

    /// The regions that `range` touches.
    pub(crate) fn regions(&self, range: ByteRange) -> Range<RegionNumber> {
        let end = (range.offset + range.len).div_ceil(1 << self.region_shift);
        RegionNumber(range.offset >> self.region_shift)..RegionNumber(end)
    }

    /// The bytes of a region.
    pub(crate) fn region_range(&self, region: RegionNumber) -> ByteRange {
        ByteRange::new(region.0 << self.region_shift, 1 << self.region_shift)
    }

    /// The part of `range` that lies in `region`, which it touches.
    pub(crate) fn part_of_region(&self, range: ByteRange, region: RegionNumber) -> ByteRange {
        let whole = self.region_range(region);
        let start = range.offset.max(whole.offset);
        let end = (range.offset + range.len).min(whole.offset + whole.len);
        assert!(start < end, "{range:?} touches {region:?}");
        ByteRange::new(start, end - start)
    }

    /// The order of the largest folio that begins with the unit of `at` and is filled by what comes up to `end`; 0 where none is.
    pub(crate) fn order(&self, at: u64, end: u64) -> u8 {
        let (unit, whole) = (at.div_ceil(self.unit_bytes()), end >> self.unit_shift);
        if !at.is_multiple_of(self.unit_bytes()) || whole <= unit {
            return 0;
        }
        fitting(unit, whole - unit, self.order_max.into()) as u8
    }

    /// The part of whole blocks of `range` from `start` on that lies in `folio`, as it does at its begin.
    #[inline]
    pub(crate) fn piece(&self, range: ByteRange, start: u64, folio: FolioSpan) -> Piece {
        let at = range.offset + start;
        let (base, behind) = (self.start(folio.unit), self.start(folio.end()));
        // Without values: what a message shows is stored with each hit.
        assert!(start < range.len && (base..behind).contains(&at), "a piece of a range lies in its folio");
        let end = behind.min(range.offset + range.len);
        let block = |at: u64| ((at - base) >> self.block_shift) as u32;
        let bytes = (at - base) as usize..(end - base) as usize;
        Piece { folio, blocks: block(at)..block(end), bytes, start: start as usize }
    }

    /// The part of `range` that lies in `folio`, which it touches.
    pub(crate) fn part(&self, range: ByteRange, folio: FolioSpan) -> Piece {
        self.piece(range, self.start(folio.unit).saturating_sub(range.offset), folio)
    }

    /// Where blocks of a folio lie on the device.
    pub(crate) fn range(&self, folio: FolioSpan, blocks: &Range<u32>) -> ByteRange {
        let offset = self.start(folio.unit) + (u64::from(blocks.start) << self.block_shift);
        ByteRange::new(offset, (blocks.len() as u64) << self.block_shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places =
        Places { block_shift: 12, unit_shift: 14, order_max: 2, region_shift: 16, shards: 2 };

    #[test]
    fn a_piece_is_what_a_folio_has_of_a_range() {
        let range = ByteRange::new(3 << 12, 13 << 12);
        let [first, second] =
            [(0, 0), (2, 1)].map(|(unit, order)| FolioSpan { unit: UnitNumber(unit), order });
        let piece = PLACES.piece(range, 0, first);
        assert_eq!((piece.blocks.clone(), piece.bytes.clone(), piece.start), (3..4, 3 << 12..4 << 12, 0));
        assert_eq!(PLACES.part(range, first), piece);
        let piece = PLACES.part(range, second);
        assert_eq!((piece.blocks.clone(), piece.bytes.clone(), piece.start), (0..8, 0..8 << 12, 5 << 12));
        assert_eq!(PLACES.piece(range, 5 << 12, second), piece);
        assert_eq!(PLACES.range(second, &(1..3)), ByteRange::new(9 << 12, 2 << 12));
        assert_eq!((PLACES.region_of(UnitNumber(3)).0, PLACES.region_of(UnitNumber(5)).0), (0, 1));
        assert_eq!(PLACES.regions(ByteRange::new(65536, 4096)), RegionNumber(1)..RegionNumber(2));
    }

    #[test]
    fn a_folio_is_as_large_as_what_fills_it() {
        let order = |at: u64, end: u64| PLACES.order(at << 12, end << 12);
        assert_eq!([order(0, 3), order(0, 4), order(0, 8), order(0, 15), order(0, 400)], [0, 0, 1, 1, 2]);
        assert_eq!([order(4, 400), order(8, 400), order(1, 400), order(8, 9)], [0, 1, 0, 0]);
    }

    #[test]
    fn spans_have_names_of_their_own() {
        let name = |(unit, order)| FolioSpan { unit: UnitNumber(unit), order }.name();
        let names = [(0, 0), (0, 1), (1, 0), (2, 1)].map(name);
        assert!((1..4).all(|at| !names[..at].contains(&names[at])));
    }

    #[test]
    fn regions_at_equal_distances_lie_in_all_shards() {
        let places = Places { shards: 16, ..PLACES };
        for step in [1, 3, 16, 64, 1024] {
            let mut counts = [0; 16];
            (0..1600).for_each(|nth| counts[places.shard_of(RegionNumber(nth * step))] += 1);
            assert!(counts.iter().all(|count| (60..=140).contains(count)), "steps of {step}: {counts:?}");
        }
    }
}
