//! Sectors, blocks and bytes.
//!
//! A *sector* (512 bytes) is the granularity of clients; a *block* (512 to 65536 bytes, a power of two) is the unit of a
//! layer. Positions and lengths are in bytes, as `u64`.

use crate::error::{Error, Kind};

/// Bytes in a sector, the smallest unit a client may address.
pub const SECTOR: u64 = 512;

/// Largest device, in bytes: 2^62, so that an offset plus a length cannot overflow and fits a signed file offset.
pub const DEVICE_BYTES_MAX: u64 = 1 << 62;

/// A range of bytes on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub len: u64,
}

impl ByteRange {
    /// The range of `len` bytes from `offset`.
    pub const fn new(offset: u64, len: u64) -> Self {
        Self { offset, len }
    }

    /// One past the last byte, or `None` where that is not a 64-bit number.
    pub const fn end(self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }

    /// Whether the range lies within a device of `size` bytes.
    pub const fn within(self, size: u64) -> bool {
        match self.end() {
            Some(end) => end <= size,
            None => false,
        }
    }

    /// Whether start and length are multiples of `unit`, a power of two.
    pub const fn aligned(self, unit: u64) -> bool {
        (self.offset | self.len) & (unit - 1) == 0
    }

    /// Whether the two ranges share a byte.
    pub const fn overlaps(self, other: Self) -> bool {
        self.len > 0
            && other.len > 0
            && self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// A block size in bytes: a power of two from 512 to 65536.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockSize(u32);

impl BlockSize {
    /// 512 bytes.
    pub const SECTOR: Self = Self(512);
    /// 4096 bytes, the default.
    pub const PAGE: Self = Self(4096);

    /// A block size of `bytes`; [`Kind::Invalid`] unless a power of two from 512 to 65536.
    pub fn new(bytes: u32) -> Result<Self, Error> {
        if bytes.is_power_of_two() && (512..=65536).contains(&bytes) {
            return Ok(Self(bytes));
        }
        Err(Error::new(
            Kind::Invalid,
            format!("block size {bytes} is not allowed: give a power of two from 512 to 65536"),
        ))
    }

    /// The size in bytes.
    pub const fn bytes(self) -> u64 {
        self.0 as u64
    }

    /// The smallest range of whole blocks that contains `range`.
    pub const fn cover(self, range: ByteRange) -> ByteRange {
        let mask = self.bytes() - 1;
        let start = range.offset & !mask;
        let end = (range.offset + range.len + mask) & !mask;
        ByteRange::new(start, end - start)
    }

    /// The largest range of whole blocks inside `range`; empty if it holds none.
    pub const fn inside(self, range: ByteRange) -> ByteRange {
        let mask = self.bytes() - 1;
        let start = (range.offset + mask) & !mask;
        let end = (range.offset + range.len) & !mask;
        ByteRange::new(start, end.saturating_sub(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cover_and_inside_bracket_a_range() {
        let size = BlockSize::PAGE;
        let range = ByteRange::new(512, 8192);
        assert_eq!(size.cover(range), ByteRange::new(0, 12288));
        assert_eq!(size.inside(range), ByteRange::new(4096, 4096));
        assert_eq!(size.inside(ByteRange::new(512, 1024)).len, 0);
    }

    #[test]
    fn a_range_that_overflows_is_not_within_any_device() {
        assert!(!ByteRange::new(u64::MAX, 1).within(u64::MAX));
        assert!(ByteRange::new(4096, 0).within(4096));
    }

    #[test]
    fn block_sizes_outside_the_range_are_refused_by_value() {
        for bad in [0, 1, 256, 513, 3000, 131072] {
            assert!(BlockSize::new(bad).unwrap_err().to_string().contains(&bad.to_string()));
        }
    }
}
