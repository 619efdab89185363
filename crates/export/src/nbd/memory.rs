//! What a client can make the server hold, and who pays for it.
//!
//! The rule: memory that a client can make grow is counted before it is taken; where none is left the client waits, and
//! what it has in flight or unsent lets it go on as it completes.
//!
//! | memory | counted where | without room |
//! | --- | --- | --- |
//! | buffers of reads and writes | the limit on buffers, in whole buffers | the stream waits at the request, in turn |
//! | unsent replies | the same, as buffers: data where it lies, headers and short data in pages | no further request is taken |
//! | pending requests | the same, [`REQUEST_BYTES`](crate::pending::REQUEST_BYTES) each, in steps | no further request is taken |
//! | extents of a `CMD_BLOCK_STATUS` | the same, [`EXTENTS_BYTES`] while it is in flight | the reply is shorter |
//! | buffers for large receives | a workspace of all connections, a part of the memory for buffers, beside its limit | a small receive |
//! | what a withdrawn request leaves with the kernel | the limit on buffers, by the device, until it ends | none begins on the device |
//! | everything else of a connection | [`CONNECTION_BYTES`], which limits how many there may be | a new one is closed |
//!
//! A buffer for large receives is kept by its connection while a request in it waits for memory. So these have their own
//! share, which nobody waits for: taken from the limit on buffers, they would be what such requests wait for.
//!
//! One client holds at most [`Config::held_bytes_max`](super::Config::held_bytes_max) of the first four rows, or a single
//! request. What [`CONNECTION_BYTES`] covers, it gets however short memory is, so that every client proceeds: its first
//! [`REQUESTS_COVERED`](crate::pending::REQUESTS_COVERED) pending requests, and a buffer or replies of
//! [`ASSURED_BYTES`](crate::pipeline::ASSURED_BYTES).

/// Bytes that a connection is charged when it is admitted: the receive buffer (16 KiB), a page of output, what it gets
/// however short memory is, in a handshake one option's data and the replies to it instead, and its structures.
pub const CONNECTION_BYTES: u64 = 64 << 10;

/// Most extents in one reply to `CMD_BLOCK_STATUS`, and without memory for so many.
pub(super) const EXTENTS_MAX: usize = 2048;
pub(super) const EXTENTS_MIN: usize = 64;

/// Bytes of the most extents: the device's list, the client's part of it, and the reply.
pub(super) const EXTENTS_BYTES: u64 = 64 * EXTENTS_MAX as u64;

/// Longest data of an option, in bytes: an export's name and more queries than anybody has.
pub(super) const OPTION_LEN_MAX: u32 = 16 << 10;

/// Bytes of unsent replies from which on no further option is taken.
pub(super) const OPTIONS_UNSENT_MAX: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pending::{REQUEST_BYTES, REQUESTS_COVERED};
    use crate::pipeline::ASSURED_BYTES;
    use spillway_core::Extent;

    #[test]
    fn the_charges_cover_what_they_are_for() {
        const RECEIVE_AND_PAGE: u64 = (16 << 10) + 4096;
        let pending = REQUESTS_COVERED as u64 * REQUEST_BYTES;
        let structures = size_of::<crate::nbd::NbdSession>()
            + size_of::<super::super::transmission::Transmission>()
            + size_of::<super::super::handshake::Handshake>();
        assert!(structures < 4096, "{structures} bytes");
        assert!(RECEIVE_AND_PAGE + ASSURED_BYTES as u64 + pending + 8192 <= CONNECTION_BYTES);
        assert!(OPTION_LEN_MAX as usize + OPTIONS_UNSENT_MAX + 8192 <= ASSURED_BYTES + pending as usize);
        let lists = EXTENTS_MAX * (2 * size_of::<Extent>() + 16);
        assert!(lists as u64 <= EXTENTS_BYTES);
        let few = EXTENTS_MIN * (2 * size_of::<Extent>() + 16);
        assert!(few <= ASSURED_BYTES);
    }
}
