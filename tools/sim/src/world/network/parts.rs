//! Requests that are longer than what carries them.

use spillway_core::ByteRange;

/// Bytes of a page: of what is longer than a message or an entry of a ring, parts begin at one.
pub(crate) const PAGE: u64 = 4096;

/// The parts of a range with at most `len_max` bytes each, whole pages: all but the first begin at one.
pub(crate) fn parts(range: ByteRange, len_max: u64) -> Vec<ByteRange> {
    let (mut parts, mut at, end) = (Vec::new(), range.offset, range.offset + range.len);
    while at < end {
        let next = (at / PAGE * PAGE + len_max).min(end);
        parts.push(ByteRange::new(at, next - at));
        at = next;
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_requests_are_cut_at_pages() {
        let all = |range, len_max| {
            let parts = parts(range, len_max);
            parts.iter().map(|part| (part.offset, part.len)).collect::<Vec<_>>()
        };
        assert_eq!(all(ByteRange::new(512, 512), 4096), [(512, 512)]);
        assert_eq!(all(ByteRange::new(3584, 8192), 4096), [(3584, 512), (4096, 4096), (8192, 3584)]);
        assert_eq!(all(ByteRange::new(0, 9000), 8192), [(0, 8192), (8192, 808)]);
    }
}
