//! Limits of one session.

use spillway_core::exchange::MessageFormat;

use super::wire::{Header, Portion};

/// Bytes in front of the payload of a WRITE.
pub(super) const PAYLOAD_OFFSET: usize = Header::LEN + Portion::LEN;

/// Longest payload of a request or reply in bytes, 256 pages, which is what Linux takes at most unless it is told otherwise.
pub(super) const PAYLOAD_LEN_MAX: u32 = 1 << 20;

/// Payloads from this length on stay in the buffer that they were received in, in bytes, where the driver has another.
pub(super) const STAYING_LEN_MIN: usize = 64 << 10;

/// What the kernel sends.
pub const MESSAGE_FORMAT: MessageFormat = MessageFormat {
    len_max: PAYLOAD_OFFSET + PAYLOAD_LEN_MAX as usize,
    payload_offset: PAYLOAD_OFFSET,
    kept_len_min: PAYLOAD_OFFSET + STAYING_LEN_MIN,
};

/// Asynchronous requests that the kernel has in flight at most, and from which on it calls the mount congested.
pub(super) const BACKGROUND_MAX: u32 = 512;
pub(super) const CONGESTED: u32 = 384;

/// Files of a kind that are open at most: one of a device, or the attributes of all.
pub(super) const OPEN_MAX: usize = 1024;

/// How many may be open before one more is refused; a quarter is kept for root and the user of the server.
pub(super) fn open_max(trusted: bool) -> usize {
    if trusted { OPEN_MAX } else { OPEN_MAX / 4 * 3 }
}

/// Limits of one session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Bytes of pending buffers from which on no further request is taken.
    pub held_bytes_max: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { held_bytes_max: 8 << 20 }
    }
}
