//! The unit of everything here.

use spillway_core::ByteRange;

/// Bytes of a slot.
pub(crate) const PAGE: usize = 4096;

/// Largest device in bytes (16 TiB): a pool object names its slot in 32 bits.
pub const DISKSIZE_MAX: u64 = (PAGE as u64) << 32;

/// First slot of a range and the number of slots.
pub(super) fn slots(range: ByteRange) -> (u64, u64) {
    assert!(range.aligned(PAGE as u64), "{range:?} is whole pages");
    (range.offset / PAGE as u64, range.len / PAGE as u64)
}
