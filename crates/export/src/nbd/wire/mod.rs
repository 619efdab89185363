//! The bytes of the protocol: its numbers, and a codec for each fixed structure, in both directions.
//!
//! Everything is big-endian. Decoding never panics: fixed structures take an array of their length, what has a variable
//! length is read through [`Reader`], which gives `None` past the end. Names and numbers are those of the NBD project's
//! public protocol description (doc/proto.md), without the `NBD_` prefix.

mod numbers;

pub use numbers::*;

/// Reads numbers and strings from bytes, with `None` past the end.
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// The next `len` bytes.
    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk()?;
        self.0 = tail;
        Some(*head)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length of 32 bits before it.
    pub fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// Whether everything was read.
    pub fn at_end(&self) -> bool {
        self.0.is_empty()
    }
}

/// Fills a fixed structure from its start.
struct Writer<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Writer<N> {
    const fn new() -> Self {
        Self { bytes: [0; N], at: 0 }
    }

    #[inline(always)]
    fn put<const M: usize>(mut self, field: [u8; M]) -> Self {
        self.bytes[self.at..self.at + M].copy_from_slice(&field);
        self.at += M;
        self
    }

    #[inline(always)]
    fn end(self) -> [u8; N] {
        assert!(self.at == N, "a structure of {N} bytes has fields of {}", self.at);
        self.bytes
    }
}

/// The server's greeting in fixed newstyle.
pub fn greeting(flags: u16) -> [u8; 18] {
    Writer::new().put(INIT_MAGIC.to_be_bytes()).put(OPTION_MAGIC.to_be_bytes()).put(flags.to_be_bytes()).end()
}

/// What starts an option of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// See [`opt`].
    pub option: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionHeader {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// `None` for a wrong magic number.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u64()?;
        let header = Self { option: reader.u32()?, len: reader.u32()? };
        (magic == OPTION_MAGIC).then_some(header)
    }

    /// The bytes of the header.
    pub fn encode(self) -> [u8; Self::LEN] {
        Writer::new()
            .put(OPTION_MAGIC.to_be_bytes())
            .put(self.option.to_be_bytes())
            .put(self.len.to_be_bytes())
            .end()
    }
}

/// What starts a reply to an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionReplyHeader {
    /// The option replied to.
    pub option: u32,
    /// See [`rep`].
    pub reply: u32,
    /// Bytes of data that follow.
    pub len: u32,
}

impl OptionReplyHeader {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// `None` for a wrong magic number or too few bytes.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u64()?;
        let header = Self { option: reader.u32()?, reply: reader.u32()?, len: reader.u32()? };
        (magic == OPTION_REPLY_MAGIC).then_some(header)
    }

    /// The bytes of the header.
    pub fn encode(self) -> [u8; Self::LEN] {
        Writer::new()
            .put(OPTION_REPLY_MAGIC.to_be_bytes())
            .put(self.option.to_be_bytes())
            .put(self.reply.to_be_bytes())
            .put(self.len.to_be_bytes())
            .end()
    }
}

/// Whether headers are compact (32-bit lengths) or extended (64-bit lengths, all of 32 bytes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// The default.
    Compact,
    /// After `OPT_EXTENDED_HEADERS`.
    Extended,
}

impl HeaderStyle {
    /// Bytes of a request header.
    pub const fn request_len(self) -> usize {
        match self {
            HeaderStyle::Compact => 28,
            HeaderStyle::Extended => RequestHeader::LEN_MAX,
        }
    }
}

/// What starts a request of the transmission phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// See [`cmd_flag`].
    pub flags: u16,
    /// See [`cmd`].
    pub command: u16,
    /// The client's own mark, which the reply repeats.
    pub cookie: u64,
    /// Bytes from the start of the export.
    pub offset: u64,
    /// Bytes of the payload that follows, or of the range.
    pub length: u64,
}

impl RequestHeader {
    /// Bytes of the longer header.
    pub const LEN_MAX: usize = 32;

    /// Decodes a header of `style.request_len()` bytes; `None` for a wrong magic number or too few bytes.
    #[inline]
    pub fn decode(style: HeaderStyle, bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        let (flags, command) = (reader.u16()?, reader.u16()?);
        let (cookie, offset) = (reader.u64()?, reader.u64()?);
        let (expected, length) = match style {
            HeaderStyle::Compact => (REQUEST_MAGIC, u64::from(reader.u32()?)),
            HeaderStyle::Extended => (EXTENDED_REQUEST_MAGIC, reader.u64()?),
        };
        (magic == expected).then_some(Self { flags, command, cookie, offset, length })
    }

    /// Appends the header; a compact one carries the lower 32 bits of the length.
    pub fn encode(self, style: HeaderStyle, bytes: &mut Vec<u8>) {
        let magic = match style {
            HeaderStyle::Compact => REQUEST_MAGIC,
            HeaderStyle::Extended => EXTENDED_REQUEST_MAGIC,
        };
        bytes.extend(magic.to_be_bytes());
        bytes.extend(self.flags.to_be_bytes());
        bytes.extend(self.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(self.offset.to_be_bytes());
        match style {
            HeaderStyle::Compact => bytes.extend((self.length as u32).to_be_bytes()),
            HeaderStyle::Extended => bytes.extend(self.length.to_be_bytes()),
        }
    }
}

/// A simple reply: `error` is 0 or of [`errno`].
#[inline]
pub fn simple_reply(error: u32, cookie: u64) -> [u8; 16] {
    Writer::new()
        .put(SIMPLE_REPLY_MAGIC.to_be_bytes())
        .put(error.to_be_bytes())
        .put(cookie.to_be_bytes())
        .end()
}

/// What starts a structured or an extended reply chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// 0 or [`REPLY_FLAG_DONE`].
    pub flags: u16,
    /// See [`chunk`].
    pub kind: u16,
    /// The request's mark.
    pub cookie: u64,
    /// The request's offset; not sent in a structured reply.
    pub offset: u64,
    /// Bytes of payload that follow.
    pub length: u64,
}

impl ChunkHeader {
    /// The header of a structured reply chunk. The payload is below 4 GiB.
    #[inline]
    pub fn structured(self) -> [u8; 20] {
        let length = u32::try_from(self.length).expect("no reply chunk is as long as 4 GiB");
        Writer::new()
            .put(STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(self.flags.to_be_bytes())
            .put(self.kind.to_be_bytes())
            .put(self.cookie.to_be_bytes())
            .put(length.to_be_bytes())
            .end()
    }

    /// The header of an extended reply chunk.
    #[inline]
    pub fn extended(self) -> [u8; 32] {
        Writer::new()
            .put(EXTENDED_REPLY_MAGIC.to_be_bytes())
            .put(self.flags.to_be_bytes())
            .put(self.kind.to_be_bytes())
            .put(self.cookie.to_be_bytes())
            .put(self.offset.to_be_bytes())
            .put(self.length.to_be_bytes())
            .end()
    }
}

/// What starts a reply of the transmission phase, as a client reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyHeader {
    /// A simple reply; data follows a successful read.
    Simple {
        /// 0 or of [`errno`].
        error: u32,
        /// The request's mark.
        cookie: u64,
    },
    /// A structured or extended chunk; its payload follows.
    Chunk(ChunkHeader),
}

impl ReplyHeader {
    /// Decodes the header that `bytes` start with, and says how long it is. `None` for a wrong magic number or too few
    /// bytes.
    pub fn decode(bytes: &[u8]) -> Option<(Self, usize)> {
        let mut reader = Reader(bytes);
        let magic = reader.u32()?;
        if magic == SIMPLE_REPLY_MAGIC {
            return Some((Self::Simple { error: reader.u32()?, cookie: reader.u64()? }, 16));
        }
        let (flags, kind, cookie) = (reader.u16()?, reader.u16()?, reader.u64()?);
        let (offset, length, len) = match magic {
            STRUCTURED_REPLY_MAGIC => (0, u64::from(reader.u32()?), 20),
            EXTENDED_REPLY_MAGIC => (reader.u64()?, reader.u64()?, 32),
            _ => return None,
        };
        Some((Self::Chunk(ChunkHeader { flags, kind, cookie, offset, length }), len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_survive_the_trip_in_both_styles() {
        let header = RequestHeader { flags: 1, command: 2, cookie: 3, offset: 4, length: 5 };
        for style in [HeaderStyle::Compact, HeaderStyle::Extended] {
            let mut bytes = Vec::new();
            header.encode(style, &mut bytes);
            assert_eq!(bytes.len(), style.request_len());
            assert_eq!(RequestHeader::decode(style, &bytes), Some(header));
            for len in 0..bytes.len() {
                assert_eq!(RequestHeader::decode(style, &bytes[..len]), None);
            }
            bytes[0] ^= 1;
            assert_eq!(RequestHeader::decode(style, &bytes), None);
        }
    }

    #[test]
    fn options_survive_the_trip() {
        let header = OptionHeader { option: 7, len: 9 };
        assert_eq!(OptionHeader::decode(&header.encode()), Some(header));
        assert_eq!(OptionHeader::decode(&header.encode()[..15]), None);
        let reply = OptionReplyHeader { option: 7, reply: rep::ERR_UNSUP, len: 0 };
        assert_eq!(OptionReplyHeader::decode(&reply.encode()), Some(reply));
        assert_eq!(OptionReplyHeader::decode(&[0; 20]), None);
    }

    #[test]
    fn replies_survive_the_trip() {
        let simple = ReplyHeader::Simple { error: 5, cookie: 77 };
        assert_eq!(ReplyHeader::decode(&simple_reply(5, 77)), Some((simple, 16)));
        let chunk = ChunkHeader { flags: 1, kind: chunk::ERROR, cookie: 8, offset: 0, length: 6 };
        assert_eq!(ReplyHeader::decode(&chunk.structured()), Some((ReplyHeader::Chunk(chunk), 20)));
        let chunk = ChunkHeader { offset: 1 << 40, length: 1 << 33, ..chunk };
        assert_eq!(ReplyHeader::decode(&chunk.extended()), Some((ReplyHeader::Chunk(chunk), 32)));
        assert_eq!(ReplyHeader::decode(&[0; 64]), None);
    }

    #[test]
    fn a_reader_stops_at_the_end() {
        let mut reader = Reader(&[0, 0, 0, 9, 1]);
        assert_eq!(reader.string(), None);
        assert!(Reader(&[0; 7]).u64().is_none());
        let mut reader = Reader(&[0, 0, 0, 1, 65]);
        assert_eq!(reader.string(), Some(&[65][..]));
        assert!(reader.at_end());
    }
}
