//! deflate, without a head or a checksum around it: slots know the length.

use libdeflater::{CompressionLvl, Compressor as Deflater, Decompressor as Inflater};
use spillway_core::Kind;

use super::traits::{Compressor, Decompressor, Params};

/// The level where none is given, zlib's and the kernel's too.
const LEVEL: i32 = 6;

/// Levels that there are: those above, of libdeflate alone, take 9 MiB each.
pub(super) const LEVELS: std::ops::RangeInclusive<i32> = 1..=9;

/// Measured: the tables of level 2 and above, 668 kB; and the trees of a decompressor, 12 kB.
pub(super) const COMPRESSOR_BYTES: u64 = 672 << 10;
pub(super) const DECOMPRESSOR_BYTES: u64 = 12 << 10;

/// Microseconds a page, measured on programs: 31 at level 1, 50 at level 3, 55 at level 6, 90 at level 9.
pub(super) fn units(params: Params) -> u32 {
    if params.level.unwrap_or(LEVEL) <= 6 { 670 } else { 1000 }
}

/// A compressor.
pub(super) struct Deflate(Deflater);

impl Deflate {
    pub(super) fn new(params: Params) -> Self {
        let level = CompressionLvl::new(params.level.unwrap_or(LEVEL));
        Self(Deflater::new(level.expect("levels are checked when they are stored")))
    }
}

impl Compressor for Deflate {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.deflate_compress(page, out).ok()
    }
}

/// A decompressor.
pub(super) struct DeflateDecoder(Inflater);

impl DeflateDecoder {
    pub(super) fn new() -> Self {
        Self(Inflater::new())
    }
}

impl Decompressor for DeflateDecoder {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        match self.0.deflate_decompress(bytes, page) {
            Ok(written) if written == page.len() => Ok(()),
            _ => Err(Kind::Corrupt),
        }
    }
}
