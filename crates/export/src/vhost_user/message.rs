//! Messages of the vhost-user protocol: numbers, layouts and flags.

use spillway_core::shared_memory::HEAD_LEN;

use super::memory::RegionPlace;
use crate::fields::Fields;

/// Requests of a front end that we know.
pub mod request {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const SET_VRING_ERR: u32 = 14;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
}

/// Request of the back end: the configuration has changed.
const BACKEND_CONFIG_CHANGE: u32 = 2;

/// Features of the protocol that we have, by their bits.
pub mod protocol_feature {
    #![allow(missing_docs, reason = "the names are those of the specification")]
    pub const MQ: u64 = 1 << 0;
    pub const REPLY_ACK: u64 = 1 << 3;
    pub const BACKEND_REQ: u64 = 1 << 5;
    pub const CONFIG: u64 = 1 << 9;
    pub const INFLIGHT_SHMFD: u64 = 1 << 12;
    pub const CONFIGURE_MEM_SLOTS: u64 = 1 << 15;
    pub const ALL: u64 = MQ | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT_SHMFD | CONFIGURE_MEM_SLOTS;
}

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;

/// Longest body in bytes: room for the largest configuration.
const BODY_LEN_MAX: u32 = 1024;

/// Bytes of the configuration space that a front end may ask for.
pub(crate) const CONFIG_SPACE_LEN: usize = 256;

/// In the number that comes with an event descriptor: its queue, and that there is no descriptor.
const EVENT_QUEUE: u64 = 0xff;
const EVENT_NONE: u64 = 1 << 8;

/// What a message begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessageHead {
    pub(crate) request: u32,
    pub(crate) needs_reply: bool,
    pub(crate) len: u32,
}

impl MessageHead {
    /// `None` for another version, an answer, or a body that no message has.
    pub(crate) fn decode(bytes: &[u8; HEAD_LEN]) -> Option<Self> {
        let mut fields = Fields::of(bytes);
        let (request, flags, len) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let sound = flags & VERSION_MASK == VERSION && flags & REPLY == 0 && len <= BODY_LEN_MAX;
        sound.then_some(Self { request, needs_reply: flags & NEED_REPLY != 0, len })
    }
}

/// The answer to a request.
pub(crate) fn answer(request: u32, body: &[u8]) -> Vec<u8> {
    message(request, VERSION | REPLY, body)
}

/// What tells a front end that the configuration has changed: the device has another size.
pub fn config_changed() -> Vec<u8> {
    message(BACKEND_CONFIG_CHANGE, VERSION, &[])
}

fn message(request: u32, flags: u32, body: &[u8]) -> Vec<u8> {
    let numbers = [request, flags, body.len() as u32].map(u32::to_ne_bytes);
    [numbers.as_flattened(), body].concat()
}

/// A queue, and a number about it.
pub(crate) fn queue_state(body: &[u8]) -> Option<(u32, u32)> {
    let mut fields = Fields::of(body);
    Some((fields.u32()?, fields.u32()?))
}

/// The queue that an event descriptor is for, and whether there is one.
pub(crate) fn event_of(body: &[u8]) -> Option<(usize, bool)> {
    let number = Fields::of(body).u64()?;
    Some(((number & EVENT_QUEUE) as usize, number & EVENT_NONE == 0))
}

/// Where a queue lies, by the front end's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Addresses {
    pub(crate) descriptors: u64,
    pub(crate) used: u64,
    pub(crate) available: u64,
}

/// A queue, and where it lies.
pub(crate) fn addresses(body: &[u8]) -> Option<(u32, Addresses)> {
    let mut fields = Fields::of(body);
    let (index, _flags) = (fields.u32()?, fields.u32()?);
    let (descriptors, used, available) = (fields.u64()?, fields.u64()?, fields.u64()?);
    Some((index, Addresses { descriptors, used, available }))
}

/// A region of memory, and where it begins in its file.
pub(crate) type FileRegion = (RegionPlace, u64);

fn region(fields: &mut Fields<'_>) -> Option<FileRegion> {
    let (guest, len, user, offset) = (fields.u64()?, fields.u64()?, fields.u64()?, fields.u64()?);
    Some((RegionPlace { guest, len, user }, offset))
}

/// The regions of a table, as many as it has descriptors.
pub(crate) fn regions(body: &[u8], descriptors: usize) -> Option<Vec<FileRegion>> {
    let mut fields = Fields::of(body);
    let (count, _padding) = (fields.u32()?, fields.u32()?);
    (count as usize == descriptors).then(|| (0..count).map(|_| region(&mut fields)).collect())?
}

/// The region of a message about one.
pub(crate) fn single_region(body: &[u8]) -> Option<FileRegion> {
    let mut fields = Fields::of(body);
    let _padding = fields.u64()?;
    region(&mut fields)
}

/// Which part of the configuration space is asked for.
pub(crate) fn config_range(body: &[u8]) -> Option<std::ops::Range<usize>> {
    let mut fields = Fields::of(body);
    let (offset, len) = (fields.u32()? as usize, fields.u32()? as usize);
    let end = offset.checked_add(len)?;
    (end <= CONFIG_SPACE_LEN).then_some(offset..end)
}

/// The memory for requests in flight: its bytes and where they begin in its file, and of how many queues with how many entries each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InflightFile {
    pub(crate) len: u64,
    pub(crate) offset: u64,
    pub(crate) queues: u16,
    pub(crate) size: u16,
}

impl InflightFile {
    pub(crate) fn decode(body: &[u8]) -> Option<Self> {
        let mut fields = Fields::of(body);
        let (len, offset) = (fields.u64()?, fields.u64()?);
        Some(Self { len, offset, queues: fields.u16()?, size: fields.u16()? })
    }

    pub(crate) fn encode(self) -> Vec<u8> {
        let long = [self.len, self.offset].map(u64::to_ne_bytes);
        let short = [self.queues, self.size].map(u16::to_ne_bytes);
        // As long as the structure is in C.
        [long.as_flattened(), short.as_flattened(), &[0; 4]].concat()
    }
}
