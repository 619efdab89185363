//! A front end that says anything, and a guest that writes anything into its rings, over a small device in memory.
//!
//! Input: a byte of choices, what the rings hold, then recipes: a message (request, descriptors, words of the body), bytes of the guest's
//! memory (place, value), or a turn of all queues. So that the fuzzer need not find large numbers, a word may stand for one at a boundary.
//! Checked: no panic, what is pending is bounded, every queue comes to rest, and nothing outlives the front end.
#![no_main]

mod device;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use spillway_core::session::Peer;
use spillway_core::shared_memory::{
    Conversation, ConversationHost, EventOf, HEAD_LEN, NewQueue, Queue, SharedMemory,
};
use spillway_core::{Aligned, Budget, Error, LocalFuture};
use spillway_export::Export;
use spillway_export::vhost_user::{Config, TransferLimits, VhostUserSession, request};
use spillway_sim::rings::MachineMemory;

use device::SIZE;

/// Bytes of each file that the front end shares.
const LEN: usize = 16 << 10;

/// Where the guest's memory begins for it, and for the front end.
const GUEST: u64 = 1 << 20;
const USER: u64 = 1 << 30;

/// Entries of the queue that is started first, and the bytes of its rings that the input gives.
const ENTRIES: u32 = 8;
const RINGS: usize = 512;

const QUEUES: u16 = 2;

/// Polls until everything must be answered.
const POLLS_MAX: usize = 5000;

/// All files are one.
struct Machine {
    shared: Arc<MachineMemory>,
    queues: Vec<(usize, Box<dyn Queue>)>,
}

impl ConversationHost for Machine {
    fn map(&mut self, _: OwnedFd, offset: u64, len: u64) -> Result<Arc<dyn SharedMemory>, Error> {
        let fits = offset.checked_add(len).is_some_and(|end| end <= LEN as u64);
        if fits { Ok(self.shared.clone()) } else { Err(Error::invalid("the file has less")) }
    }

    fn create(&mut self, _: u64) -> Result<OwnedFd, Error> {
        Ok(descriptor())
    }

    fn set_event(&mut self, _: usize, _: EventOf, _: Option<OwnedFd>) -> Result<(), Error> {
        Ok(())
    }

    fn start(&mut self, index: usize, new_queue: NewQueue) {
        assert!(self.queues.iter().all(|(other, _)| *other != index), "queue {index} is started twice");
        self.queues.push((index, new_queue()));
    }

    fn wake(&mut self, _: usize) {}

    fn stop(&mut self, index: usize) -> LocalFuture<()> {
        if let Some(place) = self.queues.iter().position(|(other, _)| *other == index) {
            let (_, mut queue) = self.queues.swap_remove(place);
            queue.stop();
            settle(&mut *queue);
        }
        Box::pin(std::future::ready(()))
    }

    fn set_channel(&mut self, _: OwnedFd) -> Result<(), Error> {
        Ok(())
    }
}

fn descriptor() -> OwnedFd {
    File::open("/dev/null").expect("every system has it").into()
}

fn poll(queue: &mut dyn Queue) {
    queue.poll(&mut Context::from_waker(Waker::noop()));
    assert!(queue.pending() <= 1024, "{} requests are pending", queue.pending());
}

fn settle(queue: &mut dyn Queue) {
    let rests = (0..POLLS_MAX).any(|_| {
        poll(queue);
        queue.pending() == 0
    });
    assert!(rests, "a queue that does not come to rest");
}

fn ask(
    session: &mut VhostUserSession,
    machine: &mut Machine,
    number: u32,
    flags: u32,
    body: &[u8],
    files: usize,
) {
    let numbers = [number, flags, body.len() as u32].map(u32::to_ne_bytes);
    let head: [u8; HEAD_LEN] = numbers.as_flattened().try_into().expect("three numbers");
    let Ok(len) = session.body_len(&head) else { return };
    assert_eq!(len, body.len());
    let files = (0..files).map(|_| descriptor()).collect();
    let mut answer = session.receive(&head, body, files, machine);
    let answered = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(answered, Poll::Ready(_)), "an answer that waits for nothing");
}

/// A queue over the memory, as a sound front end starts it.
fn start(session: &mut VhostUserSession, machine: &mut Machine, features: u64) {
    let words = |numbers: &[u64]| numbers.iter().flat_map(|number| number.to_ne_bytes()).collect::<Vec<_>>();
    let mut tell = |number, body: Vec<u8>, files| ask(session, machine, number, 1, &body, files);
    tell(request::SET_FEATURES, words(&[features]), 0);
    tell(request::SET_MEM_TABLE, [words(&[1]), words(&[GUEST, LEN as u64, USER, 0])].concat(), 1);
    tell(request::SET_VRING_NUM, words(&[u64::from(ENTRIES) << 32]), 0);
    tell(request::SET_VRING_ADDR, words(&[0, USER, USER + 256, USER + 128, 0]), 0);
    tell(request::SET_VRING_KICK, words(&[0]), 1);
    tell(request::SET_VRING_ENABLE, words(&[1 << 32]), 0);
}

fn word(byte: u8) -> u64 {
    let numbers = [USER, GUEST, LEN as u64, SIZE, 1 << 30, 1 << 32, u64::MAX - 7, u64::MAX];
    match byte {
        0..192 => u64::from(byte),
        _ => numbers[usize::from(byte % 8)].wrapping_add(u64::from(byte / 8 % 4)),
    }
}

fuzz_target!(|input: &[u8]| {
    let [choices, rest @ ..] = input else { return };
    let (memory, device) = device::open(choices & 1 != 0);
    let aligned = Aligned::charged(device, &Budget::new(Budget::UNLIMITED)).expect("there is no limit");
    let export = Arc::new(Export::new("ram0", aligned).expect("a good name"));
    let limits = TransferLimits { payload_len_max: 32 << 10, held_bytes_max: 64 << 10 };
    let (buffered, in_memory, accept_empty) = (choices & 8 != 0, choices & 16 != 0, choices & 32 != 0);
    let config = Config { queues: QUEUES, limits, buffered, in_memory, accept_empty, server: 1 };
    let mut session = VhostUserSession::new(export.clone(), config);
    assert!(session.introduce(Peer::Unknown));
    let mut machine = Machine { shared: MachineMemory::new(LEN as u64), queues: Vec::new() };
    let (rings, mut recipes) = rest.split_at(rest.len().min(RINGS));
    machine.shared.write(0, rings);
    if choices & 2 != 0 {
        let event_index = if choices & 4 != 0 { 1 << 29 } else { 0 };
        start(&mut session, &mut machine, 1 << 32 | 1 << 30 | 1 << 28 | event_index);
    }
    while let [kind, one, two, later @ ..] = recipes {
        let (words, later) = later.split_at(later.len().min(usize::from(kind / 4 % 8)));
        recipes = later;
        match kind % 4 {
            0 => {
                let body: Vec<u8> = words.iter().flat_map(|&byte| word(byte).to_ne_bytes()).collect();
                let body = &body[..body.len().min(usize::from(*two) * 4)];
                ask(
                    &mut session,
                    &mut machine,
                    u32::from(one % 48),
                    1 | u32::from(one / 64 * 8),
                    body,
                    usize::from(two % 3),
                );
            }
            1 => machine.shared.write((usize::from(*one) * 8 % LEN) as u64, &[*two]),
            _ => machine.queues.iter_mut().for_each(|(_, queue)| {
                poll(&mut **queue);
                queue.interrupts();
                queue.arm();
                queue.broken();
            }),
        }
    }
    for (_, mut queue) in machine.queues.drain(..) {
        queue.stop();
        settle(&mut *queue);
    }
    drop(session);
    memory.bury();
    assert!(export.reserve().is_ok(), "a front end that has left is counted");
});
