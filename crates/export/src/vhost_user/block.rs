//! Requests and configuration of a block device: VIRTIO 1.2, section 5.2.

use spillway_core::{Geometry, Op, SECTOR};

/// Features of a block device that we have, by their bits.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const READ_ONLY: u64 = 1 << 5;
    pub(crate) const BLOCK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const QUEUES: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Types of requests.
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const GET_ID: u32 = 8;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

/// What the last byte of a request says.
pub(crate) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const IO_ERROR: u8 = 1;
    pub(crate) const UNSUPPORTED: u8 = 2;
}

/// Bytes in front of each request.
pub(crate) const HEADER_LEN: usize = 16;

/// Bytes of a device's name, which GET_ID reads.
pub(crate) const ID_LEN: usize = 20;

/// Bytes that a discard or zeroing says where it goes in.
pub(crate) const RANGE_LEN: usize = 16;

/// Bytes of the configuration.
pub(crate) const CONFIG_LEN: usize = 60;

/// Pieces of memory for the content of one request.
const SEGMENTS_TOLD: u32 = 126;

/// Sectors of one discard or zeroing: 2 GiB.
const SECTORS_MAX: u32 = 1 << 22;

/// The range may become a hole.
const UNMAP: u32 = 1;

/// What a request is, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    /// What a device is asked for.
    Io(Op),
    Identify,
    Unknown,
}

impl Command {
    /// The operation of a device.
    pub(crate) const fn op(self) -> Option<Op> {
        if let Self::Io(op) = self { Some(op) } else { None }
    }

    /// The command, and the byte where it begins.
    pub(crate) fn decode(header: &[u8; HEADER_LEN]) -> (Self, u64) {
        let [k0, k1, k2, k3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = *header;
        let command = match u32::from_le_bytes([k0, k1, k2, k3]) {
            kind::IN => Self::Io(Op::Read),
            kind::OUT => Self::Io(Op::Write),
            kind::FLUSH => Self::Io(Op::Flush),
            kind::GET_ID => Self::Identify,
            kind::DISCARD => Self::Io(Op::Discard),
            kind::WRITE_ZEROES => Self::Io(Op::WriteZeroes),
            _ => Self::Unknown,
        };
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        // A place beyond all devices, where it would not fit.
        (command, sector.saturating_mul(SECTOR))
    }
}

/// Where a discard or zeroing goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiscardRange {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) unmap: bool,
}

impl DiscardRange {
    /// `None` for flags that there are not.
    pub(crate) fn decode(bytes: &[u8; RANGE_LEN]) -> Option<Self> {
        let [s0, s1, s2, s3, s4, s5, s6, s7, c0, c1, c2, c3, f0, f1, f2, f3] = *bytes;
        let (sector, count) =
            (u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]), u32::from_le_bytes([c0, c1, c2, c3]));
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        (flags & !UNMAP == 0).then_some(Self {
            offset: sector.saturating_mul(SECTOR),
            len: u64::from(count) * SECTOR,
            unmap: flags & UNMAP != 0,
        })
    }
}

/// What a device of this geometry can do.
pub(crate) fn features(geometry: &Geometry) -> u64 {
    let always =
        feature::SEG_MAX | feature::BLOCK_SIZE | feature::FLUSH | feature::TOPOLOGY | feature::QUEUES;
    always
        | match (geometry.read_only, geometry.discards) {
            (true, _) => feature::READ_ONLY,
            (false, true) => feature::WRITE_ZEROES | feature::DISCARD,
            (false, false) => feature::WRITE_ZEROES,
        }
}

/// The configuration of a device of this geometry, whose blocks are of `block` bytes below, with so many queues.
pub(crate) fn config(geometry: &Geometry, block: u64, queues: u16) -> [u8; CONFIG_LEN] {
    let mut bytes = [0; CONFIG_LEN];
    let mut put = |at: usize, number: &[u8]| bytes[at..at + number.len()].copy_from_slice(number);
    put(0, &(geometry.size / SECTOR).to_le_bytes());
    put(12, &SEGMENTS_TOLD.to_le_bytes());
    put(20, &(SECTOR as u32).to_le_bytes());
    // Topology: blocks below as a power of two, and what I/O should be a multiple of, in sectors.
    let sectors = (block / SECTOR).max(1);
    put(24, &[sectors.trailing_zeros() as u8]);
    put(26, &u16::try_from(sectors).unwrap_or(u16::MAX).to_le_bytes());
    put(28, &(geometry.optimal_io / SECTOR as u32).to_le_bytes());
    // Written back, where the driver may flush.
    put(32, &[1]);
    put(34, &queues.to_le_bytes());
    for at in [36, 48] {
        put(at, &SECTORS_MAX.to_le_bytes());
        put(at + 4, &1u32.to_le_bytes());
    }
    put(44, &(sectors as u32).to_le_bytes());
    put(56, &[1]);
    bytes
}
