//! What is kept of a request until its reply, and what comes of it.

use std::sync::Arc;

use spillway_core::{IoBuf, Kind, Op};

use super::tree::Volume;

/// What is kept of a request until its reply.
pub(super) enum RequestTicket {
    /// Of a disk file.
    Disk(Ticket),
    /// Of a control file.
    Control(ControlTicket),
}

/// What is kept of a request about a control file.
pub(super) struct ControlTicket {
    pub(super) unique: u64,
    /// Bytes that were written, where it was not read.
    pub(super) written: Option<u32>,
}

/// What is kept of a request about a disk file.
pub(super) struct Ticket {
    pub(super) unique: u64,
    pub(super) volume: Arc<Volume>,
    /// What its device is asked for; absent where holes are looked for.
    pub(super) op: Option<Op>,
}

/// Where what was looked for begins; an error without a kind where there is no more of it.
pub(super) type SeekResult = Result<u64, Option<Kind>>;

/// What a control file shows, nothing where it was written to; or an errno.
pub(super) type ControlResult = Result<IoBuf, i32>;

/// What comes of a request that no device answers by itself.
pub(super) enum Other {
    Seek(SeekResult),
    Control(ControlResult),
}
