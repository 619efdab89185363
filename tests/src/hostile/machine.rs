//! Hostile front ends of vhost-user: messages and rings of any kind, in memory that changes under the server and may be cut off.
//!
//! No request reaches the range of the bystander: what could be taken for the header of a write, a discard or a zeroing lies in places of its
//! own, and names sectors far before that.

use std::fs::File;
use std::io::{IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::Chance;
use super::attack::Scene;
use super::speech::Stuck;

/// Bytes that a machine shares.
pub(super) const MEMORY: u64 = 4 << 20;

/// How long an answer to a message is waited for: the server has another front end, if none comes.
const PATIENCE: Duration = Duration::from_millis(200);

/// Entries of a queue, and where its parts lie.
const SIZE: u64 = 64;
const QUEUE_LEN: u64 = 0x4000;
const AVAILABLE_AT: u64 = 0x1000;
const USED_AT: u64 = 0x2000;
const QUEUES: u64 = 2;

/// Where headers, ranges, indirect tables and content lie; each header and range has 16 bytes.
const HEADERS_AT: u64 = 0x1_0000;
const RANGES_AT: u64 = 0x1_1000;
const TABLES_AT: u64 = 0x1_2000;
const CONTENT_AT: u64 = 0x2_0000;

/// Sectors of headers and ranges: below 256 MiB, and multiples of 16, so that none is the number of a kind of request.
const SECTORS: u64 = 1 << 19;

/// Where the monitor has the memory.
const USER: u64 = 0x7f00_0000_0000;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Messages of the protocol.
mod message {
    pub(super) const GET_FEATURES: u32 = 1;
    pub(super) const SET_FEATURES: u32 = 2;
    pub(super) const SET_MEM_TABLE: u32 = 5;
    pub(super) const SET_VRING_NUM: u32 = 8;
    pub(super) const SET_VRING_ADDR: u32 = 9;
    pub(super) const SET_VRING_BASE: u32 = 10;
    pub(super) const SET_VRING_KICK: u32 = 12;
    pub(super) const SET_VRING_CALL: u32 = 13;
    pub(super) const GET_PROTOCOL_FEATURES: u32 = 15;
    pub(super) const SET_PROTOCOL_FEATURES: u32 = 16;
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SET_INFLIGHT_FD: u32 = 32;
    pub(super) const END: u64 = 45;
}

/// A front end with its machine.
pub(super) struct Machine<'a> {
    scene: &'a Scene<'a>,
    chance: Chance,
    stream: UnixStream,
    memory: File,
    kicks: Vec<OwnedFd>,
    available: [u16; QUEUES as usize],
}

impl<'a> Machine<'a> {
    /// Connects; `None` where the system or the server does not let it.
    pub(super) fn connect(scene: &'a Scene<'a>, socket: &Path, chance: Chance) -> Option<Self> {
        let stream = UnixStream::connect(socket).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).ok()?;
        stream.set_write_timeout(Some(PATIENCE)).ok()?;
        let memory = File::from(memfd_create("machine", MemfdFlags::CLOEXEC).ok()?);
        ftruncate(&memory, MEMORY).ok()?;
        let event = |_| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok();
        let kicks = (0..QUEUES).map(event).collect::<Option<_>>()?;
        Some(Self { scene, chance, stream, memory, kicks, available: [0; QUEUES as usize] })
    }

    /// Says and asks for much, until the server has had enough.
    pub(super) fn play(mut self) {
        if self.chance.one_in(8) || self.set_up().is_ok() {
            let _ = self.harass();
        }
    }

    fn harass(&mut self) -> Result<(), Stuck> {
        for _ in 0..self.chance.spread(400) {
            match self.chance.below(64) {
                0 => self.say_anything()?,
                1 => self.scramble(),
                2 => self.start(self.chance.clone().below(QUEUES))?,
                3 if self.chance.one_in(8) => {
                    let len = self.chance.below(MEMORY);
                    let _ = ftruncate(&self.memory, len);
                }
                _ => self.request(),
            }
        }
        Ok(())
    }

    fn send(&self, request: u32, body: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Stuck> {
        let head = [request, 1, body.len() as u32].map(u32::to_ne_bytes);
        let bytes = [head.as_flattened(), body].concat();
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        if !files.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(files));
        }
        let sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
        if sent == Ok(bytes.len()) { Ok(()) } else { Err(Stuck) }
    }

    /// The number that answers a message without a body.
    fn ask(&mut self, request: u32) -> Result<u64, Stuck> {
        self.send(request, &[], &[])?;
        let mut answer = [0; 20];
        self.stream.read_exact(&mut answer).map_err(|_| Stuck)?;
        Ok(u64::from_ne_bytes(answer[12..].try_into().expect("of eight bytes")))
    }

    fn set_up(&mut self) -> Result<(), Stuck> {
        let wanted = self.ask(message::GET_FEATURES)? & (self.chance.bits() | 1 << 30 | 1 << 32);
        self.send(message::SET_FEATURES, &wanted.to_ne_bytes(), &[])?;
        let wanted = self.ask(message::GET_PROTOCOL_FEATURES)?;
        self.send(message::SET_PROTOCOL_FEATURES, &wanted.to_ne_bytes(), &[])?;
        let table = numbers(&[1, 0, MEMORY, USER, 0]);
        self.send(message::SET_MEM_TABLE, &table, &[self.memory.as_fd()])?;
        if self.chance.one_in(4) {
            let shape = QUEUES | SIZE << 16;
            self.send(message::SET_INFLIGHT_FD, &numbers(&[MEMORY, 0, shape]), &[self.memory.as_fd()])?;
        }
        (0..QUEUES).try_for_each(|queue| self.start(queue))?;
        // It answers after all of that, where nothing of it was refused.
        self.ask(message::GET_FEATURES)?;
        self.scene.machines.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Starts a queue, or tries to.
    fn start(&mut self, queue: u64) -> Result<(), Stuck> {
        self.available[queue as usize] = 0;
        let at = queue * QUEUE_LEN;
        self.put(at + AVAILABLE_AT, &[0; 4]);
        self.put(at + USED_AT, &[0; 4]);
        let pair = |number: u64| [queue as u32, number as u32].map(u32::to_ne_bytes).concat();
        self.send(message::SET_VRING_NUM, &pair(SIZE), &[])?;
        self.send(message::SET_VRING_BASE, &pair(0), &[])?;
        let places = [at, at + USED_AT, at + AVAILABLE_AT, 0].map(|at| at + USER);
        let addresses = [pair(0), numbers(&places)].concat();
        self.send(message::SET_VRING_ADDR, &addresses, &[])?;
        let kick = &self.kicks[queue as usize];
        self.send(message::SET_VRING_CALL, &numbers(&[queue]), &[kick.as_fd()])?;
        self.send(message::SET_VRING_KICK, &numbers(&[queue]), &[kick.as_fd()])?;
        self.send(message::SET_VRING_ENABLE, &pair(1), &[])
    }

    /// Any message, of any length, with any descriptors.
    fn say_anything(&mut self) -> Result<(), Stuck> {
        let request = self.chance.below(message::END) as u32;
        let mut body: Vec<u8> = (0..self.chance.spread(1100)).map(|_| 0).collect();
        for byte in &mut body {
            *byte = self.chance.bits() as u8;
        }
        if self.chance.one_in(2) && body.len() >= 8 {
            let small = self.chance.below(4);
            body[..8].copy_from_slice(&small.to_ne_bytes());
        }
        let all = [self.memory.as_fd(), self.kicks[0].as_fd(), self.stream.as_fd()];
        let count = self.chance.below(4) as usize;
        let files: Vec<_> = all.into_iter().cycle().skip(self.chance.below(3) as usize).take(count).collect();
        self.send(request, &body, &files)
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        // A file that was cut off has it beyond its end from now on.
        let _ = self.memory.write_all_at(bytes, at);
    }

    /// Any bytes in a ring.
    fn scramble(&mut self) {
        let at = self.chance.below(QUEUES * QUEUE_LEN);
        for _ in 0..self.chance.spread(32) {
            let near = (at + self.chance.below(64)).min(QUEUES * QUEUE_LEN - 1);
            // Even, as no kind of request is that changes anything: what lies here may be taken for a header.
            let byte = self.chance.bits() as u8 & !1;
            self.put(near, &[byte]);
        }
    }

    /// A request, mostly as it should be, and a kick.
    fn request(&mut self) {
        self.scene.requests.fetch_add(1, Relaxed);
        let queue = self.chance.below(QUEUES);
        let at = queue * QUEUE_LEN;
        let head = self.chance.below(SIZE);
        if self.chance.one_in(4) {
            for entry in 0..self.chance.spread(SIZE) {
                let piece = self.piece();
                self.put(at + 16 * ((head + entry) % SIZE), &piece);
            }
        } else {
            self.sound_chain(at, head);
        }
        let number = self.available[queue as usize];
        let offered = if self.chance.one_in(64) { self.chance.bits() as u16 } else { head as u16 };
        self.put(at + AVAILABLE_AT + 4 + 2 * (u64::from(number) % SIZE), &offered.to_le_bytes());
        self.available[queue as usize] = number.wrapping_add(1);
        self.put(at + AVAILABLE_AT + 2, &number.wrapping_add(1).to_le_bytes());
        let _ = rustix::io::write(&self.kicks[queue as usize], &1u64.to_ne_bytes());
    }

    fn sound_chain(&mut self, at: u64, head: u64) {
        let kind = self.chance.pick(&[0, 1, 1, 4, 8, 11, 13, 77]);
        let header = self.header(kind);
        let ranged = kind == 11 || kind == 13;
        let (content, len) = if ranged { (self.range(), 16) } else { self.content() };
        let writable = if kind == 0 || kind == 8 { WRITE } else { 0 };
        let second = (head + 1) % SIZE;
        let third = (head + 2) % SIZE;
        self.put(at + 16 * head, &entry(header, 16, NEXT, second as u16));
        self.put(at + 16 * second, &entry(content, len, NEXT | writable, third as u16));
        self.put(at + 16 * third, &entry(CONTENT_AT, 1, WRITE, 0));
    }

    fn header(&mut self, kind: u32) -> u64 {
        let at = HEADERS_AT + 16 * self.chance.below(64);
        let sector = self.chance.below(SECTORS / 16) * 16;
        self.put(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        at
    }

    fn range(&mut self) -> u64 {
        let at = RANGES_AT + 16 * self.chance.below(64);
        let sector = self.chance.below(SECTORS / 16) * 16;
        let count = self.chance.spread(SECTORS) as u32;
        let flags = self.chance.below(3) as u32;
        self.put(at, &[&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat());
        at
    }

    fn content(&mut self) -> (u64, u32) {
        let len = self.chance.spread(2048) * 512;
        (CONTENT_AT + self.chance.below(MEMORY - CONTENT_AT - len), len as u32)
    }

    /// An entry that need not make sense.
    fn piece(&mut self) -> [u8; 16] {
        let flags = self.chance.below(8) as u16;
        let slot = 16 * self.chance.below(64);
        let content = CONTENT_AT + self.chance.below(MEMORY - CONTENT_AT);
        let outside = self.chance.pick(&[MEMORY, MEMORY - 1, u64::MAX, self.chance.clone().bits()]);
        let at = match flags & INDIRECT {
            0 => self.chance.pick(&[HEADERS_AT + slot, RANGES_AT + slot, content, outside.max(CONTENT_AT)]),
            _ => {
                let inner = entry(content, 512, self.chance.below(8) as u16, self.chance.below(4) as u16);
                self.put(TABLES_AT + slot, &inner);
                TABLES_AT + slot
            }
        };
        let short = self.chance.spread(1 << 20) as u32;
        let len = self.chance.pick(&[0, 1, 16, 32, 512, short, u32::MAX]);
        entry(at, len, flags, self.chance.below(SIZE + 2) as u16)
    }
}

fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn entry(at: u64, len: u32, flags: u16, next: u16) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&at.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[12..14].copy_from_slice(&flags.to_le_bytes());
    bytes[14..].copy_from_slice(&next.to_le_bytes());
    bytes
}
