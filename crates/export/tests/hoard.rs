//! Clients that make a server hold all they can, with every byte that is allocated counted.
//!
//! An allocator that counts knows no list of what is charged. It counts for the whole process: one test at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::task::{Context, Waker};

use spillway_core::buffer::Buffers;
use spillway_core::session::{Intake, Session};
use spillway_core::sync::Mutex;
use spillway_core::{
    Aligned, Answer, BlockDevice, ByteRange, Extent, Geometry, Kind, Op, Request, Submission,
};
use spillway_counting::{Bytes, Counting};
use spillway_export::nbd::wire::{HeaderStyle, OptionHeader, RequestHeader, cmd, cmd_flag, opt};
use spillway_export::nbd::{CONNECTION_BYTES, Config, NbdSession};
use spillway_export::{Export, Exports};

#[global_allocator]
static MEMORY: Counting<Bytes> = Counting(Bytes::new());

static ALONE: Mutex<()> = Mutex::new(());

const SIZE: u64 = 1 << 30;
const LIMIT: u64 = 16 << 20;
const CLIENTS: u64 = 100;

/// Answers reads at once and everything else never; every other block is a hole.
struct Device;

impl BlockDevice for Device {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(SIZE)
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::Read => Answer::Done(request.answer(Ok(()))),
            // As large as a layer's futures are.
            _ => Answer::pending(async move {
                let state = [0u8; 1024];
                std::future::pending::<()>().await;
                assert!(state.len() < request.range.len as usize);
                request.answer(Ok(()))
            }),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let count = count_max.min((range.len / 4096) as usize);
        let list = (0..count).map(|n| if n % 2 == 0 { Extent::hole(4096) } else { Extent::stored(4096) });
        Answer::Done(Ok(list.collect()))
    }
}

struct Client {
    session: NbdSession,
    /// What the server has not taken yet.
    at: usize,
}

impl Client {
    /// Offers what is left of `bytes` until the server takes no more; reads nothing.
    fn press(&mut self, bytes: &[u8]) {
        loop {
            let before = self.at;
            if !matches!(self.session.intake(), Intake::Bytes) {
                return;
            }
            self.at += self.session.receive(&bytes[self.at..(self.at + 16_384).min(bytes.len())]);
            self.session.poll(&mut Context::from_waker(Waker::noop()));
            if self.at == before {
                return;
            }
        }
    }

    fn read_all(&mut self) {
        let len = self.session.output().len();
        self.session.output().advance(len);
        self.session.poll(&mut Context::from_waker(Waker::noop()));
    }
}

fn option(option: u32, data: &[u8]) -> Vec<u8> {
    [&OptionHeader { option, len: data.len() as u32 }.encode()[..], data].concat()
}

/// Client flags, and the export by its name.
fn hello() -> Vec<u8> {
    [&3u32.to_be_bytes()[..], &option(opt::EXPORT_NAME, b"disk")].concat()
}

fn requests(command: u16, count: u64, length: u64) -> Vec<u8> {
    let mut bytes = hello();
    for cookie in 0..count {
        let offset = cookie * length % (SIZE / 2);
        RequestHeader { flags: 0, command, cookie, offset, length }.encode(HeaderStyle::Compact, &mut bytes);
    }
    bytes
}

/// Has clients send `bytes` and read nothing: what they make the server allocate stays within the buffers' limit and the
/// charges of connections. Then `after` goes on with them.
fn hoard(clients: u64, bytes: &[u8], after: impl FnOnce(&mut [Client])) {
    let _alone = ALONE.lock();
    Buffers::new(LIMIT).enter();
    let exports = Arc::new(Exports::new());
    exports.add(Export::new("disk", Aligned::new(Arc::new(Device))).unwrap()).unwrap();
    let share =
        Config { held_bytes_max: LIMIT as usize / 4, payload_len_max: LIMIT as u32 / 4, ..Config::default() };
    let before = MEMORY.0.live();
    let connect = |_| Client { session: NbdSession::new(exports.clone(), share), at: 0 };
    let mut all: Vec<_> = (0..clients).map(connect).collect();
    for _ in 0..3 {
        for client in &mut all {
            client.press(bytes);
            let held = MEMORY.0.live() as i64 - before as i64;
            let most = (LIMIT + clients * CONNECTION_BYTES) as i64;
            assert!(held <= most, "{clients} clients hold {held} bytes, {most} are charged");
        }
    }
    after(&mut all);
}

/// Clients that read get everything, while the others still hold what they can.
fn each_gets_everything(clients: &mut [Client], bytes: &[u8]) {
    let clients = &mut clients[..5];
    for _ in 0..100_000 {
        if clients.iter().all(|client| client.at == bytes.len()) {
            return;
        }
        clients.iter_mut().for_each(|client| {
            client.read_all();
            client.press(bytes);
        });
    }
    panic!("a client that reads is not served");
}

#[test]
fn short_reads_whose_replies_nobody_takes() {
    let bytes = requests(cmd::READ, 16_384, 512);
    hoard(CLIENTS, &bytes, |clients| each_gets_everything(clients, &bytes));
}

#[test]
fn reads_whose_replies_take_more_memory_than_they_are_long() {
    let bytes = requests(cmd::READ, 8192, 2560);
    hoard(CLIENTS, &bytes, |clients| each_gets_everything(clients, &bytes));
}

#[test]
fn refusals_that_nobody_takes() {
    let bytes = requests(cmd::READ, 50_000, 1);
    hoard(CLIENTS, &bytes, |clients| each_gets_everything(clients, &bytes));
}

#[test]
fn zeroing_that_takes_long() {
    hoard(4, &requests(cmd::WRITE_ZEROES, 900, 1 << 20), |_| {});
    hoard(CLIENTS, &requests(cmd::WRITE_ZEROES, 1024, 1 << 20), |_| {});
}

#[test]
fn merges_that_take_long() {
    let mut bytes = hello();
    for cookie in 0..1024 {
        let (command, length) = (cmd::WRITE_ZEROES, 4096);
        let offset = cookie * 65_536 + 512;
        RequestHeader { flags: cmd_flag::NO_HOLE, command, cookie, offset, length }
            .encode(HeaderStyle::Compact, &mut bytes);
    }
    hoard(CLIENTS, &bytes, |_| {});
}

#[test]
fn half_a_write_of_each() {
    let mut bytes = requests(cmd::WRITE, 1, 16 << 10);
    bytes.extend([1; 5000]);
    hoard(CLIENTS, &bytes, |_| {});
    let mut bytes = requests(cmd::WRITE, 1, 2 << 20);
    bytes.extend([1; 5000]);
    hoard(CLIENTS, &bytes, |_| {});
}

#[test]
fn half_an_option_of_each() {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(&OptionHeader { option: opt::INFO, len: 16 << 10 }.encode());
    bytes.extend(vec![0; (16 << 10) - 1]);
    hoard(CLIENTS, &bytes, |_| {});
}

#[test]
fn options_whose_replies_nobody_takes() {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    (0..4000).for_each(|_| bytes.extend(option(opt::LIST, &[])));
    hoard(CLIENTS, &bytes, |clients| each_gets_everything(clients, &bytes));
}

#[test]
fn extents_that_nobody_takes() {
    let context =
        [&4u32.to_be_bytes()[..], b"disk", &1u32.to_be_bytes(), &15u32.to_be_bytes(), b"base:allocation"];
    let mut bytes = 3u32.to_be_bytes().to_vec();
    bytes.extend(option(opt::STRUCTURED_REPLY, &[]));
    bytes.extend(option(opt::SET_META_CONTEXT, &context.concat()));
    bytes.extend(option(opt::EXPORT_NAME, b"disk"));
    bytes.extend(&requests(cmd::BLOCK_STATUS, 1500, 64 << 20)[hello().len()..]);
    hoard(CLIENTS, &bytes, |clients| each_gets_everything(clients, &bytes));
}
