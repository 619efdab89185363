//! zstd. Frames have no checksum and no content size, since slots know the length.

use spillway_core::Kind;
use zstd_safe::{CCtx, CParameter, DCtx};

use super::traits::{Compressor, Decompressor, Params};
use crate::zram::page::PAGE;

/// The level where none is given, the kernel's too.
const LEVEL: i32 = 3;

/// Measured over all levels: tables for a window of 4 KiB, and at the highest the prices of the optimal parser.
pub(super) const COMPRESSOR_BYTES: u64 = 1 << 20;
pub(super) const DECOMPRESSOR_BYTES: u64 = 160 << 10;

/// Levels that there are.
pub(super) fn levels() -> std::ops::RangeInclusive<i32> {
    zstd_safe::min_c_level()..=zstd_safe::max_c_level()
}

/// Microseconds a page, measured on programs: 15 to 25 up to level 4, then 40, 100, 200, and up to 1000 from level 16 on.
pub(super) fn units(params: Params) -> u32 {
    match params.level.unwrap_or(LEVEL) {
        ..=4 => 250,
        5..=8 => 400,
        9..=11 => 1000,
        12..=15 => 4000,
        _ => 10_000,
    }
}

/// A compressor.
pub(super) struct Zstd(CCtx<'static>);

impl Zstd {
    pub(super) fn new(params: Params) -> Self {
        let mut context = CCtx::create();
        let level = params.level.unwrap_or(LEVEL);
        let set = [
            CParameter::CompressionLevel(level),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::WindowLog(PAGE.trailing_zeros()),
        ];
        for parameter in set {
            context
                .set_parameter(parameter)
                .expect("levels are checked when they are stored; the rest is constant");
        }
        Self(context)
    }
}

impl Compressor for Zstd {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        self.0.compress2(out, page).ok()
    }
}

/// A decompressor.
pub(super) struct ZstdDecoder(DCtx<'static>);

impl ZstdDecoder {
    pub(super) fn new() -> Self {
        Self(DCtx::create())
    }
}

impl Decompressor for ZstdDecoder {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        match self.0.decompress(page, bytes) {
            Ok(written) if written == page.len() => Ok(()),
            _ => Err(Kind::Corrupt),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::random::Random;

    #[test]
    fn contexts_take_no_more_than_is_charged_for_them() {
        let mut page = vec![0; PAGE];
        Random(4).fill(&mut page[..2048]);
        for level in (-8..=zstd_safe::max_c_level()).chain([zstd_safe::min_c_level()]) {
            let params = Params { level: Some(level) };
            let (mut zstd, mut out) = (Zstd::new(params), vec![0; 2 * PAGE]);
            let len = zstd.compress(&page, &mut out).expect("two pages hold any page");
            let taken = zstd.0.sizeof() as u64;
            assert!(taken <= COMPRESSOR_BYTES, "level {level} takes {taken} bytes");
            let (mut decoder, mut back) = (ZstdDecoder::new(), vec![0; PAGE]);
            decoder.decompress(&out[..len], &mut back).expect("what was compressed");
            let taken = decoder.0.sizeof() as u64;
            assert!(taken <= DECOMPRESSOR_BYTES, "a decompressor takes {taken} bytes");
        }
    }
}
