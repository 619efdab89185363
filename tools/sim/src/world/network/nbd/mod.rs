//! The client's side of the NBD protocol, without I/O: requests to bytes, and bytes to replies.
//!
//! It believes nothing: a reply that nobody waits for, data out of place, or a chunk that the negotiated style does not know is a
//! panic, which breaks the story.

mod link;

use std::collections::BTreeMap;

use spillway_core::{Kind, Op, Request};
use spillway_export::nbd::wire::{
    self, ChunkHeader, HeaderStyle, OptionHeader, OptionReplyHeader, REPLY_FLAG_DONE, Reader, ReplyHeader,
    RequestHeader, chunk, cmd, cmd_flag, errno, opt, rep,
};

pub(crate) use link::Link;

/// How replies look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Simple,
    Structured,
    Extended,
}

/// What a client says first: its flags, the style of replies, and which export it wants.
fn hello(style: Style, export: &str) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    let mut option = |option, data: &[u8]| {
        bytes.extend(OptionHeader { option, len: data.len() as u32 }.encode());
        bytes.extend(data);
    };
    match style {
        Style::Simple => {}
        Style::Structured => option(opt::STRUCTURED_REPLY, &[]),
        Style::Extended => option(opt::EXTENDED_HEADERS, &[]),
    }
    let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes(), &[0, 0]].concat();
    option(opt::GO, &name);
    bytes
}

/// Where a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Options,
    Transmission,
    /// The server does not have the export.
    Refused,
}

/// A request that was sent.
struct Sent {
    op: Op,
    offset: u64,
    data: Vec<u8>,
    /// Bytes of `data` that have come.
    filled: usize,
    error: u32,
}

/// A request is over: its result, and of a read the data.
pub(crate) type Completion = (Result<(), Kind>, Vec<u8>);

/// One connection, as its client knows it.
pub(crate) struct Connection {
    style: Style,
    stage: Stage,
    received: Vec<u8>,
    sent: BTreeMap<u64, Sent>,
    completed: BTreeMap<u64, Completion>,
    next: u64,
}

impl Connection {
    pub(crate) fn new(style: Style) -> Self {
        let (received, sent, completed) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        Self { style, stage: Stage::Greeting, received, sent, completed, next: 1 }
    }

    /// Whether requests may be sent.
    pub(crate) fn is_ready(&self) -> bool {
        self.stage == Stage::Transmission
    }

    /// Whether none ever may.
    pub(crate) fn is_refused(&self) -> bool {
        self.stage == Stage::Refused
    }

    /// Notes a request, and gives its cookie and its bytes. `payload` is as long as what is written or read.
    pub(crate) fn request(&mut self, request: &Request, payload: &[u8]) -> (u64, Vec<u8>) {
        let cookie = self.next;
        self.next += 1;
        let (command, payload) = match request.op {
            Op::Read => (cmd::READ, &[][..]),
            Op::Write => (cmd::WRITE, payload),
            Op::WriteZeroes => (cmd::WRITE_ZEROES, &[][..]),
            Op::Discard => (cmd::TRIM, &[][..]),
            Op::Flush => (cmd::FLUSH, &[][..]),
        };
        let announced = self.style == Style::Extended && request.op == Op::Write;
        let flags = [
            (request.flags.fua, cmd_flag::FUA),
            (request.flags.no_hole && request.op == Op::WriteZeroes, cmd_flag::NO_HOLE),
            (announced, cmd_flag::PAYLOAD_LEN),
        ];
        let flags = flags.into_iter().filter(|(on, _)| *on).fold(0, |flags, (_, flag)| flags | flag);
        let (offset, length) = (request.range.offset, request.range.len);
        let mut bytes = Vec::new();
        RequestHeader { flags, command, cookie, offset, length }.encode(self.headers(), &mut bytes);
        bytes.extend(payload);
        let data = if request.op == Op::Read { vec![0; length as usize] } else { Vec::new() };
        self.sent.insert(cookie, Sent { op: request.op, offset, data, filled: 0, error: 0 });
        (cookie, bytes)
    }

    fn headers(&self) -> HeaderStyle {
        if self.style == Style::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact }
    }

    /// The completion of a request, once it has come.
    pub(crate) fn take_completion(&mut self, cookie: u64) -> Option<Completion> {
        self.completed.remove(&cookie)
    }

    /// Takes bytes that the server has sent.
    pub(crate) fn receive(&mut self, bytes: &mut Vec<u8>) {
        self.received.append(bytes);
        while let Some(used) = self.take_one() {
            self.received.drain(..used);
        }
    }

    /// Takes the first whole structure of what was received, and says how long it is.
    fn take_one(&mut self) -> Option<usize> {
        match self.stage {
            Stage::Greeting => self.take_greeting(),
            Stage::Options => self.take_option_reply(),
            Stage::Transmission => self.take_reply(),
            Stage::Refused => None,
        }
    }

    fn take_greeting(&mut self) -> Option<usize> {
        let greeting = self.received.get(..18)?;
        assert_eq!(greeting, wire::greeting(3), "the greeting");
        self.stage = Stage::Options;
        Some(18)
    }

    fn take_option_reply(&mut self) -> Option<usize> {
        let header = self.received.get(..OptionReplyHeader::LEN)?;
        let header = OptionReplyHeader::decode(header).expect("a reply to an option");
        let len = OptionReplyHeader::LEN + header.len as usize;
        self.received.get(..len)?;
        match (header.option, header.reply) {
            (opt::GO, rep::ACK) => self.stage = Stage::Transmission,
            (opt::GO, rep::ERR_UNKNOWN | rep::ERR_SHUTDOWN) => self.stage = Stage::Refused,
            (_, rep::ACK | rep::INFO) => {}
            (option, reply) => panic!("option {option} is answered by {reply:#x}"),
        }
        Some(len)
    }

    fn take_reply(&mut self) -> Option<usize> {
        let longest = [16, 20, 32];
        let (header, len) = longest
            .into_iter()
            .filter_map(|len| self.received.get(..len))
            .find_map(ReplyHeader::decode)
            .or_else(|| {
                assert!(self.received.len() < 32, "what the server sends is no reply");
                None
            })?;
        match header {
            ReplyHeader::Simple { error, cookie } => self.take_simple(error, cookie, len),
            ReplyHeader::Chunk(header) => self.take_chunk(header, len),
        }
    }

    fn take_simple(&mut self, error: u32, cookie: u64, header_len: usize) -> Option<usize> {
        let sent = self.sent.get_mut(&cookie).expect("a reply to something asked");
        assert!(self.style != Style::Extended, "a simple reply among extended ones");
        let carries = sent.op == Op::Read && error == 0;
        assert!(!carries || self.style == Style::Simple, "data comes in chunks");
        let len = header_len + if carries { sent.data.len() } else { 0 };
        let data = self.received.get(header_len..len)?;
        sent.error = error;
        if carries {
            sent.data.copy_from_slice(data);
            sent.filled = data.len();
        }
        self.complete(cookie);
        Some(len)
    }

    fn take_chunk(&mut self, header: ChunkHeader, header_len: usize) -> Option<usize> {
        let styled = [(Style::Structured, 20), (Style::Extended, 32)].contains(&(self.style, header_len));
        assert!(styled, "a chunk of {header_len} bytes among {:?} replies", self.style);
        let len = header_len + header.length as usize;
        let payload = self.received.get(header_len..len)?;
        let sent = self.sent.get_mut(&header.cookie).expect("a chunk for something asked");
        sent.take(header.kind, &mut Reader(payload));
        if header.flags & REPLY_FLAG_DONE != 0 {
            self.complete(header.cookie);
        }
        Some(len)
    }

    fn complete(&mut self, cookie: u64) {
        let sent = self.sent.remove(&cookie).expect("it was sent");
        let result = if sent.error == 0 { Ok(()) } else { Err(kind(sent.error)) };
        assert!(result.is_err() || sent.filled == sent.data.len(), "a read with {} bytes", sent.filled);
        self.completed.insert(cookie, (result, sent.data));
    }
}

impl Sent {
    fn take(&mut self, kind: u16, payload: &mut Reader<'_>) {
        match kind {
            chunk::NONE => {}
            chunk::OFFSET_DATA => {
                let at = self.place(payload);
                let data = payload.0;
                self.data[at..at + data.len()].copy_from_slice(data);
                self.filled += data.len();
            }
            chunk::OFFSET_HOLE => {
                let at = self.place(payload);
                let len = payload.u32().expect("a hole has a length") as usize;
                self.data[at..at + len].fill(0);
                self.filled += len;
            }
            chunk::ERROR => self.error = payload.u32().expect("an error has a number"),
            _ => panic!("a chunk of type {kind} that nobody has asked for"),
        }
    }

    fn place(&self, payload: &mut Reader<'_>) -> usize {
        assert_eq!(self.op, Op::Read, "data for a request that wants none");
        let offset = payload.u64().expect("data has an offset");
        (offset - self.offset) as usize
    }
}

/// What a device has said, as far as the protocol's numbers tell.
fn kind(error: u32) -> Kind {
    match error {
        errno::EPERM => Kind::ReadOnly,
        errno::EIO => Kind::Io,
        errno::ENOMEM => Kind::OutOfMemory,
        errno::EINVAL => Kind::Invalid,
        errno::ENOSPC => Kind::NoSpace,
        errno::EOVERFLOW => Kind::Overflow,
        errno::ENOTSUP => Kind::NotSupported,
        errno::ESHUTDOWN => Kind::ShuttingDown,
        _ => panic!("error {error} is none of the protocol's"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::ByteRange;

    /// A connection in transmission.
    fn connection(style: Style) -> Connection {
        let mut connection = Connection::new(style);
        connection.stage = Stage::Transmission;
        connection
    }

    fn read(offset: u64, len: u64) -> Request {
        Request::bare(Op::Read, ByteRange::new(offset, len))
    }

    #[test]
    fn a_reply_in_any_pieces_completes_its_request_alone() {
        let data = [7; 8];
        let chunk = |cookie| {
            let header = ChunkHeader { flags: 0, kind: chunk::OFFSET_DATA, cookie, offset: 0, length: 16 };
            let done = ChunkHeader { flags: REPLY_FLAG_DONE, kind: chunk::NONE, length: 0, ..header };
            [&header.structured()[..], &512u64.to_be_bytes(), &data, &done.structured()].concat()
        };
        let simple = |cookie| [&wire::simple_reply(0, cookie)[..], &data].concat();
        for piece in 1..70 {
            for (style, reply) in
                [(Style::Simple, &simple as &dyn Fn(u64) -> Vec<u8>), (Style::Structured, &chunk)]
            {
                let mut connection = connection(style);
                let cookies = [0, 1].map(|_| connection.request(&read(512, 8), &[0; 8]).0);
                for bytes in reply(cookies[1]).chunks(piece) {
                    assert_eq!(connection.take_completion(cookies[1]), None);
                    connection.receive(&mut bytes.to_vec());
                }
                assert_eq!(connection.take_completion(cookies[0]), None);
                assert_eq!(connection.take_completion(cookies[1]), Some((Ok(()), data.to_vec())));
            }
        }
    }

    #[test]
    fn an_error_is_the_device_s() {
        let mut connection = connection(Style::Simple);
        let (cookie, _) = connection.request(&Request::flush(), &[]);
        connection.receive(&mut wire::simple_reply(errno::ENOSPC, cookie).to_vec());
        assert_eq!(connection.take_completion(cookie), Some((Err(Kind::NoSpace), vec![])));
    }

    #[test]
    #[should_panic(expected = "a reply to something asked")]
    fn a_reply_that_nobody_waits_for_breaks_the_story() {
        connection(Style::Simple).receive(&mut wire::simple_reply(0, 9).to_vec());
    }
}
