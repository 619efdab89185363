//! Where things lie in a spill file, and how large they are.

use spillway_core::{Error, Kind};

/// Bytes of a superblock, and unit of I/O.
pub const UNIT: usize = 4096;

/// Bytes of a record in the summary.
pub const RECORD_LEN: usize = 12;

/// Bytes of a footer.
pub const FOOTER_LEN: usize = 64;

/// A segment is 2^22 bytes; in tests less.
pub const SEGMENT_SHIFT: u32 = 22;

/// The smallest segments: a quarter of one is a unit.
pub const SEGMENT_SHIFT_MIN: u32 = 14;

/// Segments that a file may have: locations have 24 bits for them.
pub const SEGMENTS_MAX: u64 = 1 << 24;

/// Sequence numbers are below: 42 bits.
pub const SEQS: u64 = 1 << 42;

/// Longest record, in bytes: 14 bits.
pub const RECORD_BYTES_MAX: usize = (1 << 14) - 1;

/// Bytes of room that a record takes at least, its summary included: so many records are a segment full.
pub const ROOM_MIN: usize = 256;

/// Codecs that a file has names for.
pub const CODECS: usize = 8;

/// Bytes of the name of a codec.
pub const CODEC_NAME_LEN: usize = 16;

/// Bytes of the longest name of a device.
pub const NAME_LEN_MAX: usize = 256;

/// What a superblock begins with.
pub const MAGIC: [u8; 8] = crate::signatures::SPILL_FILE;

/// What a footer begins with.
pub const FOOTER_MAGIC: [u8; 8] = *b"SpillSeg";

/// The format described here.
pub const VERSION: u32 = 2;

/// Where things lie in a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a segment are 2 to this power.
    pub shift: u32,
    /// Segments.
    pub segments: u32,
}

impl Layout {
    /// The most segments of 2^`shift` bytes in a file of `bytes`. [`Kind::NoSpace`] where these are fewer than `least`,
    /// [`Kind::Overflow`] where they are more than [`SEGMENTS_MAX`].
    pub fn largest(bytes: u64, shift: u32, least: u32) -> Result<Self, Error> {
        assert!((SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT).contains(&shift), "segments of 2^{shift} bytes");
        let segments = (bytes >> shift).saturating_sub(1);
        if segments < u64::from(least) {
            let enough = (u64::from(least) + 1) << shift;
            let words = format!("a spill file of {bytes} bytes is too small: it takes at least {enough}");
            return Err(Error::new(Kind::NoSpace, words));
        }
        if segments > SEGMENTS_MAX {
            let most = (SEGMENTS_MAX + 1) << shift;
            let words = format!("a spill file of {bytes} bytes is too large: it takes at most {most}");
            return Err(Error::new(Kind::Overflow, words));
        }
        Ok(Self { shift, segments: segments as u32 })
    }

    /// Bytes of a segment.
    pub const fn segment_bytes(&self) -> usize {
        1 << self.shift
    }

    /// Byte of the file at which a segment begins.
    pub fn segment_offset(&self, segment: u32) -> u64 {
        assert!(segment < self.segments, "segment {segment} of {}", self.segments);
        (u64::from(segment) + 1) << self.shift
    }

    /// Byte of the file at which the copy of the superblock begins.
    pub const fn copy_offset(&self) -> u64 {
        copy_offset(self.shift)
    }

    /// Records that a segment has at most.
    pub const fn records_max(&self) -> usize {
        self.segment_bytes() / ROOM_MIN
    }
}

/// Byte of the file at which the copy of the superblock begins.
pub const fn copy_offset(shift: u32) -> u64 {
    1 << (shift - 2)
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(super) fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}
