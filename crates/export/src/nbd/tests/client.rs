//! A client and its driver in one: it sends, drives the session as an event loop would, and reads replies.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Context;

use spillway_core::Extent;
use spillway_core::contract::Wakes;
use spillway_core::session::{Intake, Session};

pub(super) use super::super::reply::ReplyStyle as Style;
use super::super::wire::{
    self, ChunkHeader, HeaderStyle, OptionHeader, OptionReplyHeader, Reader, ReplyHeader, RequestHeader,
    chunk, cmd, cmd_flag, opt, rep,
};
use super::super::{Config, NbdSession};
use crate::Exports;

/// A reply, whatever it looked like on the wire.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Got {
    pub(super) cookie: u64,
    pub(super) error: u32,
    pub(super) data: Vec<u8>,
    pub(super) extents: Vec<Extent>,
}

pub(super) struct Client {
    pub(super) session: NbdSession,
    pub(super) received: VecDeque<u8>,
    /// Sent by the client, not yet taken by the session.
    pub(super) in_transit: VecDeque<u8>,
    /// Whether the client reads what the session sends.
    pub(super) reads: bool,
    /// Bytes that arrive at once.
    pub(super) piece: usize,
    /// Payload windows that the session lent.
    pub(super) windows: usize,
    /// Of the session's task.
    pub(super) wakes: Arc<Wakes>,
    pub(super) style: Style,
    lengths: HashMap<u64, u64>,
    next_cookie: u64,
}

impl Client {
    /// A client that has just connected.
    pub(super) fn connect(exports: &Arc<Exports>) -> Self {
        Self::with_config(exports, Config::default())
    }

    pub(super) fn with_config(exports: &Arc<Exports>, config: Config) -> Self {
        Self {
            session: NbdSession::new(exports.clone(), config),
            received: VecDeque::new(),
            in_transit: VecDeque::new(),
            reads: true,
            piece: 1 << 16,
            windows: 0,
            wakes: Arc::default(),
            style: Style::Simple,
            lengths: HashMap::new(),
            next_cookie: 100,
        }
    }

    /// A client behind the greeting.
    pub(super) fn greeted(exports: &Arc<Exports>) -> Self {
        Self::connect(exports).greet()
    }

    pub(super) fn greet(mut self) -> Self {
        self.send(&3u32.to_be_bytes());
        assert_eq!(self.take(18), wire::greeting(3));
        self
    }

    /// A client of the only export, with `base:allocation` selected where the style allows.
    pub(super) fn transmitting(exports: &Arc<Exports>, style: Style) -> Self {
        Self::greeted(exports).into_transmission(style)
    }

    pub(super) fn into_transmission(mut self, style: Style) -> Self {
        match style {
            Style::Simple => {}
            Style::Structured => assert_eq!(self.option(opt::STRUCTURED_REPLY, &[]), [(rep::ACK, vec![])]),
            Style::Extended => assert_eq!(self.option(opt::EXTENDED_HEADERS, &[]), [(rep::ACK, vec![])]),
        }
        self.style = style;
        if style != Style::Simple {
            let data = queries("", &["base:allocation"]);
            assert_eq!(self.option(opt::SET_META_CONTEXT, &data).last(), Some(&(rep::ACK, vec![])));
        }
        assert_eq!(self.option(opt::GO, &query_payload("", &[])).last(), Some(&(rep::ACK, vec![])));
        self
    }

    /// Sends bytes and lets everything happen that can.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        self.in_transit.extend(bytes);
        self.drive();
    }

    /// Runs the driver's loop until nothing moves.
    pub(super) fn drive(&mut self) {
        loop {
            let now = |client: &Self| (client.in_transit.len(), client.received.len(), client.windows);
            let before = (now(self), self.wake_count());
            if !self.session.finished() && !self.in_transit.is_empty() {
                self.deliver();
            }
            self.session.poll(&mut Context::from_waker(&self.wakes.waker()));
            if self.reads {
                self.read();
            }
            if before == (now(self), self.wake_count()) {
                return;
            }
        }
    }

    fn deliver(&mut self) {
        let count = self.piece.min(self.in_transit.len());
        match self.session.intake() {
            Intake::Pause => {}
            Intake::Bytes => {
                let piece: Vec<u8> = self.in_transit.iter().take(count).copied().collect();
                let used = self.session.receive(&piece);
                self.in_transit.drain(..used);
            }
            Intake::Payload(mut window) => {
                self.windows += 1;
                let count = count.min(window.len());
                window.iter_mut().zip(self.in_transit.drain(..count)).for_each(|(to, from)| *to = from);
                self.session.returned(window, count);
            }
        }
    }

    fn read(&mut self) {
        self.received.extend(self.session.output().take());
    }

    /// The next bytes that the session sent.
    pub(super) fn take(&mut self, len: usize) -> Vec<u8> {
        assert!(self.received.len() >= len, "{} bytes of {len} came", self.received.len());
        self.received.drain(..len).collect()
    }

    pub(super) fn send_option(&mut self, option: u32, data: &[u8]) {
        let header = OptionHeader { option, len: data.len() as u32 }.encode();
        self.send(&[&header[..], data].concat());
    }

    /// Negotiates one option: the replies up to the acknowledgement or error.
    pub(super) fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(option, data);
        self.option_replies(option)
    }

    pub(super) fn option_replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let header = OptionReplyHeader::decode(&self.take(20)).expect("a reply to an option");
            assert_eq!(header.option, option);
            let data = self.take(header.len as usize);
            replies.push((header.reply, data));
            if header.reply == rep::ACK || header.reply >= 1 << 31 {
                return replies;
            }
        }
    }

    /// The bytes of a request, with the flag for a payload where the style needs it.
    pub(super) fn request(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        length: u64,
    ) -> (u64, RequestHeader) {
        self.next_cookie += 1;
        let cookie = self.next_cookie;
        let announces = self.style == Style::Extended && command == cmd::WRITE;
        let flags = flags | if announces { cmd_flag::PAYLOAD_LEN } else { 0 };
        self.lengths.insert(cookie, length);
        (cookie, RequestHeader { flags, command, cookie, offset, length })
    }

    pub(super) fn header_style(&self) -> HeaderStyle {
        if self.style == Style::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact }
    }

    /// Sends a request without payload.
    pub(super) fn ask(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> u64 {
        let (cookie, header) = self.request(command, flags, offset, length);
        let mut bytes = Vec::new();
        header.encode(self.header_style(), &mut bytes);
        self.send(&bytes);
        cookie
    }

    pub(super) fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let (cookie, header) = self.request(cmd::WRITE, flags, offset, data.len() as u64);
        let mut bytes = Vec::new();
        header.encode(self.header_style(), &mut bytes);
        bytes.extend(data);
        self.send(&bytes);
        cookie
    }

    /// The next reply; panics where none has come.
    pub(super) fn reply(&mut self) -> Got {
        let bytes = self.received.make_contiguous();
        let (header, len) = ReplyHeader::decode(bytes).expect("a reply");
        self.take(len);
        match header {
            ReplyHeader::Simple { error, cookie } => self.simple(error, cookie),
            ReplyHeader::Chunk(header) => self.chunk(header, len),
        }
    }

    /// The error of the next reply, which is about `cookie`.
    pub(super) fn error_of(&mut self, cookie: u64) -> u32 {
        let got = self.reply();
        assert_eq!(got.cookie, cookie);
        assert!(got.error == 0 || got.data.is_empty());
        got.error
    }

    fn simple(&mut self, error: u32, cookie: u64) -> Got {
        assert_ne!(self.style, Style::Extended, "extended replies only");
        let len = self.lengths.remove(&cookie).expect("a reply to something asked");
        let read = self.style == Style::Simple && self.was_read(cookie) && error == 0;
        let data = if read { self.take(len as usize) } else { Vec::new() };
        Got { cookie, error, data, extents: Vec::new() }
    }

    /// See [`READS`].
    fn was_read(&self, cookie: u64) -> bool {
        cookie >= READS
    }

    fn chunk(&mut self, header: ChunkHeader, len: usize) -> Got {
        assert_eq!(len, if self.style == Style::Extended { 32 } else { 20 });
        assert_eq!(header.flags, wire::REPLY_FLAG_DONE, "one chunk each");
        let wanted = self.lengths.remove(&header.cookie).expect("a reply to something asked");
        let payload = self.take(header.length as usize);
        let mut reader = Reader(&payload);
        let mut got = Got { cookie: header.cookie, error: 0, data: Vec::new(), extents: Vec::new() };
        match header.kind {
            chunk::NONE => {}
            chunk::OFFSET_DATA => {
                reader.u64().unwrap();
                got.data = reader.take(wanted as usize).unwrap().to_vec();
            }
            chunk::ERROR => {
                got.error = reader.u32().unwrap();
                let len = reader.u16().unwrap();
                assert!(std::str::from_utf8(reader.take(len.into()).unwrap()).is_ok());
            }
            chunk::BLOCK_STATUS => {
                assert_eq!(reader.u32(), Some(1));
                while !reader.at_end() {
                    got.extents.push(extent(reader.u32().unwrap().into(), reader.u32().unwrap().into()));
                }
            }
            chunk::BLOCK_STATUS_EXT => {
                assert_eq!(reader.u32(), Some(1));
                for _ in 0..reader.u32().unwrap() {
                    got.extents.push(extent(reader.u64().unwrap(), reader.u64().unwrap()));
                }
            }
            other => panic!("a chunk of type {other}"),
        }
        assert!(reader.at_end());
        got
    }

    /// Asks for data.
    pub(super) fn read_at(&mut self, flags: u16, offset: u64, length: u64) -> u64 {
        self.next_cookie += READS;
        let cookie = self.ask(cmd::READ, flags, offset, length);
        self.next_cookie -= READS;
        cookie
    }

    /// Reads and waits.
    pub(super) fn fetch(&mut self, offset: u64, length: u64) -> Vec<u8> {
        let cookie = self.read_at(0, offset, length);
        let got = self.reply();
        assert_eq!((got.cookie, got.error, got.data.len() as u64), (cookie, 0, length));
        got.data
    }

    pub(super) fn wake_count(&self) -> usize {
        self.wakes.count()
    }
}

/// Cookies from here on are those of reads: a simple reply does not say whether data follows.
const READS: u64 = 1 << 40;

fn extent(len: u64, flags: u64) -> Extent {
    assert!(len > 0 && flags < 4);
    Extent { len, hole: flags & 1 != 0, zero: flags & 2 != 0 }
}

/// The data of `OPT_INFO` and `OPT_GO`.
pub(super) fn query_payload(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    wanted.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

/// The data of the options on metadata contexts.
pub(super) fn queries(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()
}
