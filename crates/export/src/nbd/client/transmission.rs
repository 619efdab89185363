//! Requests on their way to a server, and its replies.
//!
//! A reply may come in pieces of any size and in any order. Anything that the protocol does not allow ends the connection: an answer
//! to nothing, to a payload that is not sent yet, or with other bytes than were asked for.

use std::collections::BTreeMap;
use std::time::Duration;

use spillway_core::session::Output;
use spillway_core::sync::Mutex;
use spillway_core::{Extent, work};

use super::call::{Body, PendingCall};
use super::journal::ReplayJournal;
use super::negotiation::{Described, request};
use super::sent::{ProtocolError, Sent};
use crate::nbd::wire::{self, ChunkHeader, Reader, ReplyHeader, chunk};

/// Bytes of an error chunk that are of interest: the error, and how long its words are.
const ERROR_LEN: usize = 6;

/// Bytes of an extent of block status.
const DESCRIPTOR_LEN: usize = 8;

/// Longest reply chunk without data of a read, in bytes: an extent for each block of what may be asked for.
const CHUNK_LEN_MAX: u64 = 64 << 20;

/// What goes with an answer: how much of the output has been sent, and where a change is noted.
#[derive(Clone, Copy)]
struct Behind<'a> {
    sent: u64,
    journal: &'a Mutex<ReplayJournal>,
}

/// What is expected next. Each chunk has its header.
#[derive(Clone, Copy)]
enum Item {
    Header,
    /// The part of a chunk in front of its data.
    Front(ChunkHeader),
    /// Data of a read, and where the rest goes.
    Data {
        chunk: ChunkHeader,
        at: u64,
        left: u64,
    },
    Descriptor {
        chunk: ChunkHeader,
        left: u64,
    },
    Skip {
        chunk: ChunkHeader,
        left: u64,
    },
}

/// The requests of a connection that are not answered.
pub(super) struct Transmission {
    described: Described,
    /// By cookie, which is never used again: the first is the oldest.
    sent: BTreeMap<u64, Sent>,
    cookie: u64,
    /// Bytes of the whole output so far.
    pushed: u64,
    item: Item,
    collected: Vec<u8>,
    /// A call was answered that is none of the journal's.
    answered: bool,
}

impl Transmission {
    pub(super) fn new(described: Described) -> Self {
        Self {
            described,
            sent: BTreeMap::new(),
            cookie: 0,
            pushed: 0,
            item: Item::Header,
            collected: Vec::new(),
            answered: false,
        }
    }

    /// Whether a call was answered that is none of the journal's, since this was asked last.
    pub(super) fn takes_answer(&mut self) -> bool {
        std::mem::take(&mut self.answered)
    }

    /// Requests that are not answered.
    pub(super) fn pending(&self) -> usize {
        self.sent.len()
    }

    /// When the oldest request that is not answered was sent.
    pub(super) fn oldest(&self) -> Option<Duration> {
        self.sent.first_key_value().map(|(_, sent)| sent.at)
    }

    /// What is not answered, the oldest first.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = PendingCall> {
        std::mem::take(&mut self.sent).into_values().map(|sent| sent.call)
    }

    /// Appends the request to the output. Extents are asked for only where this connection has them.
    pub(super) fn send(&mut self, mut call: PendingCall, now: Duration, out: &mut Output) {
        if let Body::Status { extents, .. } = &mut call.body {
            // Some are there where a connection was lost in the midst of its answer.
            extents.clear();
            if self.described.allocation.is_none() {
                return call.answer_stored();
            }
        }
        self.cookie += 1;
        let header = request(call.command, call.flags, self.cookie, call.range.offset, call.range.len);
        let before = out.len();
        out.push(&header);
        if let Body::Write(payload) = &call.body {
            out.push_buffer(payload.view(call.range.len as usize));
        }
        self.pushed += (out.len() - before) as u64;
        call.first_sent.get_or_insert(now);
        let sent = Sent { call, at: now, payload_end: self.pushed, filled: Vec::new(), failure: None };
        let twice = self.sent.insert(self.cookie, sent);
        assert!(twice.is_none(), "cookie {} is used once", self.cookie);
    }

    /// Takes bytes, and answers calls. All are taken, until the connection is broken or the turn is spent.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        out: &Output,
        journal: &Mutex<ReplayJournal>,
    ) -> (usize, Result<(), ProtocolError>) {
        // What is in the output has not been sent.
        let sent = self.pushed - (out.len() as u64).min(self.pushed);
        let sent = Behind { sent, journal };
        let mut at = 0;
        while at < bytes.len() && !work::spent() {
            match self.step(&bytes[at..], sent) {
                Ok(used) => at += used,
                Err(why) => return (at, Err(why)),
            }
        }
        (at, Ok(()))
    }

    fn step(&mut self, bytes: &[u8], sent: Behind<'_>) -> Result<usize, ProtocolError> {
        match self.item {
            Item::Data { chunk, at, left } => self.fill(bytes, chunk, at, left, sent),
            Item::Skip { chunk, left } => {
                let used = left.min(bytes.len() as u64);
                self.item = Item::Skip { chunk, left: left - used };
                if used == left {
                    self.chunk_ends(chunk, sent)?;
                }
                Ok(used as usize)
            }
            _ => self.collect(bytes, sent),
        }
    }

    /// Collects an item of a known length, and acts on it once it is whole.
    fn collect(&mut self, bytes: &[u8], sent: Behind<'_>) -> Result<usize, ProtocolError> {
        let wanted = self.item_len()? - self.collected.len();
        let used = wanted.min(bytes.len());
        self.collected.extend_from_slice(&bytes[..used]);
        // The magic number says how long the header is.
        if self.collected.len() < self.item_len()? {
            return Ok(used);
        }
        let item = std::mem::take(&mut self.collected);
        match self.item {
            Item::Header => self.header(&item, sent)?,
            Item::Front(chunk) => self.front(chunk, &item, sent)?,
            Item::Descriptor { chunk, left } => self.descriptor(chunk, left, &item, sent)?,
            Item::Data { .. } | Item::Skip { .. } => unreachable!("these are not collected"),
        }
        self.collected = item;
        self.collected.clear();
        Ok(used)
    }

    fn item_len(&self) -> Result<usize, ProtocolError> {
        match self.item {
            Item::Header => match Reader(&self.collected).u32() {
                None => Ok(4),
                Some(wire::SIMPLE_REPLY_MAGIC) => Ok(16),
                Some(wire::STRUCTURED_REPLY_MAGIC) => Ok(20),
                Some(_) => Err("a reply has a wrong magic number"),
            },
            Item::Front(chunk) => Ok(front_len(chunk.kind)),
            Item::Descriptor { .. } => Ok(DESCRIPTOR_LEN),
            Item::Data { .. } | Item::Skip { .. } => Ok(0),
        }
    }

    fn header(&mut self, item: &[u8], sent: Behind<'_>) -> Result<(), ProtocolError> {
        work::spend(work::REQUEST);
        let (header, _) = ReplyHeader::decode(item).ok_or("a reply cannot be read")?;
        match header {
            ReplyHeader::Simple { error, cookie } => self.simple(error, cookie, sent),
            ReplyHeader::Chunk(_) if !self.described.structured => Err("a reply comes in chunks unasked"),
            ReplyHeader::Chunk(chunk) => self.chunk(chunk, sent),
        }
    }

    fn of(&mut self, cookie: u64) -> Result<&mut Sent, ProtocolError> {
        self.sent.get_mut(&cookie).ok_or("a reply is to no request")
    }

    /// A simple reply is like one chunk that is the last.
    fn simple(&mut self, error: u32, cookie: u64, sent: Behind<'_>) -> Result<(), ProtocolError> {
        let request = self.of(cookie)?;
        let len = request.call.range.len;
        let chunk = ChunkHeader {
            flags: wire::REPLY_FLAG_DONE,
            kind: chunk::OFFSET_DATA,
            cookie,
            offset: 0,
            length: len,
        };
        match request.call.body {
            _ if error != 0 => request.fail(error)?,
            Body::Read { .. } => {
                self.item = Item::Data { chunk, at: 0, left: len };
                return Ok(());
            }
            Body::Status { .. } => return Err("a reply has no block status"),
            Body::Nothing | Body::Write(_) => {}
        }
        self.chunk_ends(chunk, sent)
    }

    fn chunk(&mut self, chunk: ChunkHeader, sent: Behind<'_>) -> Result<(), ProtocolError> {
        let request = self.of(chunk.cookie)?;
        let front = front_len(chunk.kind) as u64;
        let behind = chunk.length.checked_sub(front).ok_or("a chunk is too short")?;
        let len = request.call.range.len;
        let fits = match (chunk.kind, &request.call.body) {
            (chunk::NONE | chunk::OFFSET_HOLE, Body::Read { .. }) => behind == 0,
            (chunk::OFFSET_DATA, Body::Read { .. }) => (1..=len).contains(&behind),
            (chunk::BLOCK_STATUS, Body::Status { .. }) => {
                behind > 0 && behind.is_multiple_of(DESCRIPTOR_LEN as u64) && behind <= CHUNK_LEN_MAX
            }
            (chunk::NONE, _) => behind == 0,
            (kind, _) => is_error(kind) && behind <= CHUNK_LEN_MAX,
        };
        if !fits {
            return Err("a chunk is not of its request");
        }
        self.item = Item::Front(chunk);
        // Nothing more may come that would have it looked at.
        if front == 0 { self.chunk_ends(chunk, sent) } else { Ok(()) }
    }

    fn front(&mut self, chunk: ChunkHeader, item: &[u8], sent: Behind<'_>) -> Result<(), ProtocolError> {
        let mut reader = Reader(item);
        let left = chunk.length - item.len() as u64;
        let allocation = self.described.allocation;
        let request = self.of(chunk.cookie)?;
        let range = request.call.range;
        let from = |offset: Option<u64>| {
            let at = offset
                .and_then(|offset| offset.checked_sub(range.offset))
                .ok_or("a chunk is out of place")?;
            Ok::<u64, ProtocolError>(at)
        };
        match chunk.kind {
            chunk::OFFSET_DATA => {
                let at = from(reader.u64())?;
                self.item = Item::Data { chunk, at, left };
                return Ok(());
            }
            chunk::OFFSET_HOLE => {
                let (at, len) = (from(reader.u64())?, u64::from(reader.u32().unwrap_or(0)));
                request.claim(at, len)?;
                request.target(at, len).fill(0);
                return self.chunk_ends(chunk, sent);
            }
            chunk::BLOCK_STATUS if reader.u32() == allocation => {
                self.item = Item::Descriptor { chunk, left };
                return Ok(());
            }
            chunk::BLOCK_STATUS => {}
            _ => request.fail(reader.u32().unwrap_or(0))?,
        }
        self.item = Item::Skip { chunk, left };
        if left == 0 { self.chunk_ends(chunk, sent) } else { Ok(()) }
    }

    fn fill(
        &mut self,
        bytes: &[u8],
        chunk: ChunkHeader,
        at: u64,
        left: u64,
        sent: Behind<'_>,
    ) -> Result<usize, ProtocolError> {
        let used = left.min(bytes.len() as u64);
        let request = self.of(chunk.cookie)?;
        request.claim(at, used)?;
        request.target(at, used).copy_from_slice(&bytes[..used as usize]);
        self.item = Item::Data { chunk, at: at + used, left: left - used };
        if used == left {
            self.chunk_ends(chunk, sent)?;
        }
        Ok(used as usize)
    }

    fn descriptor(
        &mut self,
        chunk: ChunkHeader,
        left: u64,
        item: &[u8],
        sent: Behind<'_>,
    ) -> Result<(), ProtocolError> {
        let mut reader = Reader(item);
        let (len, state) = reader.u32().zip(reader.u32()).ok_or("an extent is too short")?;
        if len == 0 {
            return Err("an extent is empty");
        }
        let request = self.of(chunk.cookie)?;
        let Body::Status { extents, count_max } = &mut request.call.body else {
            unreachable!("the chunk was compared with its request")
        };
        let (hole, zero) = (state & wire::STATE_HOLE != 0, state & wire::STATE_ZERO != 0);
        if extents.len() < *count_max {
            // A hole whose content is unknown tells nothing that may be relied on.
            Extent { len: len.into(), hole: hole && zero, zero }.append_to(extents);
        }
        let left = left - DESCRIPTOR_LEN as u64;
        self.item = Item::Descriptor { chunk, left };
        if left == 0 { self.chunk_ends(chunk, sent) } else { Ok(()) }
    }

    /// A chunk is over, and its request with the last one.
    fn chunk_ends(&mut self, chunk: ChunkHeader, sent: Behind<'_>) -> Result<(), ProtocolError> {
        self.item = Item::Header;
        if chunk.flags & wire::REPLY_FLAG_DONE == 0 {
            return Ok(());
        }
        let request = self.of(chunk.cookie)?;
        if request.payload_end > sent.sent {
            return Err("a request is answered before it was sent");
        }
        if request.failure.is_none() && !request.is_complete() {
            return Err("a reply is incomplete");
        }
        let Sent { call, failure, .. } = self.sent.remove(&chunk.cookie).expect("it was just found");
        self.answered |= !call.replayed;
        call.answer(failure.map_or(Ok(()), Err), sent.journal);
        Ok(())
    }
}

/// Bytes of a chunk in front of its data.
fn front_len(kind: u16) -> usize {
    match kind {
        chunk::NONE => 0,
        chunk::OFFSET_DATA => 8,
        chunk::OFFSET_HOLE => 12,
        chunk::BLOCK_STATUS => 4,
        _ => ERROR_LEN,
    }
}

fn is_error(kind: u16) -> bool {
    kind & 1 << 15 != 0
}
