//! The end of a segment: records, its footer, and the entries of a checkpoint.

use std::fmt;

use super::layout::{
    CODECS, FOOTER_LEN, FOOTER_MAGIC, RECORD_BYTES_MAX, RECORD_LEN, le32, le64, put32, put64,
};

/// How the bytes of a record are to be read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct RecordCodec(u8);

impl RecordCodec {
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

impl fmt::Debug for RecordCodec {
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
    /// The slot. 0 in a pad.
    pub slot: u32,
    /// See [`record_crc`]. 0 in a pad.
    pub crc: u32,
    /// Bytes, at most [`RECORD_BYTES_MAX`].
    pub len: u16,
    /// How to read them.
    pub codec: RecordCodec,
}

impl Record {
    /// A stretch that holds nothing.
    pub fn pad(len: u16) -> Self {
        Self { slot: 0, crc: 0, len, codec: RecordCodec::PAD }
    }

    /// Its bytes.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        assert!(usize::from(self.len) <= RECORD_BYTES_MAX, "{self:?}");
        let mut bytes = [0; RECORD_LEN];
        put32(&mut bytes, 0, self.slot);
        put32(&mut bytes, 4, self.crc);
        put32(&mut bytes, 8, u32::from(self.len) | u32::from(self.codec.0) << 16);
        bytes
    }

    /// The record in `bytes`: any bytes are one.
    pub fn decode(bytes: &[u8; RECORD_LEN]) -> Self {
        let packed = le32(bytes, 8);
        Self {
            slot: le32(bytes, 0),
            crc: le32(bytes, 4),
            len: packed as u16 & RECORD_BYTES_MAX as u16,
            codec: RecordCodec((packed >> 16) as u8),
        }
    }
}

/// The checksum of a record: of the segment's sequence number, the slot, the codec, and the bytes.
pub fn record_crc(seq: u64, slot: u32, codec: RecordCodec, bytes: &[u8]) -> u32 {
    let mut head = [0; 13];
    put64(&mut head, 0, seq);
    put32(&mut head, 8, slot);
    head[12] = codec.0;
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
        assert!(record < self.records as usize, "record {record} of {}", self.records);
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
