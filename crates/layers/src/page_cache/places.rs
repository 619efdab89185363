//! Where a byte of the device lies: its block, folio, region and shard.

use std::ops::Range;

use spillway_core::ByteRange;
use spillway_policy::dirty_regions::RegionNumber;

/// A folio, by its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FolioNumber(pub(super) u64);

/// How the device is cut. All sizes are powers of two.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) block_shift: u32,
    pub(super) folio_shift: u32,
    pub(super) region_shift: u32,
    /// Of what becomes dirty together.
    pub(super) granule_shift: u32,
    pub(super) shards: u64,
}

/// The part of a range that lies in one folio.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) folio: FolioNumber,
    /// Blocks of the folio.
    pub(super) blocks: Range<u32>,
    /// Bytes of the folio.
    pub(super) bytes: Range<usize>,
    /// Where it begins in the range.
    pub(super) start: usize,
}

impl Places {
    /// Bytes of a folio.
    pub(super) fn folio_bytes(&self) -> u64 {
        1 << self.folio_shift
    }

    pub(super) fn block_bytes(&self) -> u64 {
        1 << self.block_shift
    }

    /// Blocks of a folio.
    pub(super) fn folio_blocks(&self) -> u32 {
        1 << (self.folio_shift - self.block_shift)
    }

    /// The blocks that become dirty with `blocks` of a folio.
    pub(super) fn granules(&self, blocks: &Range<u32>) -> Range<u32> {
        let granule = 1 << (self.granule_shift - self.block_shift);
        blocks.start / granule * granule..blocks.end.next_multiple_of(granule)
    }

    pub(super) fn region_of(&self, folio: FolioNumber) -> RegionNumber {
        RegionNumber(folio.0 >> (self.region_shift - self.folio_shift))
    }

    pub(super) fn shard_of(&self, region: RegionNumber) -> usize {
        (region.0 & (self.shards - 1)) as usize
    }

    /// Each shard that may have a folio of `range`: regions that follow each other lie in shards that do.
    pub(super) fn shards_of(&self, range: ByteRange) -> impl Iterator<Item = usize> + use<'_> {
        let Range { start, end } = self.regions(range);
        let regions = start.0..end.0.min(start.0 + self.shards);
        regions.map(|region| self.shard_of(RegionNumber(region)))
    }

    /// The regions that `range` touches.
    pub(super) fn regions(&self, range: ByteRange) -> Range<RegionNumber> {
        let end = (range.offset + range.len).div_ceil(1 << self.region_shift);
        RegionNumber(range.offset >> self.region_shift)..RegionNumber(end)
    }

    /// The bytes of a region.
    pub(super) fn region_range(&self, region: RegionNumber) -> ByteRange {
        ByteRange::new(region.0 << self.region_shift, 1 << self.region_shift)
    }

    /// The part of `range` that lies in `region`, which it touches.
    pub(super) fn part_of_region(&self, range: ByteRange, region: RegionNumber) -> ByteRange {
        let whole = self.region_range(region);
        let start = range.offset.max(whole.offset);
        let end = (range.offset + range.len).min(whole.offset + whole.len);
        assert!(start < end, "{range:?} touches {region:?}");
        ByteRange::new(start, end - start)
    }

    /// The part of whole blocks of `range` from `start` on that lies in one folio.
    pub(super) fn piece(&self, range: ByteRange, start: u64) -> Piece {
        assert!(start < range.len, "{start} of {range:?}");
        let at = range.offset + start;
        let folio = FolioNumber(at >> self.folio_shift);
        let base = self.start(folio);
        let end = (base + self.folio_bytes()).min(range.offset + range.len);
        let block = |at: u64| ((at - base) >> self.block_shift) as u32;
        let bytes = (at - base) as usize..(end - base) as usize;
        Piece { folio, blocks: block(at)..block(end), bytes, start: start as usize }
    }

    /// The part of `range` that lies in `folio`, which it touches.
    pub(super) fn part(&self, range: ByteRange, folio: FolioNumber) -> Piece {
        let piece = self.piece(range, self.start(folio).saturating_sub(range.offset));
        assert_eq!(piece.folio, folio, "{range:?} touches the folio");
        piece
    }

    /// The parts of `range`, a folio each.
    pub(super) fn pieces(&self, range: ByteRange) -> impl Iterator<Item = Piece> {
        let first = (range.len > 0).then(|| self.piece(range, 0));
        let places = *self;
        std::iter::successors(first, move |piece| {
            let next = (piece.start + piece.bytes.len()) as u64;
            (next < range.len).then(|| places.piece(range, next))
        })
    }

    /// Where a folio lies on the device.
    pub(super) fn start(&self, folio: FolioNumber) -> u64 {
        folio.0 << self.folio_shift
    }

    /// Where blocks of a folio lie on the device.
    pub(super) fn range(&self, folio: FolioNumber, blocks: &Range<u32>) -> ByteRange {
        let offset = self.start(folio) + (u64::from(blocks.start) << self.block_shift);
        ByteRange::new(offset, (blocks.len() as u64) << self.block_shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_a_range_are_all_of_it() {
        let places =
            Places { block_shift: 12, folio_shift: 14, region_shift: 16, granule_shift: 13, shards: 2 };
        let range = ByteRange::new(3 << 12, 9 << 12);
        let pieces: Vec<Piece> = places.pieces(range).collect();
        let blocks: Vec<_> = pieces.iter().map(|piece| (piece.folio.0, piece.blocks.clone())).collect();
        assert_eq!(blocks, [(0, 3..4), (1, 0..4), (2, 0..4)]);
        let bytes: Vec<_> = pieces.iter().map(|piece| (piece.start, piece.bytes.len())).collect();
        assert_eq!(bytes, [(0, 4096), (4096, 16384), (20480, 16384)]);
        assert!(pieces.iter().all(|piece| places.part(range, piece.folio) == *piece));
        assert_eq!(places.range(FolioNumber(1), &(1..3)), ByteRange::new(5 << 12, 2 << 12));
        assert_eq!(places.granules(&(1..2)), 0..2);
        let region = |folio| places.region_of(FolioNumber(folio)).0;
        assert_eq!((region(3), region(5)), (0, 1));
        assert_eq!(places.regions(ByteRange::new(65536, 4096)), RegionNumber(1)..RegionNumber(2));
    }

    #[test]
    fn each_shard_of_a_range_is_named_once() {
        let places =
            Places { block_shift: 12, folio_shift: 14, region_shift: 16, granule_shift: 13, shards: 4 };
        for (first, count) in [(0, 1), (3, 1), (3, 2), (2, 4), (1, 100)] {
            let named: Vec<usize> = places.shards_of(ByteRange::new(first << 16, count << 16)).collect();
            let regions = first..first + count;
            let mut all: Vec<usize> = regions.map(|region| places.shard_of(RegionNumber(region))).collect();
            all.sort_unstable();
            all.dedup();
            assert_eq!((named.len(), all.iter().all(|shard| named.contains(shard))), (all.len(), true));
        }
    }
}
