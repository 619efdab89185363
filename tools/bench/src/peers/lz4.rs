//! The codec alone, for what it costs outside any store.

/// Compresses a page by lz4's defaults; `out` holds two pages.
pub(crate) fn lz4(page: &[u8], out: &mut [u8]) -> i32 {
    // SAFETY: both buffers are described by their own lengths; liblz4 stays within them.
    unsafe {
        lz4_sys::LZ4_compress_default(
            page.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            page.len() as i32,
            out.len() as i32,
        )
    }
}

/// Undoes [`lz4`].
pub(crate) fn unlz4(packed: &[u8], page: &mut [u8]) {
    // SAFETY: as above.
    let len = unsafe {
        lz4_sys::LZ4_decompress_safe(
            packed.as_ptr().cast(),
            page.as_mut_ptr().cast(),
            packed.len() as i32,
            page.len() as i32,
        )
    };
    assert_eq!(len as usize, page.len());
}
