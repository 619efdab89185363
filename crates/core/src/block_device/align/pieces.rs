//! Where byte ranges are cut: at blocks, and into pieces.

use crate::block::{BlockSize, ByteRange};
use crate::mutant;

/// Bytes of a piece of a merge or of a read of parts.
pub(super) const MERGE_BYTES_MAX: u64 = 256 << 10;

/// Bytes of a piece of a zeroing or discard.
pub(super) const BARE_BYTES_MAX: u64 = 64 << 20;

/// Where `part` lies in a buffer that holds `whole`.
pub(super) fn window(whole: ByteRange, part: ByteRange) -> std::ops::Range<usize> {
    let inside = part.offset >= whole.offset && part.end() <= whole.end();
    assert!(inside, "{part:?} is outside {whole:?}");
    let start = (part.offset - whole.offset) as usize;
    start..start + part.len as usize
}

/// Cuts `range` at block boundaries into pieces whose blocks fit a buffer of [`MERGE_BYTES_MAX`].
pub(super) fn pieces(block: BlockSize, range: ByteRange) -> impl Iterator<Item = ByteRange> {
    cut(range, block.cover(ByteRange::new(range.offset, 0)).offset, MERGE_BYTES_MAX)
}

/// Whether [`bare_pieces`] are several.
pub(super) fn is_long(range: ByteRange) -> bool {
    range.len > 0 && range.offset / BARE_BYTES_MAX != (range.offset + range.len - 1) / BARE_BYTES_MAX
}

/// Cuts `range` at multiples of [`BARE_BYTES_MAX`].
pub(super) fn bare_pieces(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    cut(range, range.offset / BARE_BYTES_MAX * BARE_BYTES_MAX, BARE_BYTES_MAX)
}

/// Cuts `range` every `step` bytes, counted from `first`, which lies at its start or before.
fn cut(range: ByteRange, first: u64, step: u64) -> impl Iterator<Item = ByteRange> {
    let end = range.offset + range.len;
    assert!(first <= range.offset, "cut from {first} on, {range:?} loses its beginning");
    (first..end).step_by(step as usize).map(move |start| {
        let from = start.max(range.offset);
        ByteRange::new(from, (start + step).min(end) - from)
    })
}

/// The parts of `range` that lie in blocks which it does not cover whole: none, one or two, each within one block.
pub(super) fn edges(block: BlockSize, range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let (start, end) = (range.offset, range.offset + range.len);
    let inside = block.inside(range);
    let (head, tail) = if inside.len > 0 {
        let inside_end = inside.offset + inside.len;
        (ByteRange::new(start, inside.offset - start), ByteRange::new(inside_end, end - inside_end))
    } else {
        let boundary = block.cover(ByteRange::new(start, 0)).offset + block.bytes();
        let split = boundary.min(end);
        (ByteRange::new(start, split - start), ByteRange::new(split, end - split))
    };
    let partial = head.len < block.bytes() && tail.len < block.bytes();
    assert!(partial, "an edge of {range:?} is a whole block: {head:?}, {tail:?}");
    let whole = if mutant::on("align: forget the second edge") { 1 } else { 2 };
    [head, tail].into_iter().take(whole).filter(|edge| edge.len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_cover_exactly_what_inside_leaves() {
        let block = BlockSize::PAGE;
        for start in (0..8192).step_by(512) {
            for len in (512..20_000).step_by(512) {
                let range = ByteRange::new(start, len);
                let edges: Vec<_> = edges(block, range).collect();
                let sum: u64 = edges.iter().map(|edge| edge.len).sum();
                assert_eq!(sum + block.inside(range).len, len);
                assert!(
                    edges
                        .iter()
                        .all(|edge| block.cover(*edge).len == block.bytes() && edge.len < block.bytes())
                );
            }
        }
    }

    #[test]
    fn pieces_follow_each_other_and_start_on_blocks() {
        let range = ByteRange::new(512, 5 << 20);
        let mut at = range.offset;
        for piece in pieces(BlockSize::PAGE, range) {
            assert_eq!(piece.offset, at);
            assert!(BlockSize::PAGE.cover(piece).len <= MERGE_BYTES_MAX);
            at += piece.len;
        }
        assert_eq!(at, range.offset + range.len);
    }

    #[test]
    fn long_zeroing_goes_in_pieces_that_add_up() {
        let range = ByteRange::new(4096, 3 * BARE_BYTES_MAX);
        let pieces: Vec<_> = bare_pieces(range).collect();
        assert_eq!(pieces.len(), 4);
        for (start, len) in [(0, 0), (0, 512), (512, BARE_BYTES_MAX), (0, BARE_BYTES_MAX), (5 << 26, 1 << 27)]
        {
            let range = ByteRange::new(start, len);
            assert_eq!(is_long(range), bare_pieces(range).count() > 1, "{range:?}");
        }
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), range.len);
        assert!(pieces[1..].iter().all(|piece| piece.offset % BARE_BYTES_MAX == 0));
    }
}
