//! The head of a spill file, and what its place may hold.

use super::layout::{
    CODEC_NAME_LEN, CODECS, Layout, MAGIC, NAME_LEN_MAX, SEGMENT_SHIFT, SEGMENT_SHIFT_MIN, SEGMENTS_MAX,
    UNIT, VERSION, le32, le64, put32, put64,
};

const CODECS_AT: usize = 64;
const NAME_AT: usize = 192;
pub(super) const CRC_AT: usize = UNIT - 4;

/// How the last device left a spill file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileState {
    /// It is in use, or its user was killed.
    InUse,
    /// Its user has stopped, and left a checkpoint of the pages that were away.
    Stopped,
    /// Its user has stopped, and the checkpoint has every page that it stored.
    Kept,
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
    pub state: FileState,
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
        put32(&mut bytes, 44, self.state as u32 + 1);
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
        let checkpoint = CheckpointSpan { seq: le64(bytes, 48), segments: le32(bytes, 56) };
        let sane = (SEGMENT_SHIFT_MIN..=SEGMENT_SHIFT).contains(&layout.shift)
            && u64::from(layout.segments) <= SEGMENTS_MAX
            && checkpoint.segments <= layout.segments;
        let state = match le32(bytes, 44) {
            1 => FileState::InUse,
            2 => FileState::Stopped,
            3 => FileState::Kept,
            _ => return None,
        };
        let name = bytes.get(NAME_AT..NAME_AT + NAME_LEN_MAX)?.get(..le32(bytes, 60) as usize)?;
        let (codecs, _) = bytes[CODECS_AT..NAME_AT].as_chunks();
        sane.then_some(Self {
            layout,
            uuid: bytes[16..32].try_into().ok()?,
            slots: le64(bytes, 32),
            state,
            checkpoint,
            codecs: codecs.try_into().ok()?,
            name: str::from_utf8(name).ok()?.to_owned(),
        })
    }
}
