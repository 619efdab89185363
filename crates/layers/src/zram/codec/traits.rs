//! What compresses pages and what decompresses them, whichever codec it is.

use spillway_core::Kind;

/// Parameters of a codec.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Params {
    /// Compression level or acceleration; `None` for the codec's default.
    pub(crate) level: Option<i32>,
}

/// Compresses pages, one after another, on one thread at a time.
pub(crate) trait Compressor: Send {
    /// Compresses `page` into `out` and returns the bytes used; `None` where they would not fit.
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize>;
}

/// Decompresses pages, one after another, on one thread at a time.
pub(crate) trait Decompressor: Send {
    /// Decompresses `bytes` into all of `page`; [`Kind::Corrupt`] where they do not give exactly a page.
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind>;
}
