//! A kernel that says anything to a session of a mount over a small device in memory.
//!
//! Input: a byte of choices, a seed, then recipes of messages: operation, node, bytes of the body (2), words of the body. So that
//! the fuzzer need not find large numbers, a word may stand for one at a boundary. Checked: no panic, one reply at most for each message,
//! what is pending is bounded, nothing reaches the device after a hang-up, and everything is answered before it.
#![no_main]

mod device;
#[allow(dead_code, reason = "the session's tests use all of it")]
#[path = "../../../crates/export/src/fuse/tests/toy.rs"]
mod toy;

use std::sync::Arc;
use std::task::{Context, Waker};

use libfuzzer_sys::fuzz_target;
use spillway_core::exchange::Exchange;
use spillway_core::random::Random;
use spillway_core::{Aligned, Budget, IoBuf};
use spillway_export::Export;
use spillway_export::fuse::wire::{self, Header, opcode};
use spillway_export::fuse::{Config, FuseSession, Tree};

use device::SIZE;
use toy::{Toy, ToyServer};

const CONFIG: Config = Config { held_bytes_max: 64 << 10 };

/// Polls until everything must be answered.
const POLLS_MAX: usize = 5000;

/// A message: its header, then `body_len` bytes made of `words`.
fn message(operation: u8, node: u8, body_len: usize, words: &[u8], unique: u64) -> IoBuf {
    let control = 1 << 32 | 1 << 16 | 1;
    let (add, remove) = (1 << 16 | 1, 1 << 16 | 2);
    let nodes =
        [0, 1, 1 << 32, 1 << 32 | 1, 1 << 32 | 2, control - 1, u64::MAX, control, 1 << 16, add, remove];
    let numbers = [0, 1, 511, 4096, SIZE - 1, SIZE, 1 << 40, u64::MAX];
    let len = Header::LEN + body_len;
    let mut buf = IoBuf::zeroed(len);
    buf[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    buf[4..8].copy_from_slice(&u32::from(operation % 64).to_ne_bytes());
    buf[8..16].copy_from_slice(&unique.to_ne_bytes());
    buf[16..24].copy_from_slice(&nodes[usize::from(node) % nodes.len()].to_ne_bytes());
    for (place, &word) in buf[Header::LEN..len].chunks_exact_mut(8).zip(words) {
        let number = if word < 128 { u64::from(word) } else { numbers[usize::from(word % 8)] };
        place.copy_from_slice(&number.to_ne_bytes());
    }
    if u32::from(operation % 64) == opcode::READ && body_len >= 24 {
        buf[60] |= wire::FOR_A_CALL as u8;
    }
    if u32::from(operation % 64) == opcode::WRITE && body_len >= 40 {
        buf[56..60].copy_from_slice(&(body_len as u32 - 40).to_ne_bytes());
    }
    buf
}

/// As a driver does, which takes back the buffer that was kept.
fn poll(session: &mut FuseSession) {
    session.poll(&mut Context::from_waker(Waker::noop()));
    drop(session.returned());
}

/// Takes the replies; returns how many there were.
fn drain(session: &mut FuseSession) -> u64 {
    let mut count = 0;
    while let Some(reply) = session.next_reply() {
        assert_eq!(reply.head()[..4], (reply.bytes() as u32).to_ne_bytes());
        count += 1;
    }
    count
}

fuzz_target!(|input: &[u8]| {
    let [choices, seed, recipes @ ..] = input else { return };
    let mut recipes = recipes;
    let mut random = Random(u64::from(*seed));
    let (memory, device) = device::open(choices & 1 != 0);
    let aligned = Aligned::to_bytes(device, &Budget::new(Budget::UNLIMITED)).expect("there is no limit");
    let export = Arc::new(Export::new("ram0", aligned).expect("a good name"));
    let toy = Arc::<Toy>::default();
    let server = Arc::new(ToyServer(toy.clone()));
    let tree = Arc::new(Tree::new(0, 0, 0).with_class(server.clone()));
    tree.add(export.clone(), vec![toy.folder()], server);
    let mut session = FuseSession::new(tree.clone(), CONFIG);
    let (mut sent, mut answered) = (0, 0);
    while let [operation, node, short, long, rest @ ..] = recipes {
        let body_len = usize::from(u16::from_le_bytes([*short, *long]));
        let (words, later) = rest.split_at(rest.len().min(8));
        recipes = later;
        if session.takes() {
            sent += 1;
            session.receive(message(*operation, *node, body_len, words, sent), random.below(2) > 0);
        }
        if random.below(3) > 0 {
            poll(&mut session);
        }
        answered += drain(&mut session);
        assert!(answered <= sent, "{answered} replies to {sent} messages");
        assert!(session.pending() <= 64, "{} requests are pending", session.pending());
    }
    if choices & 2 != 0 {
        session.hang_up();
        memory.bury();
    }
    for _ in 0..POLLS_MAX {
        if session.pending() == 0 {
            break;
        }
        poll(&mut session);
        answered += drain(&mut session);
    }
    assert!(answered <= sent, "{answered} replies to {sent} messages");
    assert!(session.pending() == 0 && session.takes(), "a session that does not come to rest");
    drop(session);
    drop(tree);
    assert!(export.reserve().is_ok(), "an open file that outlives the mount");
});
