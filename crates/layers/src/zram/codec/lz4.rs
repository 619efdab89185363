//! lz4, and its compressor that searches longer. What either has compressed, one function decompresses.

use std::ffi::{c_char, c_int, c_void};

use spillway_core::Kind;

use super::traits::{Compressor, Decompressor, Params};

// Exported by liblz4, not declared by its binding.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        target_bytes: c_int,
        acceleration: c_int,
    ) -> c_int;
    fn LZ4_sizeofStateHC() -> c_int;
    fn LZ4_initStreamHC(state: *mut c_void, bytes: usize) -> *mut c_void;
    fn LZ4_compress_HC_extStateHC_fastReset(
        state: *mut c_void,
        source: *const c_char,
        target: *mut c_char,
        source_bytes: c_int,
        target_bytes: c_int,
        level: c_int,
    ) -> c_int;
}

type Compress = unsafe extern "C" fn(*mut c_void, *const c_char, *mut c_char, c_int, c_int, c_int) -> c_int;

/// At least what LZ4_sizeofState asks for; checked when a compressor is made.
pub(super) const FAST_STATE_BYTES: usize = 16416;

/// The same for LZ4_sizeofStateHC.
pub(super) const HC_STATE_BYTES: usize = 262_208;

/// Level of lz4hc, the kernel's too.
const HC_LEVEL: i32 = 9;

/// Microseconds a page of lz4hc, measured on programs: 18 to 41 up to level 9, then 106 to 144.
pub(super) fn high_units(params: Params) -> u32 {
    if params.level.unwrap_or(HC_LEVEL) <= 9 { 500 } else { 2000 }
}

/// A compressor: its working memory, and the function that uses it.
pub(super) struct Lz4 {
    state: Box<[u64]>,
    compress: Compress,
    level: c_int,
}

impl Lz4 {
    /// lz4: the level is the acceleration.
    pub(super) fn fast(params: Params) -> Self {
        // SAFETY: takes nothing and returns a constant.
        let wanted = unsafe { LZ4_sizeofState() };
        Self::new(FAST_STATE_BYTES, wanted, LZ4_compress_fast_extState, params.level.unwrap_or(1))
    }

    /// lz4hc.
    pub(super) fn high(params: Params) -> Self {
        // SAFETY: takes nothing and returns a constant.
        let wanted = unsafe { LZ4_sizeofStateHC() };
        let compress = LZ4_compress_HC_extStateHC_fastReset;
        let mut high = Self::new(HC_STATE_BYTES, wanted, compress, params.level.unwrap_or(HC_LEVEL));
        // SAFETY: writes within the state. From then on each page begins without clearing all of it, a quarter of the work.
        let state = unsafe { LZ4_initStreamHC(high.state.as_mut_ptr().cast(), HC_STATE_BYTES) };
        assert!(!state.is_null(), "the state is large and aligned enough");
        high
    }

    fn new(bytes: usize, wanted: c_int, compress: Compress, level: c_int) -> Self {
        assert!(wanted as usize <= bytes, "liblz4 wants a state of {wanted} bytes, and {bytes} are charged");
        Self { state: vec![0; bytes / size_of::<u64>()].into(), compress, level }
    }
}

impl Compressor for Lz4 {
    fn compress(&mut self, page: &[u8], out: &mut [u8]) -> Option<usize> {
        // SAFETY: the state is large and aligned enough for this function, as checked in `new`; source and target are described by
        // their own lengths, both far below 2^31.
        let written = unsafe {
            (self.compress)(
                self.state.as_mut_ptr().cast(),
                page.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                page.len() as c_int,
                out.len() as c_int,
                self.level,
            )
        };
        usize::try_from(written).ok().filter(|&written| written > 0)
    }
}

/// Decompresses what either has compressed; without state.
pub(super) struct Lz4Decoder;

/// As [`Decompressor::decompress`].
pub(super) fn decompress(bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
    // SAFETY: liblz4 reads within `bytes` and writes within `page` for any content.
    let written = unsafe {
        lz4_sys::LZ4_decompress_safe(
            bytes.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            bytes.len() as c_int,
            page.len() as c_int,
        )
    };
    if written == page.len() as c_int { Ok(()) } else { Err(Kind::Corrupt) }
}

impl Decompressor for Lz4Decoder {
    fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> Result<(), Kind> {
        decompress(bytes, page)
    }
}
