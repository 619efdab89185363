//! Bins of runs by their length, each with a bitmap of where they begin.

use crate::bits::Bits;

/// Lengths below this have bins of their own; above, four bins share each power of two.
pub(super) const EXACT: u32 = 16;

/// The bin of runs of this length.
pub(super) fn bin_of(len: u32) -> usize {
    if len < EXACT {
        return len as usize - 1;
    }
    let octave = len.ilog2();
    let quarter = len >> (octave - 2) & 3;
    (EXACT - 1 + (octave - EXACT.ilog2()) * 4 + quarter) as usize
}

/// The least length in a bin.
pub(super) fn least_in(bin: usize) -> u32 {
    let bin = bin as u32;
    if bin < EXACT - 1 {
        return bin + 1;
    }
    let (octave, quarter) = ((bin - (EXACT - 1)) / 4 + EXACT.ilog2(), (bin - (EXACT - 1)) % 4);
    (4 + quarter) << (octave - 2)
}

/// Runs of about the same length, by where they begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bin {
    /// Blocks that share a bit, as a power of two.
    pub(super) shift: u32,
    pub(super) starts: Bits,
    pub(super) runs: u32,
}

pub(super) fn shift_of(bin: usize) -> u32 {
    least_in(bin).ilog2()
}

/// Bins that a cache of `blocks` blocks needs.
pub(super) fn bins(blocks: u32) -> std::ops::Range<usize> {
    0..if blocks == 0 { 0 } else { bin_of(blocks) + 1 }
}

/// Bits of a bin.
pub(super) fn bits_of(bin: usize, blocks: u32) -> u32 {
    (blocks >> shift_of(bin)) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_lengths_within_a_quarter_of_each_other() {
        let lens = (1..5000).chain((10..32).flat_map(|bit| [(1u32 << bit) - 1, 1 << bit])).chain([u32::MAX]);
        for len in lens {
            let (bin, least) = (bin_of(len), least_in(bin_of(len)));
            assert!(
                least <= len && len - least <= least / 4 && bin_of(least) == bin,
                "{len} in {bin} from {least}"
            );
            assert!(bin < 128 && (len < EXACT) == (bin < EXACT as usize - 1));
        }
    }
}
