//! Replies, in the style that the client negotiated, and the errno of each failure.

use spillway_core::session::Output;
use spillway_core::{Extent, IoBuf, Kind};

use super::ticket::Ticket;
use super::wire::{self, ChunkHeader, REPLY_FLAG_DONE, STATE_HOLE, STATE_ZERO, chunk, errno};

/// Data below this length, in bytes, is copied behind its header: a buffer takes a page at least, so that many unsent short
/// replies would hold far more memory than is counted.
const COPIED_LEN_MAX: usize = 2048;

/// The one metadata context that is served has this id.
pub(super) const BASE_ALLOCATION_ID: u32 = 1;

/// Why a request fails: the protocol's number, and words for readers of the client's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) error: u32,
    pub(super) message: &'static str,
}

impl Refusal {
    pub(super) const SHUTTING_DOWN: Self = Self::new(errno::ESHUTDOWN, "the server is stopping");

    pub(super) const fn new(error: u32, message: &'static str) -> Self {
        Self { error, message }
    }

    pub(super) const fn invalid(message: &'static str) -> Self {
        Self::new(errno::EINVAL, message)
    }
}

/// The protocol has eight numbers for all failures of devices: this is the one place that chooses.
impl From<Kind> for Refusal {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Invalid | Kind::Range | Kind::TooLong => Self::invalid("the device refused the request"),
            Kind::NoSpace => Self::new(errno::ENOSPC, "the device is full or a memory limit is reached"),
            Kind::Exhausted => Self::new(errno::ENOSPC, "the origin has no room"),
            Kind::OutOfMemory => Self::new(errno::ENOMEM, "the system refused memory"),
            Kind::Io => Self::new(errno::EIO, "the disk below failed"),
            Kind::Corrupt => Self::new(errno::EIO, "the data is not what was written"),
            Kind::Unreachable => Self::new(errno::EIO, "the server of the origin cannot be reached"),
            Kind::Busy | Kind::NotFound | Kind::NoDevice | Kind::NotBlock | Kind::NotFolder => {
                Self::new(errno::EIO, "the device is not ready")
            }
            Kind::NotSupported => Self::new(errno::ENOTSUP, "the device cannot do this"),
            Kind::ReadOnly | Kind::Denied => Self::new(errno::EPERM, "the device does not take writes"),
            Kind::ShuttingDown => Self::SHUTTING_DOWN,
            Kind::Overflow => Self::new(errno::EOVERFLOW, "the answer does not fit a reply"),
        }
    }
}

/// How replies look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyStyle {
    /// The default.
    Simple,
    /// After `OPT_STRUCTURED_REPLY`: chunks, but simple replies where there is nothing to say.
    Structured,
    /// After `OPT_EXTENDED_HEADERS`: chunks only, with headers of 32 bytes.
    Extended,
}

impl ReplyStyle {
    /// The request succeeded and has no data to show.
    #[inline]
    pub(super) fn success(self, ticket: &Ticket, out: &mut Output) {
        match self {
            ReplyStyle::Simple | ReplyStyle::Structured => out.push(&wire::simple_reply(0, ticket.cookie)),
            ReplyStyle::Extended => self.chunk(chunk::NONE, ticket, 0, out),
        }
    }

    /// A read succeeded.
    #[inline]
    pub(super) fn content(self, ticket: &Ticket, buf: IoBuf, out: &mut Output) {
        // The client takes as many bytes as it asked for, and what follows for the next reply.
        assert_eq!(buf.len() as u64, ticket.length, "a read is answered with a buffer of another length");
        if self == ReplyStyle::Simple {
            out.push(&wire::simple_reply(0, ticket.cookie));
        } else {
            self.chunk(chunk::OFFSET_DATA, ticket, 8 + buf.len() as u64, out);
            out.push(&ticket.offset.to_be_bytes());
        }
        if buf.len() < COPIED_LEN_MAX {
            out.push(&buf);
        } else {
            out.push_buffer(buf);
        }
    }

    /// The request failed.
    pub(super) fn refusal(self, ticket: &Ticket, refusal: Refusal, out: &mut Output) {
        let Refusal { error, message } = refusal;
        if self == ReplyStyle::Simple {
            return out.push(&wire::simple_reply(error, ticket.cookie));
        }
        let message_len = message.len() as u16;
        self.chunk(chunk::ERROR, ticket, 6 + u64::from(message_len), out);
        out.push(&error.to_be_bytes());
        out.push(&message_len.to_be_bytes());
        out.push(message.as_bytes());
    }

    /// What the range of a `CMD_BLOCK_STATUS` holds: `extents` lie one after the other from its start and within it.
    pub(super) fn block_status(self, ticket: &Ticket, extents: &[Extent], out: &mut Output) {
        let mut payload = BASE_ALLOCATION_ID.to_be_bytes().to_vec();
        if self == ReplyStyle::Extended {
            payload.extend((extents.len() as u32).to_be_bytes());
            for extent in extents {
                payload.extend(extent.len.to_be_bytes());
                payload.extend(u64::from(state(extent)).to_be_bytes());
            }
            self.chunk(chunk::BLOCK_STATUS_EXT, ticket, payload.len() as u64, out);
        } else {
            for extent in extents {
                let len = u32::try_from(extent.len).expect("an extent lies within its compact request");
                payload.extend(len.to_be_bytes());
                payload.extend(state(extent).to_be_bytes());
            }
            self.chunk(chunk::BLOCK_STATUS, ticket, payload.len() as u64, out);
        }
        out.push(&payload);
    }

    #[inline]
    fn chunk(self, kind: u16, ticket: &Ticket, length: u64, out: &mut Output) {
        let Ticket { cookie, offset, .. } = *ticket;
        let header = ChunkHeader { flags: REPLY_FLAG_DONE, kind, cookie, offset, length };
        match self {
            ReplyStyle::Extended => out.push(&header.extended()),
            _ => out.push(&header.structured()),
        }
    }
}

fn state(extent: &Extent) -> u32 {
    (u32::from(extent.hole) * STATE_HOLE) | (u32::from(extent.zero) * STATE_ZERO)
}

/// The part of `extents`, which start `head` bytes before a range of `len` bytes, that lies within it; at least one extent.
pub(super) fn cut(extents: &[Extent], head: u64, len: u64) -> Vec<Extent> {
    let (mut skip, mut left) = (head, len);
    let mut list = Vec::with_capacity(extents.len());
    for extent in extents {
        let skipped = skip.min(extent.len);
        let len = (extent.len - skipped).min(left);
        Extent { len, ..*extent }.append_to(&mut list);
        skip -= skipped;
        left -= len;
    }
    if list.is_empty() {
        list.push(Extent::stored(len));
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_cut_to_the_range_that_was_asked_for() {
        let extents = [Extent::hole(4096), Extent::stored(4096), Extent::hole(1 << 40)];
        assert_eq!(cut(&extents, 0, 4096), [Extent::hole(4096)]);
        assert_eq!(cut(&extents, 512, 4096), [Extent::hole(3584), Extent::stored(512)]);
        assert_eq!(cut(&extents, 4096, 8192), [Extent::stored(4096), Extent::hole(4096)]);
        assert_eq!(cut(&[], 512, 1024), [Extent::stored(1024)]);
        assert_eq!(cut(&extents[..1], 4096, 512), [Extent::stored(512)]);
    }

    #[test]
    fn every_failure_has_a_number_of_the_protocol() {
        for kind in Kind::ALL {
            let Refusal { error, message } = kind.into();
            assert!([1, 5, 12, 22, 28, 75, 95, 108].contains(&error), "{kind:?}");
            assert!(!message.is_empty());
        }
    }
}
