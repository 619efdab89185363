//! Replies of servers, good ones in all forms and bad ones.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use spillway_core::buffer::Shared;
use spillway_core::session::Output;
use spillway_core::sync::Mutex;
use spillway_core::{ByteRange, Extent, IoBuf, Job, Kind};

use super::super::call::{Answered, Body, JournalEffect, PendingCall};
use super::super::journal::{Content, ReplayJournal};
use super::super::negotiation::Described;
use super::super::payload::Payload;
use super::super::sent::ProtocolError;
use super::super::transmission::Transmission;
use crate::nbd::wire::{self, ChunkHeader, REPLY_FLAG_DONE, chunk, cmd, cmd_flag, errno};

struct Conversation {
    transmission: Transmission,
    journal: Mutex<ReplayJournal>,
    out: Output,
}

fn described(structured: bool) -> Described {
    Described { structured, allocation: Some(3), ..Described::NOTHING }
}

impl Conversation {
    fn new(structured: bool) -> Self {
        let journal = Mutex::new(ReplayJournal::default());
        Self { transmission: Transmission::new(described(structured)), journal, out: Output::default() }
    }

    /// Sends a request; all of it leaves at once. Cookies count from 1.
    fn ask(&mut self, command: u16, range: ByteRange, body: Body) -> Job<Answered> {
        self.ask_with(0, command, range, body)
    }

    fn ask_with(&mut self, flags: u16, command: u16, range: ByteRange, body: Body) -> Job<Answered> {
        let (call, answering) = PendingCall::new(command, flags, range, body, JournalEffect::Nothing);
        self.transmission.send(call, Duration::ZERO, &mut self.out);
        self.out.advance(self.out.len());
        answering
    }

    fn read(&mut self, offset: u64, len: u64) -> Job<Answered> {
        let body = Body::Read { buf: IoBuf::copy_of(&vec![0xee; len as usize]), start: 0 };
        self.ask(cmd::READ, ByteRange::new(offset, len), body)
    }

    fn status(&mut self, count_max: usize) -> Job<Answered> {
        let body = Body::Status { extents: Vec::new(), count_max };
        self.ask(cmd::BLOCK_STATUS, ByteRange::new(4096, 1 << 20), body)
    }

    fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let _turn = spillway_core::work::turn(u32::MAX);
        let (used, result) = self.transmission.receive(bytes, &self.out, &self.journal);
        assert!(result.is_err() || used == bytes.len());
        result
    }
}

fn answered(answering: &mut Job<Answered>) -> Option<Answered> {
    match Pin::new(answering).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answered) => answered,
        Poll::Pending => None,
    }
}

fn bytes_of(answering: &mut Job<Answered>) -> Vec<u8> {
    let Answered { result, body, .. } = answered(answering).expect("it is answered");
    assert_eq!(result, Ok(()));
    match body {
        Body::Read { buf, .. } => buf.to_vec(),
        _ => panic!("the answer to a read has its buffer"),
    }
}

fn chunk_of(cookie: u64, kind: u16, flags: u16, payload: &[&[u8]]) -> Vec<u8> {
    let payload = payload.concat();
    let header = ChunkHeader { flags, kind, cookie, offset: 0, length: payload.len() as u64 };
    [&header.structured()[..], &payload].concat()
}

fn filled(cookie: u64, flags: u16, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk_of(cookie, chunk::OFFSET_DATA, flags, &[&offset.to_be_bytes(), bytes])
}

fn hole(cookie: u64, flags: u16, offset: u64, len: u32) -> Vec<u8> {
    chunk_of(cookie, chunk::OFFSET_HOLE, flags, &[&offset.to_be_bytes(), &len.to_be_bytes()])
}

fn failure(cookie: u64, error: u32) -> Vec<u8> {
    chunk_of(cookie, chunk::ERROR, REPLY_FLAG_DONE, &[&error.to_be_bytes(), &3u16.to_be_bytes(), b"why"])
}

#[test]
fn a_read_is_put_together_from_chunks_in_any_order_and_pieces_of_any_length() {
    let all = [
        filled(2, 0, 1004, &[7; 4]),
        hole(1, 0, 500, 3),
        filled(2, 0, 1000, &[5; 4]),
        filled(1, REPLY_FLAG_DONE, 503, &[1, 2]),
        hole(2, 0, 1008, 1),
        chunk_of(2, chunk::NONE, REPLY_FLAG_DONE, &[]),
    ]
    .concat();
    for piece in [1, 2, 3, 4, 5, 11, 19, 20, 27, 28, 29, 200] {
        let mut conversation = Conversation::new(true);
        let (mut first, mut second) = (conversation.read(500, 5), conversation.read(1000, 9));
        all.chunks(piece).for_each(|part| conversation.receive(part).unwrap());
        assert_eq!(bytes_of(&mut first), [0, 0, 0, 1, 2]);
        assert_eq!(bytes_of(&mut second), [5, 5, 5, 5, 7, 7, 7, 7, 0]);
        assert_eq!(conversation.transmission.pending(), 0);
    }
}

#[test]
fn simple_replies_answer_too() {
    let mut conversation = Conversation::new(false);
    let (mut read, mut flush) =
        (conversation.read(0, 3), conversation.ask(cmd::FLUSH, ByteRange::new(0, 0), Body::Nothing));
    conversation
        .receive(&[&wire::simple_reply(0, 2)[..], &wire::simple_reply(0, 1), &[1, 2, 3]].concat())
        .unwrap();
    assert_eq!(bytes_of(&mut read), [1, 2, 3]);
    assert_eq!(answered(&mut flush).unwrap().result, Ok(()));
    let mut refused = conversation.read(0, 3);
    conversation.receive(&wire::simple_reply(errno::ENOSPC, 3)).unwrap();
    assert_eq!(answered(&mut refused).unwrap().result, Err(Kind::NoSpace));
}

/// After acknowledged writes of eight times `byte` from each place on.
fn written(writes: &[(u64, u8)]) -> Conversation {
    let conversation = Conversation::new(true);
    for &(at, byte) in writes {
        let bytes = Arc::new(Shared::new(IoBuf::copy_of(&[byte; 8]), IoBuf::empty()));
        let content = Content::Bytes(Payload { bytes, start: 0 });
        drop(conversation.journal.lock().record(ByteRange::new(at, 8), Some(content)));
    }
    conversation
}

#[test]
fn a_read_shows_what_no_flush_has_covered_whatever_the_server_has_of_it() {
    let mut conversation = written(&[(996, 7), (1006, 8), (1014, 9)]);
    let body = Body::Read { buf: IoBuf::copy_of(&[0xee; 12]), start: 2 };
    let mut read = conversation.ask(cmd::READ, ByteRange::new(1000, 10), body);
    conversation.receive(&filled(1, REPLY_FLAG_DONE, 1000, &[1; 10])).unwrap();
    assert_eq!(bytes_of(&mut read), [0xee, 0xee, 7, 7, 7, 7, 1, 1, 8, 8, 8, 8]);
}

/// A failed flush, which FUA is too, may have lost something: that does not pass.
#[test]
fn lack_of_room_passes_where_nothing_was_to_be_durable() {
    for (command, flags, kind) in [
        (cmd::WRITE, 0, Kind::Exhausted),
        (cmd::WRITE_ZEROES, cmd_flag::NO_HOLE, Kind::Exhausted),
        (cmd::TRIM, 0, Kind::Exhausted),
        (cmd::WRITE, cmd_flag::FUA, Kind::NoSpace),
        (cmd::FLUSH, 0, Kind::NoSpace),
    ] {
        for reply in [wire::simple_reply(errno::ENOSPC, 1).to_vec(), failure(1, errno::ENOSPC)] {
            let mut conversation = Conversation::new(true);
            let mut refused = conversation.ask_with(flags, command, ByteRange::new(0, 512), Body::Nothing);
            conversation.receive(&reply).unwrap();
            assert_eq!(answered(&mut refused).unwrap().result, Err(kind), "command {command}, flags {flags}");
        }
    }
}

#[test]
fn an_error_ends_a_request_whatever_came_before() {
    let mut conversation = Conversation::new(true);
    let mut read = conversation.read(0, 8);
    conversation.receive(&[filled(1, 0, 0, &[1; 4]), failure(1, errno::EIO)].concat()).unwrap();
    assert_eq!(answered(&mut read).unwrap().result, Err(Kind::Io));
}

#[test]
fn extents_are_taken_as_many_as_are_wanted() {
    let status = |extents: &[(u32, u32)]| {
        let all = extents.iter().flat_map(|(len, state)| [len.to_be_bytes(), state.to_be_bytes()].concat());
        let (id, all) = (3u32.to_be_bytes(), all.collect::<Vec<_>>());
        chunk_of(1, chunk::BLOCK_STATUS, REPLY_FLAG_DONE, &[&id, &all])
    };
    let listed = |answering: &mut Job<Answered>| match answered(answering).unwrap().body {
        Body::Status { extents, .. } => extents,
        _ => panic!("the answer has extents"),
    };
    let sent = status(&[(4096, 0), (4096, 3), (8192, 2), (4096, 1)]);
    let mut conversation = Conversation::new(true);
    let mut all = conversation.status(10);
    conversation.receive(&sent).unwrap();
    let zero = Extent { len: 8192, hole: false, zero: true };
    assert_eq!(listed(&mut all), [Extent::stored(4096), Extent::hole(4096), zero, Extent::stored(4096)]);
    let mut conversation = Conversation::new(true);
    let mut two = conversation.status(2);
    conversation.receive(&sent).unwrap();
    assert_eq!(listed(&mut two).len(), 2);
}

#[test]
fn what_no_flush_has_covered_is_stored_whatever_the_server_says() {
    let mut conversation = written(&[(4092, 1), (4100, 2), (8192, 3)]);
    let mut all = conversation.status(10);
    let hole = [3u32, 8192, 3].map(u32::to_be_bytes).concat();
    conversation.receive(&chunk_of(1, chunk::BLOCK_STATUS, REPLY_FLAG_DONE, &[&hole])).unwrap();
    let Body::Status { extents, .. } = answered(&mut all).expect("it is answered").body else {
        panic!("the answer has extents")
    };
    let [first, second] = [4084, 4088].map(Extent::hole);
    assert_eq!(extents, [Extent::stored(12), first, Extent::stored(8), second]);
}

/// Half of its answer came by a connection that was lost.
#[test]
fn extents_that_are_asked_for_again_are_those_of_the_last_answer() {
    let status = |cookie, flags, extents: &[(u32, u32)]| {
        let all = extents.iter().flat_map(|(len, state)| [len.to_be_bytes(), state.to_be_bytes()].concat());
        chunk_of(cookie, chunk::BLOCK_STATUS, flags, &[&3u32.to_be_bytes(), &all.collect::<Vec<_>>()])
    };
    let (mut lost, mut next) = (Conversation::new(true), Conversation::new(true));
    let mut answering = lost.status(10);
    lost.receive(&status(1, 0, &[(4096, 0)])).unwrap();
    let call = lost.transmission.take_all().next().expect("it is not answered");
    next.transmission.send(call, Duration::ZERO, &mut next.out);
    next.out.advance(next.out.len());
    next.receive(&status(1, REPLY_FLAG_DONE, &[(4096, 0), (8192, 3)])).unwrap();
    let Body::Status { extents, .. } = answered(&mut answering).expect("it is answered").body else {
        panic!("the answer has extents")
    };
    assert_eq!(extents, [Extent::stored(4096), Extent::hole(8192)]);
}

/// A server may be without `base:allocation` when it is there again: each connection knows what it has.
#[test]
fn all_is_stored_where_a_connection_has_no_extents() {
    for structured in [true, false] {
        let transmission = Transmission::new(Described { structured, ..Described::NOTHING });
        let mut conversation = Conversation { transmission, ..Conversation::new(true) };
        let mut all = conversation.status(10);
        let Body::Status { extents, .. } = answered(&mut all).expect("nobody has to be asked").body else {
            panic!("the answer has extents")
        };
        assert_eq!(extents, [Extent::stored(1 << 20)]);
        assert_eq!(conversation.transmission.pending(), 0);
    }
}

#[test]
fn what_the_protocol_forbids_ends_the_connection() {
    let other_context = chunk_of(1, chunk::BLOCK_STATUS, REPLY_FLAG_DONE, &[&9u32.to_be_bytes(), &[0; 8]]);
    let empty_extent = chunk_of(1, chunk::BLOCK_STATUS, REPLY_FLAG_DONE, &[&3u32.to_be_bytes(), &[0; 8]]);
    for (why, bytes) in [
        ("wrong magic", vec![0; 16]),
        ("to no request", wire::simple_reply(0, 9).to_vec()),
        ("to no request", filled(0, REPLY_FLAG_DONE, 0, &[0; 8])),
        ("no block status", wire::simple_reply(0, 1).to_vec()),
        ("not of its request", filled(1, REPLY_FLAG_DONE, 4096, &[0; 8])),
        ("not of its request", filled(2, 0, 0, &[0; 9])),
        ("not of its request", chunk_of(2, 99, 0, &[&[0; 6]])),
        ("too short", chunk_of(2, chunk::OFFSET_DATA, 0, &[&[0; 7]])),
        ("too short", chunk_of(2, chunk::ERROR, REPLY_FLAG_DONE, &[&[0; 5]])),
        ("out of place", filled(2, 0, 99, &[0; 4])),
        ("past its request", filled(2, 0, 105, &[0; 4])),
        ("past its request", hole(2, 0, 100, 0)),
        ("past its request", hole(2, 0, u64::MAX, 8)),
        ("come twice", [filled(2, 0, 100, &[0; 4]), filled(2, 0, 103, &[0; 4])].concat()),
        ("come twice", [hole(2, 0, 104, 4), filled(2, 0, 100, &[0; 5])].concat()),
        ("incomplete", [filled(2, 0, 101, &[0; 7]), chunk_of(2, chunk::NONE, REPLY_FLAG_DONE, &[])].concat()),
        ("incomplete", hole(2, REPLY_FLAG_DONE, 100, 7)),
        ("incomplete", other_context),
        ("is empty", empty_extent),
        ("no number", failure(2, 0)),
        ("shutting down", failure(2, errno::ESHUTDOWN)),
    ] {
        let mut conversation = Conversation::new(true);
        let (mut status, mut read) = (conversation.status(4), conversation.read(100, 8));
        let broken = conversation.receive(&bytes).expect_err(why);
        assert!(broken.contains(why), "{broken} instead of {why}");
        assert!(answered(&mut status).is_none() && answered(&mut read).is_none(), "{why}: it is answered");
        assert_eq!(conversation.transmission.take_all().count(), 2);
        assert_eq!(
            answered(&mut read).unwrap().result,
            Err(Kind::ShuttingDown),
            "a call that is dropped ends"
        );
    }
}

#[test]
fn a_read_is_not_taken_in_pieces_without_end() {
    let mut conversation = Conversation::new(true);
    let _read = conversation.read(0, 1 << 20);
    let mut pieces = (0..1 << 12).rev().map(|piece| filled(1, 0, 2 * piece, &[1]));
    let taken = pieces.position(|piece| conversation.receive(&piece).is_err());
    assert_eq!(taken, Some(1024), "pieces are taken");
}

#[test]
fn a_write_is_not_answered_before_it_was_sent() {
    let mut conversation = Conversation::new(true);
    let bytes = Arc::new(Shared::new(IoBuf::zeroed(4096), IoBuf::empty()));
    let body = Body::Write(Payload { bytes: bytes.clone(), start: 0 });
    let (call, mut answering) =
        PendingCall::new(cmd::WRITE, 0, ByteRange::new(0, 4096), body, JournalEffect::Nothing);
    conversation.transmission.send(call, Duration::ZERO, &mut conversation.out);
    conversation.out.advance(conversation.out.len() - 1);
    let reply = chunk_of(1, chunk::NONE, REPLY_FLAG_DONE, &[]);
    assert!(conversation.receive(&reply).unwrap_err().contains("before it was sent"));
    assert!(answered(&mut answering).is_none());

    let mut conversation = Conversation::new(true);
    let mut answering =
        conversation.ask(cmd::WRITE, ByteRange::new(0, 4096), Body::Write(Payload { bytes, start: 0 }));
    conversation.receive(&reply).unwrap();
    assert_eq!(answered(&mut answering).unwrap().result, Ok(()));
}
