//! What lies in a spill file, to the byte. docs/spill.md says the same for people.
//!
//! All numbers are little endian.
//!
//! ```text
//!   superblock   4096 bytes at 0, and a copy at a quarter of a segment (1 MiB)
//!   segment n    at (n + 1) segments: data | summary, 16 bytes a record | footer, 64 bytes, at the end
//! ```
//!
//! Data begins at the segment's start. Records stand in the summary in the order of their data, without gaps: where the data of
//! one begins is the sum of the lengths before. I/O is in units of 4096 bytes; what fills up a unit is a record too, a pad.

use std::fmt;

use spillway_core::{Error, Kind};

/// Bytes of a superblock, and unit of I/O.
pub const UNIT: usize = 4096;

/// Bytes of a record in the summary.
pub const RECORD_LEN: usize = 16;

/// Bytes of a footer.
pub const FOOTER_LEN: usize = 64;

/// A segment is 2^22 bytes; in tests less.
pub const SEGMENT_SHIFT: u32 = 22;

/// The smallest segments: a quarter of one is a unit.
pub const SEGMENT_SHIFT_MIN: u32 = 14;

/// Segments that a file may have: locations have 24 bits for them.
pub const SEGMENTS_MAX: u64 = 1 << 24;

/// Generations are below: 42 bits.
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
pub const MAGIC: [u8; 8] = *b"SpillFil";

/// What a footer begins with.
pub const FOOTER_MAGIC: [u8; 8] = *b"SpillSeg";

/// The format described here.
pub const VERSION: u32 = 1;

const CODECS_AT: usize = 64;
const NAME_AT: usize = 192;
const CRC_AT: usize = UNIT - 4;

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

/// How the last device left a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is in use, or its user was killed.
    InUse,
    /// Its user has stopped, and left a checkpoint.
    Stopped,
}

/// The segments of a checkpoint: consecutive in their sequence numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSpan {
    /// Sequence number of the first; 0 where there is none.
    pub seq: u64,
    /// How many.
    pub segments: u32,
}

/// The head of a spill file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Segments and their size.
    pub layout: Layout,
    /// Drawn each time the file is emptied.
    pub uuid: [u8; 16],
    /// Slots of the device.
    pub slots: u64,
    /// How it was left.
    pub state: State,
    /// What was live when the device stopped.
    pub checkpoint: CheckpointSpan,
    /// Names of the codecs that records are numbered by, filled up with zeroes.
    pub codecs: [[u8; CODEC_NAME_LEN]; CODECS],
    /// The device's name.
    pub name: String,
}

/// What the place of a superblock holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A superblock of this version.
    Superblock(Box<Superblock>),
    /// One of another version.
    Version(u32),
    /// It has the magic, but is not as it was written.
    Damaged,
    /// Something else, or nothing.
    Foreign,
}

impl Superblock {
    /// The uuid's part in footers.
    pub fn low_uuid(&self) -> u64 {
        le64(&self.uuid, 0)
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; UNIT] {
        let mut bytes = [0; UNIT];
        bytes[..8].copy_from_slice(&MAGIC);
        put32(&mut bytes, 8, VERSION);
        put32(&mut bytes, 12, self.layout.shift);
        bytes[16..32].copy_from_slice(&self.uuid);
        put64(&mut bytes, 32, self.slots);
        put32(&mut bytes, 40, self.layout.segments);
        put32(&mut bytes, 44, if self.state == State::Stopped { 2 } else { 1 });
        put64(&mut bytes, 48, self.checkpoint.seq);
        put32(&mut bytes, 56, self.checkpoint.segments);
        put32(&mut bytes, 60, self.name.len() as u32);
        bytes[CODECS_AT..NAME_AT].copy_from_slice(self.codecs.as_flattened());
        assert!(self.name.len() <= NAME_LEN_MAX, "a name of {} bytes", self.name.len());
        bytes[NAME_AT..][..self.name.len()].copy_from_slice(self.name.as_bytes());
        let crc = crc32c::crc32c(&bytes[..CRC_AT]);
        put32(&mut bytes, CRC_AT, crc);
        bytes
    }

    /// What `bytes` are.
    pub fn decode(bytes: &[u8; UNIT]) -> Found {
        if bytes[..8] != MAGIC {
            return Found::Foreign;
        }
        if crc32c::crc32c(&bytes[..CRC_AT]) != le32(bytes, CRC_AT) {
            return Found::Damaged;
        }
        match le32(bytes, 8) {
            VERSION => Self::fields(bytes).map_or(Found::Damaged, |found| Found::Superblock(Box::new(found))),
            version => Found::Version(version),
        }
    }

    fn fields(bytes: &[u8; UNIT]) -> Option<Self> {
        let layout = Layout { shift: le32(bytes, 12), segments: le32(bytes, 40) };
        let sane = (SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT).contains(&layout.shift)
            && u64::from(layout.segments) <= SEGMENTS_MAX;
        let state = match le32(bytes, 44) {
            1 => State::InUse,
            2 => State::Stopped,
            _ => return None,
        };
        let name = bytes.get(NAME_AT..NAME_AT + NAME_LEN_MAX)?.get(..le32(bytes, 60) as usize)?;
        let (codecs, _) = bytes[CODECS_AT..NAME_AT].as_chunks();
        sane.then_some(Self {
            layout,
            uuid: bytes[16..32].try_into().ok()?,
            slots: le64(bytes, 32),
            state,
            checkpoint: CheckpointSpan { seq: le64(bytes, 48), segments: le32(bytes, 56) },
            codecs: codecs.try_into().ok()?,
            name: str::from_utf8(name).ok()?.to_owned(),
        })
    }
}

/// How the bytes of a record are to be read: 4 bits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Codec(u8);

impl Codec {
    /// Nothing: fills up a unit, or the place of data that could not be written.
    pub const PAD: Self = Self(12);
    /// As they are.
    pub const RAW: Self = Self(13);

    /// Compressed by the codec that the superblock has a name for. Panics from [`CODECS`] on.
    pub const fn compressed(number: u8) -> Self {
        assert!((number as usize) < CODECS, "a file has names for 8 codecs");
        Self(number)
    }

    /// The number of the superblock's codec, where there is one.
    pub const fn number(self) -> Option<u8> {
        if (self.0 as usize) < CODECS { Some(self.0) } else { None }
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::PAD => f.write_str("PAD"),
            Self::RAW => f.write_str("RAW"),
            Self(number) => write!(f, "Codec({number})"),
        }
    }
}

/// What a stretch of a segment's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The slot; of a cluster the first one. 0 in a pad.
    pub slot: u32,
    /// See [`record_crc`]. 0 in a pad.
    pub crc: u32,
    /// Sequence number of the segment in which this content first landed. 0 in a pad.
    pub generation: u64,
    /// Bytes, at most [`RECORD_BYTES_MAX`].
    pub len: u16,
    /// How to read them.
    pub codec: Codec,
    /// Bit n: it holds the page of `slot` + n. 1 for a single page, 0 for a pad.
    pub members: u8,
}

impl Record {
    /// A stretch that holds nothing.
    pub fn pad(len: u16) -> Self {
        Self { slot: 0, crc: 0, generation: 0, len, codec: Codec::PAD, members: 0 }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        assert!(usize::from(self.len) <= RECORD_BYTES_MAX && self.generation < SEQS, "{self:?}");
        let mut bytes = [0; RECORD_LEN];
        put32(&mut bytes, 0, self.slot);
        put32(&mut bytes, 4, self.crc);
        let (len, codec, members) = (u64::from(self.len), u64::from(self.codec.0), u64::from(self.members));
        put64(&mut bytes, 8, self.generation | len << 42 | codec << 56 | members << 60);
        bytes
    }

    /// The record in `bytes`: any bytes are one.
    pub fn decode(bytes: &[u8; RECORD_LEN]) -> Self {
        let packed = le64(bytes, 8);
        Self {
            slot: le32(bytes, 0),
            crc: le32(bytes, 4),
            generation: packed & (SEQS - 1),
            len: (packed >> 42) as u16 & RECORD_BYTES_MAX as u16,
            codec: Codec((packed >> 56) as u8 & 15),
            members: (packed >> 60) as u8,
        }
    }
}

/// The checksum of a record: of the segment's sequence number, the slot, a byte of codec and members, and the bytes.
pub fn record_crc(seq: u64, slot: u32, codec: Codec, members: u8, bytes: &[u8]) -> u32 {
    let mut head = [0; 13];
    put64(&mut head, 0, seq);
    put32(&mut head, 8, slot);
    head[12] = codec.0 | members << 4;
    crc32c::crc32c_append(crc32c::crc32c(&head), bytes)
}

/// What the data of a segment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Records of the summary.
    Pages,
    /// Entries of a checkpoint.
    Checkpoint,
}

/// The end of a closed segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Of the superblock.
    pub low_uuid: u64,
    /// Grows with each segment that is opened; from 1.
    pub seq: u64,
    /// Records of the summary, or entries of the checkpoint.
    pub records: u32,
    /// Bytes of data.
    pub data_bytes: u32,
    /// What the data is.
    pub contents: Contents,
    /// Number of the segment.
    pub segment: u32,
    /// crc32c of the summary; of a checkpoint, of the data.
    pub summary_crc: u32,
}

impl Footer {
    /// Its bytes.
    pub fn encode(&self) -> [u8; FOOTER_LEN] {
        let mut bytes = [0; FOOTER_LEN];
        bytes[..8].copy_from_slice(&FOOTER_MAGIC);
        put64(&mut bytes, 8, self.low_uuid);
        put64(&mut bytes, 16, self.seq);
        put32(&mut bytes, 24, self.records);
        put32(&mut bytes, 28, self.data_bytes);
        put32(&mut bytes, 32, if self.contents == Contents::Checkpoint { 2 } else { 1 });
        put32(&mut bytes, 36, self.segment);
        put32(&mut bytes, 56, self.summary_crc);
        let crc = crc32c::crc32c(&bytes[..60]);
        put32(&mut bytes, 60, crc);
        bytes
    }

    /// The footer in `bytes`, if they are one as it was written.
    pub fn decode(bytes: &[u8; FOOTER_LEN]) -> Option<Self> {
        if bytes[..8] != FOOTER_MAGIC || crc32c::crc32c(&bytes[..60]) != le32(bytes, 60) {
            return None;
        }
        let contents = match le32(bytes, 32) {
            1 => Contents::Pages,
            2 => Contents::Checkpoint,
            _ => return None,
        };
        Some(Self {
            low_uuid: le64(bytes, 8),
            seq: le64(bytes, 16),
            records: le32(bytes, 24),
            data_bytes: le32(bytes, 28),
            contents,
            segment: le32(bytes, 36),
            summary_crc: le32(bytes, 56),
        })
    }
}

/// Writes the footer into the end of `tail`, which ends with the segment, and the summary that stands at its beginning before it.
/// Returns where the summary begins.
pub fn finish_tail(tail: &mut [u8], footer: &Footer) -> usize {
    let summary = footer.records as usize * RECORD_LEN;
    let at = tail.len() - FOOTER_LEN - summary;
    tail.copy_within(..summary, at);
    tail[..at].fill(0);
    let summary_crc = crc32c::crc32c(&tail[at..at + summary]);
    tail[at + summary..].copy_from_slice(&Footer { summary_crc, ..*footer }.encode());
    at
}

/// The footer and the records in `tail`, which ends with the segment, if they are as they were written and lie in it.
pub fn read_tail(tail: &[u8]) -> Option<(Footer, impl Iterator<Item = Record>)> {
    let (before, footer) = tail.split_last_chunk()?;
    let footer = Footer::decode(footer)?;
    let summary = (footer.records as usize).checked_mul(RECORD_LEN)?;
    let summary = &before[before.len().checked_sub(summary)?..];
    let (records, _) = summary.as_chunks();
    let sound = footer.contents == Contents::Pages && crc32c::crc32c(summary) == footer.summary_crc;
    sound.then(|| (footer, records.iter().map(Record::decode)))
}

/// Which records of a segment were live when the device stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Number of the segment.
    pub segment: u32,
    /// Its sequence number.
    pub seq: u64,
    /// Records of its summary.
    pub records: u32,
    /// A bit for each, from the lowest of the first word on.
    pub live: Vec<u64>,
}

/// Bytes of an entry before its bits.
const ENTRY_HEAD: usize = 16;

impl CheckpointEntry {
    /// The entry of a segment of which nothing is live so far.
    pub fn new(segment: u32, seq: u64, records: u32) -> Self {
        Self { segment, seq, records, live: vec![0; records.div_ceil(64) as usize] }
    }

    /// Bytes that an entry for so many records takes.
    pub const fn bytes(records: u32) -> usize {
        ENTRY_HEAD + records.div_ceil(64) as usize * 8
    }

    /// Notes that a record is live.
    pub fn set(&mut self, record: usize) {
        self.live[record / 64] |= 1 << (record % 64);
    }

    /// Whether a record is live.
    pub fn has(&self, record: usize) -> bool {
        self.live.get(record / 64).is_some_and(|word| word >> (record % 64) & 1 == 1)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.live.iter().all(|&word| word == 0)
    }

    /// Its bytes, at the beginning of `into`; returns how many.
    pub fn encode(&self, into: &mut [u8]) -> usize {
        let into = &mut into[..Self::bytes(self.records)];
        put32(into, 0, self.segment);
        put32(into, 4, self.records);
        put64(into, 8, self.seq);
        for (at, word) in into[ENTRY_HEAD..].chunks_exact_mut(8).zip(&self.live) {
            at.copy_from_slice(&word.to_le_bytes());
        }
        into.len()
    }

    /// The entry that `bytes` begin with, and what follows; `None` where they are too short.
    pub fn decode(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_at_checked(ENTRY_HEAD)?;
        let records = le32(head, 4);
        let (bits, rest) = rest.split_at_checked(records.div_ceil(64) as usize * 8)?;
        let (words, _) = bits.as_chunks();
        let live = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Some((Self { segment: le32(head, 0), seq: le64(head, 8), records, live }, rest))
    }
}

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests;
