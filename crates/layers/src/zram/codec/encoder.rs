//! What compresses pages: a codec's working memory and room for the result.

use spillway_core::Charge;

use crate::zram::codec::{CODECS, CodecIndex, Compressor, Params};
use crate::zram::page::PAGE;
use crate::zram::work;

/// Units a page that its connection expects anyway.
const EXPECTED_UNITS: u32 = 31;

/// A codec and its parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Index into [`CODECS`].
    pub(crate) codec: usize,
    pub(crate) params: Params,
}

impl Choice {
    /// Bytes that an encoder takes.
    pub(crate) fn encoder_bytes(self) -> u64 {
        CODECS[self.codec].compressor_bytes + PAGE as u64
    }
}

/// What compresses pages, one after another.
pub(crate) struct Encoder {
    compressor: Box<dyn Compressor>,
    codec: CodecIndex,
    out: Box<[u8; PAGE]>,
    /// Units of work for a page, and since [`Self::take_spent`].
    units: u32,
    spent: u32,
    _charge: Option<Charge>,
}

impl Encoder {
    /// Made of memory that was charged.
    pub(crate) fn new(priority: CodecIndex, choice: Choice, charge: Option<Charge>) -> Self {
        let codec = &CODECS[choice.codec];
        let compressor = (codec.compressor)(choice.params);
        let units = (codec.compress_units)(choice.params);
        Self { compressor, codec: priority, out: Box::new([0; PAGE]), units, spent: 0, _charge: charge }
    }

    /// The codec that decompresses what this compresses.
    pub(crate) fn codec(&self) -> CodecIndex {
        self.codec
    }

    /// Units of work that a page takes.
    pub(crate) fn units_a_page(&self) -> u32 {
        self.units
    }

    /// The compressed form of `page`, or `None` where it is longer than `len_max` bytes, at most a page.
    pub(crate) fn compress(&mut self, page: &[u8], len_max: usize) -> Option<&[u8]> {
        assert!(page.len() == PAGE && len_max <= PAGE, "{} bytes into {len_max}", page.len());
        self.spent += self.units;
        work::note(self.units);
        work::note_compression();
        spillway_core::work::spend(self.units.saturating_sub(EXPECTED_UNITS));
        // The codec stops as soon as it passes the limit: most of the work of a page that does not compress is saved.
        let len = self.compressor.compress(page, &mut self.out[..len_max])?;
        assert!((1..=len_max).contains(&len), "a page was compressed to {len} bytes of {len_max}");
        Some(&self.out[..len])
    }

    /// Units of work since the last call.
    pub(crate) fn take_spent(&mut self) -> u32 {
        std::mem::take(&mut self.spent)
    }
}
