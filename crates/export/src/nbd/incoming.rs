//! Where a client is in its stream of requests; a header and the payload of a write while they arrive.

use spillway_core::IoBuf;

use super::reply::Refusal;
use super::ticket::Ticket;
use super::wire::RequestHeader;

/// Payloads from this length on, in bytes, are received where they will stay ...
const DIRECT_LEN_MIN: usize = 64 << 10;

/// ... as long as this much of them is missing: below it a copy costs less than a system call.
const DIRECT_REST_MIN: usize = 16 << 10;

/// Where in the stream we are.
pub(super) enum StreamPosition {
    /// At a request's header.
    Header,
    /// In a payload.
    Payload(Incoming),
    /// In a payload whose buffer the driver has.
    Lent(Ticket, usize),
    /// In a payload that nobody wants: bytes left, and the refusal of its request, which follows it. Clients do not look for a reply
    /// to what they still send.
    Skip(u64, Option<(Ticket, Refusal)>),
    /// Behind the last request: nothing is taken any more.
    End,
}

/// The beginning of a header.
#[derive(Default)]
pub(super) struct PartialHeader {
    bytes: [u8; RequestHeader::LEN_MAX],
    len: usize,
}

impl PartialHeader {
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes what of `bytes` belongs to a header of `len` bytes: how many these are, and the header if it is whole then.
    pub(super) fn fill(&mut self, len: usize, bytes: &[u8]) -> (usize, Option<[u8; RequestHeader::LEN_MAX]>) {
        assert!(self.len < len, "{} bytes of a header of {len} wait for more", self.len);
        let used = (len - self.len).min(bytes.len());
        self.bytes[self.len..self.len + used].copy_from_slice(&bytes[..used]);
        self.len += used;
        if self.len < len {
            return (used, None);
        }
        self.len = 0;
        (used, Some(self.bytes))
    }
}

/// A write whose payload is arriving.
pub(super) struct Incoming {
    pub(super) ticket: Ticket,
    pub(super) filled: usize,
    buf: IoBuf,
}

impl Incoming {
    /// A write of which `filled` bytes are in `buf`, which is as long as the write.
    pub(super) fn new(ticket: Ticket, buf: IoBuf, filled: usize) -> Self {
        assert!(buf.len() as u64 == ticket.length && filled <= buf.len(), "a buffer of another write");
        Self { ticket, filled, buf }
    }

    /// Bytes still to come.
    pub(super) fn missing(&self) -> usize {
        self.buf.len() - self.filled
    }

    /// Copies what it can use of `bytes`, and returns how many that were.
    #[inline]
    pub(super) fn fill(&mut self, bytes: &[u8]) -> usize {
        let used = self.missing().min(bytes.len());
        self.buf[self.filled..self.filled + used].copy_from_slice(&bytes[..used]);
        self.filled += used;
        used
    }

    /// The buffer with the missing part as its window, where it is worth receiving into. Without it this is an empty
    /// shell, to be replaced when the buffer comes back.
    pub(super) fn lend(&mut self) -> Option<IoBuf> {
        if self.buf.len() < DIRECT_LEN_MIN || self.missing() < DIRECT_REST_MIN {
            return None;
        }
        let mut buf = std::mem::take(&mut self.buf);
        buf.narrow(self.filled, buf.len() - self.filled);
        Some(buf)
    }

    /// The write that is here whole.
    pub(super) fn into_parts(self) -> (Ticket, IoBuf) {
        assert!(self.missing() == 0, "a write is submitted with its whole payload");
        (self.ticket, self.buf)
    }
}
