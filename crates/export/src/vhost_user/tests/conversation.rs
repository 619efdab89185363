//! Messages of a front end.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Context;

use spillway_core::contract::Wakes;
use spillway_core::random::Random;
use spillway_core::session::Peer;
use spillway_core::shared_memory::{Conversation, HEAD_LEN, MessageResponse};
use spillway_core::sync::{AtomicUsize, Ordering};
use spillway_core::{Aligned, Error, block_on};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::super::inflight::{Former, Unflushed};
use super::super::{Config, TransferLimits, VhostUserSession, protocol_feature, request};
use super::guest::{BASE, Guest, LAYOUT, LEN, SIZE, ToyHost, descriptor};
use crate::Export;
use crate::test_device::TestDevice;

const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
const USER: u64 = 0x7f00_0000_0000;

struct FrontEnd {
    session: VhostUserSession,
    host: ToyHost,
    flags: u32,
}

fn export() -> Arc<Export> {
    Arc::new(Export::new("ram0", Aligned::new(TestDevice::new(1 << 20))).unwrap())
}

fn config() -> Config {
    Config {
        queues: 2,
        limits: TransferLimits { payload_len_max: 1 << 18, held_bytes_max: 1 << 20 },
        buffered: false,
        in_memory: false,
        accept_empty: false,
        server: 1,
    }
}

impl FrontEnd {
    fn new(config: Config) -> Self {
        Self::of(&export(), config)
    }

    fn of(export: &Arc<Export>, config: Config) -> Self {
        let mut session = VhostUserSession::new(export.clone(), config);
        assert!(session.introduce(Peer::Unknown));
        Self { session, host: ToyHost::default(), flags: 1 }
    }

    fn ask(&mut self, request: u32, body: &[u8], files: Vec<OwnedFd>) -> Result<MessageResponse, Error> {
        let numbers = [request, self.flags, body.len() as u32].map(u32::to_ne_bytes);
        let head: [u8; HEAD_LEN] = numbers.as_flattened().try_into().unwrap();
        assert_eq!(self.session.body_len(&head), Ok(body.len()));
        block_on(self.session.receive(&head, body, files, &mut self.host))
    }

    fn tell(&mut self, request: u32, body: &[u8], files: usize) -> Result<(), Error> {
        let files = (0..files).map(|_| descriptor()).collect();
        self.ask(request, body, files).map(|response| assert!(response.bytes.is_empty()))
    }

    fn number(&mut self, request: u32) -> u64 {
        let bytes = self.ask(request, &[], Vec::new()).unwrap().bytes;
        assert_eq!((bytes.len(), bytes[4]), (20, 5), "an answer has a flag");
        u64::from_ne_bytes(bytes[12..].try_into().unwrap())
    }

    /// Agrees on everything and shares the memory of `guest`.
    fn set_up(&mut self, guest: &Guest) {
        let offered = self.number(request::GET_FEATURES);
        self.tell(request::SET_FEATURES, &offered.to_ne_bytes(), 0).unwrap();
        let offered = self.number(request::GET_PROTOCOL_FEATURES);
        self.tell(request::SET_PROTOCOL_FEATURES, &offered.to_ne_bytes(), 0).unwrap();
        self.host.heap = Some(guest.heap.clone());
        self.tell(request::SET_MEM_TABLE, &table(&[region(BASE, LEN, USER)]), 1).unwrap();
    }

    fn start(&mut self, index: u32) -> Result<(), Error> {
        self.tell(request::SET_VRING_NUM, &words(&[index, u32::from(SIZE)]), 0)?;
        self.tell(request::SET_VRING_BASE, &words(&[index, 0]), 0)?;
        let parts = [LAYOUT.descriptors, LAYOUT.used, LAYOUT.available, 0].map(|at| at - at.min(BASE) + USER);
        let parts = [parts[0], parts[1], parts[2]].map(u64::to_ne_bytes);
        self.tell(
            request::SET_VRING_ADDR,
            &[&words(&[index, 0])[..], parts.as_flattened(), &[0; 8]].concat(),
            0,
        )?;
        self.tell(request::SET_VRING_CALL, &u64::from(index).to_ne_bytes(), 1)?;
        self.tell(request::SET_VRING_KICK, &u64::from(index).to_ne_bytes(), 1)
    }
}

fn words(numbers: &[u32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn region(guest: u64, len: u64, user: u64) -> Vec<u8> {
    [guest, len, user, 0].map(u64::to_ne_bytes).as_flattened().to_vec()
}

fn table(regions: &[Vec<u8>]) -> Vec<u8> {
    [words(&[regions.len() as u32, 0]), regions.concat()].concat()
}

#[test]
fn a_front_end_starts_a_queue_and_the_queue_serves_its_guest() {
    let (mut front, mut guest) = (FrontEnd::new(config()), Guest::new());
    front.set_up(&guest);
    assert_eq!(front.number(request::GET_QUEUE_NUM), 2);
    assert!(front.number(request::GET_MAX_MEM_SLOTS) >= 32);
    front.start(0).unwrap();
    front.tell(request::SET_VRING_ENABLE, &words(&[0, 1]), 0).unwrap();
    let (index, new_queue) = front.host.started.pop().unwrap();
    assert_eq!((index, front.host.woken.clone()), (0, vec![0]));
    let mut queue = new_queue();
    let added = guest.request(1, 0, &[5; 512], 0);
    let wakes = Arc::<Wakes>::default();
    queue.poll(&mut Context::from_waker(&wakes.waker()));
    assert_eq!((guest.used().len(), guest.outcome(&added).1), (1, 0));
    assert!(queue.interrupts());
    queue.stop();
    let answer = front.ask(request::GET_VRING_BASE, &words(&[0, 0]), Vec::new()).unwrap();
    assert_eq!((&answer.bytes[12..], front.host.stopped.clone()), (&words(&[0, 1])[..], vec![0]));
    front.start(0).unwrap();
}

#[test]
fn the_configuration_says_what_the_device_is() {
    let mut front = FrontEnd::new(config());
    let asked = |offset: u32, len: u32| [words(&[offset, len, 0]), vec![0; len as usize]].concat();
    let answer = front.ask(request::GET_CONFIG, &asked(0, 96), Vec::new()).unwrap().bytes;
    let space = &answer[24..];
    assert_eq!((space.len(), &space[..8]), (96, &2048u64.to_le_bytes()[..]));
    assert_eq!((&space[20..24], &space[34..36]), (&512u32.to_le_bytes()[..], &2u16.to_le_bytes()[..]));
    assert_eq!((space[24], space[32], space[56]), (3, 1, 1), "blocks of 4096, written back, may unmap");
    let part = front.ask(request::GET_CONFIG, &asked(34, 2), Vec::new()).unwrap().bytes;
    assert_eq!(part[24..], 2u16.to_le_bytes());
    assert!(front.ask(request::GET_CONFIG, &asked(250, 7), Vec::new()).is_err());
    assert!(front.ask(request::GET_CONFIG, &words(&[u32::MAX, u32::MAX, 0]), Vec::new()).is_err());
}

#[test]
fn what_was_not_offered_or_is_out_of_order_is_refused() {
    let (mut front, guest) = (FrontEnd::new(config()), Guest::new());
    assert!(front.tell(request::SET_FEATURES, &(1u64 << 26).to_ne_bytes(), 0).is_err(), "dirty logging");
    assert!(front.tell(request::SET_PROTOCOL_FEATURES, &2u64.to_ne_bytes(), 0).is_err());
    assert!(front.start(0).is_err(), "no memory is shared");
    front.set_up(&guest);
    for (name, request, body, files) in [
        ("more regions than descriptors", request::SET_MEM_TABLE, table(&[region(0, 1, 0)]), 0),
        ("regions that overlap", request::SET_MEM_TABLE, table(&[region(0, 9, 0), region(8, 9, 0)]), 2),
        ("a region without a byte", request::SET_MEM_TABLE, table(&[region(0, 0, 0)]), 1),
        ("a region without an end", request::SET_MEM_TABLE, table(&[region(u64::MAX, 2, 0)]), 1),
        ("a table that is cut off", request::SET_MEM_TABLE, words(&[1, 0, 0]), 1),
        ("a region twice", request::ADD_MEM_REG, [vec![0; 8], region(BASE, 1, 0)].concat(), 1),
        ("a region that there is not", request::REM_MEM_REG, [vec![0; 8], region(BASE, 1, 0)].concat(), 0),
        ("a third queue", request::SET_VRING_NUM, words(&[2, 8]), 0),
        ("a queue of 9", request::SET_VRING_NUM, words(&[0, 9]), 0),
        ("a queue of none", request::SET_VRING_NUM, words(&[0, 0]), 0),
        ("a queue of 2048", request::SET_VRING_NUM, words(&[0, 2048]), 0),
        ("no kick", request::SET_VRING_KICK, 0x100u64.to_ne_bytes().to_vec(), 0),
        ("a kick for a queue that is nowhere", request::SET_VRING_KICK, 1u64.to_ne_bytes().to_vec(), 1),
        ("two descriptors", request::SET_VRING_CALL, 0u64.to_ne_bytes().to_vec(), 2),
        ("a message that there is not", 6, vec![0; 8], 0),
    ] {
        assert!(front.tell(request, &body, files).is_err(), "{name}");
    }
    front.start(0).unwrap();
    assert!(front.start(0).is_err(), "it is running");
    assert!(front.tell(request::SET_INFLIGHT_FD, &[0; 24], 1).is_err());
}

#[test]
fn a_refusal_is_an_answer_where_that_was_agreed_on() {
    let mut front = FrontEnd::new(config());
    front.tell(request::SET_PROTOCOL_FEATURES, &protocol_feature::REPLY_ACK.to_ne_bytes(), 0).unwrap();
    front.flags |= 8;
    let mut answered =
        |body: u64| front.ask(request::SET_FEATURES, &body.to_ne_bytes(), Vec::new()).unwrap().bytes[12];
    assert_eq!([answered(VERSION_1 | PROTOCOL_FEATURES), answered(1 << 50)], [0, 1]);
}

/// Counts the warnings of the log.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn a_guest_that_writes_to_its_configuration_does_not_fill_the_log() {
    const SET_CONFIG: u32 = 25;
    const CACHE_MODE_AT: u32 = 32;
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut front = FrontEnd::new(config());
        front.tell(request::SET_PROTOCOL_FEATURES, &protocol_feature::REPLY_ACK.to_ne_bytes(), 0).unwrap();
        front.flags |= 8;
        for mode in [0, 1, 0] {
            let body = [words(&[CACHE_MODE_AT, 1, 0]), vec![mode]].concat();
            let answer = front.ask(SET_CONFIG, &body, Vec::new()).unwrap();
            assert_eq!(answer.bytes[12], 1, "it is refused");
        }
    });
    assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
}

#[test]
fn heads_that_are_none_are_refused() {
    let session = VhostUserSession::new(export(), config());
    for numbers in [[1, 0, 0], [1, 2, 0], [1, 5, 0], [1, 1, 1025], [1, 1, u32::MAX]] {
        let head: [u8; HEAD_LEN] = numbers.map(u32::to_ne_bytes).as_flattened().try_into().unwrap();
        assert!(session.body_len(&head).is_err(), "{numbers:?}");
    }
}

/// Whether the front end of server 1 may go on with server `next` of the same device, which was `reset` meanwhile.
fn follow(config: Config, next: u64, reset: bool) -> bool {
    let export = export();
    let mut first = FrontEnd::of(&export, Config { server: 1, ..config });
    let asked = [&[0; 16][..], &1u16.to_ne_bytes(), &SIZE.to_ne_bytes(), &[0; 4]].concat();
    let made = first.ask(request::GET_INFLIGHT_FD, &asked, Vec::new()).unwrap();
    assert!(made.descriptor.is_some());
    let body = made.bytes[12..].to_vec();
    first.tell(request::SET_INFLIGHT_FD, &body, 1).unwrap();
    let FrontEnd { session, host, .. } = first;
    drop(session);
    if reset {
        export.begin_era();
    }
    // It tries again.
    let tries = [(); 2].map(|()| {
        let mut next = FrontEnd::of(&export, Config { server: next, ..config });
        next.host.made = host.made.clone();
        next.tell(request::SET_INFLIGHT_FD, &body, 1).is_ok()
    });
    assert_eq!(tries[0], tries[1], "another try ends as the first");
    tries[0]
}

#[test]
fn a_guest_goes_on_with_the_next_server_unless_the_content_is_gone() {
    assert!(follow(config(), 2, false));
    let in_memory = Config { in_memory: true, ..config() };
    assert!(!follow(in_memory, 2, false));
    assert!(follow(in_memory, 1, false), "it is the same server");
    assert!(!follow(in_memory, 1, true), "a reset has taken what the guest knows");
    assert!(follow(Config { accept_empty: true, ..in_memory }, 2, true));
}

#[test]
fn a_server_that_stops_leaves_no_write_unflushed() {
    let (mut front, mut guest) = (FrontEnd::new(Config { buffered: true, ..config() }), Guest::new());
    front.set_up(&guest);
    let asked = [&[0; 16][..], &1u16.to_ne_bytes(), &SIZE.to_ne_bytes(), &[0; 4]].concat();
    let made = front.ask(request::GET_INFLIGHT_FD, &asked, Vec::new()).unwrap();
    front.tell(request::SET_INFLIGHT_FD, &made.bytes[12..], 1).unwrap();
    front.start(0).unwrap();
    front.tell(request::SET_VRING_ENABLE, &words(&[0, 1]), 0).unwrap();
    let mut queue = front.host.started.pop().unwrap().1();
    guest.request(1, 0, &[1; 512], 0);
    queue.poll(&mut Context::from_waker(std::task::Waker::noop()));
    let heap = front.host.made.clone().unwrap();
    let former = || Unflushed::open(heap.clone(), 2, true).1;
    assert_eq!(former(), Former::Other { unflushed: true });
    block_on(front.session.wind_down());
    assert_eq!(former(), Former::Other { unflushed: false });
}

#[test]
fn the_queue_of_a_session_uses_the_memory_in_flight() {
    let (mut front, mut guest) = (FrontEnd::new(config()), Guest::new());
    front.set_up(&guest);
    let asked = [&[0; 16][..], &2u16.to_ne_bytes(), &SIZE.to_ne_bytes(), &[0; 4]].concat();
    let made = front.ask(request::GET_INFLIGHT_FD, &asked, Vec::new()).unwrap();
    front.tell(request::SET_INFLIGHT_FD, &made.bytes[12..], 1).unwrap();
    front.start(1).unwrap();
    front.tell(request::SET_VRING_ENABLE, &words(&[1, 1]), 0).unwrap();
    let mut queue = front.host.started.pop().unwrap().1();
    let before = front.host.made.clone().unwrap().bytes();
    guest.request(4, 0, &[], 0);
    let wakes = Arc::<Wakes>::default();
    queue.poll(&mut Context::from_waker(&wakes.waker()));
    let after = front.host.made.clone().unwrap().bytes();
    let changed: Vec<_> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    let region = before.len() / 2;
    assert!(changed.iter().all(|&at| at >= region - 64), "{changed:?}");
    assert!(!changed.is_empty());
}

#[test]
fn a_closed_export_takes_no_front_end() {
    let export = export();
    export.close();
    assert!(!VhostUserSession::new(export, config()).introduce(Peer::Unknown));
}

#[test]
fn random_messages_harm_nobody() {
    let mut random = Random(3);
    let guest = Guest::new();
    let mut accepted = 0;
    for _ in 0..500 {
        let mut front = FrontEnd::new(config());
        if random.below(2) == 0 {
            front.set_up(&guest);
        }
        for _ in 0..20 {
            let mut body = vec![0; random.below(80) as usize & !3];
            if random.below(2) == 0 {
                random.fill(&mut body);
            }
            if random.below(2) == 0 && body.len() >= 4 {
                body[..4].copy_from_slice(&(random.below(3) as u32).to_ne_bytes());
            }
            let files = (0..random.below(3)).map(|_| descriptor()).collect();
            accepted += usize::from(front.ask(random.below(45) as u32, &body, files).is_ok());
            if let Some((_, new_queue)) = front.host.started.pop() {
                new_queue().poll(&mut Context::from_waker(std::task::Waker::noop()));
            }
        }
    }
    assert!(accepted > 1000, "{accepted} of 10000 were accepted");
}
