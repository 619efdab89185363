//! One request that was sent, and what has come of its reply.

use std::time::Duration;

use spillway_core::Kind;

use super::call::{Body, PendingCall};
use crate::nbd::wire;

/// Why a connection cannot go on, in words.
pub(super) type ProtocolError = &'static str;

/// Pieces of a reply, none next to another, at most: they take memory.
const PIECES_MAX: usize = 1024;

/// A request that is not answered.
pub(super) struct Sent {
    pub(super) call: PendingCall,
    /// When it was queued to be sent.
    pub(super) at: Duration,
    /// Bytes of the whole output up to the end of its payload.
    pub(super) payload_end: u64,
    /// What has come of a read, in ranges in order.
    pub(super) filled: Vec<(u64, u64)>,
    pub(super) failure: Option<Kind>,
}

impl Sent {
    /// Bytes `at..at + len` of a read have come: each once.
    pub(super) fn claim(&mut self, at: u64, len: u64) -> Result<(), ProtocolError> {
        let end = at.checked_add(len).filter(|&end| end <= self.call.range.len && len > 0);
        let end = end.ok_or("a chunk reaches past its request")?;
        let place = self.filled.partition_point(|&(start, _)| start < at);
        let after = place > 0 && self.filled[place - 1].1 > at;
        let before = self.filled.get(place).is_some_and(|&(start, _)| start < end);
        if after || before {
            return Err("bytes of a read come twice");
        }
        let follows = place > 0 && self.filled[place - 1].1 == at;
        let precedes = self.filled.get(place).is_some_and(|&(start, _)| start == end);
        match (follows, precedes) {
            (true, true) => {
                let (_, end) = self.filled.remove(place);
                self.filled[place - 1].1 = end;
            }
            (true, false) => self.filled[place - 1].1 = end,
            (false, true) => self.filled[place].0 = at,
            (false, false) if self.filled.len() == PIECES_MAX => {
                return Err("a read is answered in too many pieces");
            }
            (false, false) => self.filled.insert(place, (at, end)),
        }
        Ok(())
    }

    pub(super) fn target(&mut self, at: u64, len: u64) -> &mut [u8] {
        let Body::Read { buf, start } = &mut self.call.body else {
            unreachable!("the chunk was compared with its request")
        };
        let from = *start + at as usize;
        &mut buf[from..from + len as usize]
    }

    /// The server has answered with an error. One that is shutting down answers nothing: it is asked again once it is back.
    pub(super) fn fail(&mut self, error: u32) -> Result<(), ProtocolError> {
        let kind = match error {
            wire::errno::ESHUTDOWN => return Err("the server is shutting down"),
            0 => return Err("an error has no number"),
            error => Kind::of_errno(i32::try_from(error).unwrap_or(wire::errno::EIO as i32)),
        };
        let lacks_room = kind == Kind::NoSpace && self.call.only_changes();
        self.failure = Some(if lacks_room { Kind::Exhausted } else { kind });
        Ok(())
    }

    pub(super) fn is_complete(&self) -> bool {
        match &self.call.body {
            Body::Read { .. } => {
                let mut end = 0;
                self.filled.iter().all(|&(start, to)| std::mem::replace(&mut end, to) == start)
                    && end == self.call.range.len
            }
            Body::Status { extents, .. } => !extents.is_empty(),
            Body::Nothing | Body::Write(_) => true,
        }
    }
}
