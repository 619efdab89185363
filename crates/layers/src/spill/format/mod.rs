//! What lies in a spill file, to the byte. docs/spill.md says the same for people.
//!
//! All numbers are little endian.
//!
//! ```text
//!   superblock   4096 bytes at 0, and a copy at a quarter of a segment (1 MiB)
//!   segment n    at (n + 1) segments: data | summary, 12 bytes a record | footer, 64 bytes, at the end
//! ```
//!
//! Data begins at the segment's start. Records stand in the summary in the order of their data, without gaps: where the data of
//! one begins is the sum of the lengths before. I/O is in units of 4096 bytes; what fills up a unit is a record too, a pad.

mod layout;
mod segment;
mod superblock;
#[cfg(test)]
mod tests;

pub use layout::{
    CODEC_NAME_LEN, CODECS, FOOTER_LEN, FOOTER_MAGIC, Layout, MAGIC, NAME_LEN_MAX, RECORD_BYTES_MAX,
    RECORD_LEN, ROOM_MIN, SEGMENT_SHIFT, SEGMENT_SHIFT_MIN, SEGMENTS_MAX, SEQS, UNIT, VERSION, copy_offset,
};
pub use segment::{
    CheckpointEntry, Contents, Footer, Record, RecordCodec, finish_tail, read_tail, record_crc,
};
pub use superblock::{CheckpointSpan, FileState, Found, Superblock};
