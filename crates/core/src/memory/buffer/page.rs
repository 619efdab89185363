//! The unit of buffers.

use bytemuck::{Pod, Zeroable};

/// Alignment of every buffer in bytes: what O_DIRECT asks for at most.
pub const ALIGNMENT: usize = 4096;

/// Largest buffer in bytes (32 MiB, the largest payload an NBD client may send by default).
pub const LEN_MAX: usize = 32 << 20;

#[repr(C, align(4096))]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Page([u8; ALIGNMENT]);

pub(super) fn new_pages(pages: usize) -> Box<[Page]> {
    bytemuck::zeroed_slice_box(pages)
}

/// Whole pages that hold `len` bytes.
pub(super) fn pages_for(len: usize) -> usize {
    assert!(len <= LEN_MAX, "a buffer of {len} bytes was asked for, {LEN_MAX} is the limit");
    len.div_ceil(ALIGNMENT)
}
