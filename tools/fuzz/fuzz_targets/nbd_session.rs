//! A client that says anything to an NBD session over a small device in memory.
//!
//! Input: a byte of choices, a seed for the cuts, then what the client says. So that the fuzzer need not find magic numbers,
//! the session may start behind a valid handshake, and what follows may be the fields of requests, eight bytes each,
//! instead of bytes for the wire. Checked: no panic, what a session holds is bounded, nothing
//! reaches the device after a hang-up, and every conversation comes to an end when it is asked to.
#![no_main]

mod device;

use std::sync::Arc;
use std::task::{Context, Waker};

use libfuzzer_sys::fuzz_target;
use spillway_core::Aligned;
use spillway_core::random::Random;
use spillway_core::session::{Intake, Session};
use spillway_export::nbd::wire::{HeaderStyle, OptionHeader, RequestHeader, cmd, cmd_flag, opt};
use spillway_export::nbd::{Config, NbdSession, TlsPolicy};
use spillway_export::{Export, Exports};

use device::Memory;

const CONFIG: Config = Config { payload_len_max: 1 << 17, held_bytes_max: 64 << 10, requests_max: 16, tls: TlsPolicy::Off };

/// Polls until a session must have come to its end: 16 requests, each a chain of reads and writes that wait for each other.
const POLLS_MAX: usize = 5000;

/// The limit, one request, and the replies to one option.
const OUTPUT_MAX: usize = (64 << 10) + (1 << 17) + 4096;

/// A valid way into transmission.
fn handshake(choices: u8) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    let mut option = |option: u32, data: &[u8]| {
        bytes.extend(OptionHeader { option, len: data.len() as u32 }.encode());
        bytes.extend(data);
    };
    match choices >> 1 & 3 {
        0 => {}
        1 => option(opt::EXTENDED_HEADERS, &[]),
        _ => option(opt::STRUCTURED_REPLY, &[]),
    }
    let query = b"\0\0\0\0\0\0\0\x01\0\0\0\x0fbase:allocation";
    option(opt::SET_META_CONTEXT, query);
    option(opt::GO, &[0; 6]);
    bytes
}

/// Requests with the fields in `recipe`: command, flags, sector (2), length in quarters of a sector (2), cut, damage.
fn requests(choices: u8, recipe: &[u8]) -> Vec<u8> {
    let extended = choices >> 1 & 3 == 1;
    let headers = if extended { HeaderStyle::Extended } else { HeaderStyle::Compact };
    let mut bytes = Vec::new();
    for (index, &[command, flags, sector, more, length, longer, cut, damage]) in
        recipe.as_chunks::<8>().0.iter().enumerate()
    {
        let (command, cookie) = (u16::from(command % 12), index as u64);
        let offset = u64::from(u16::from_le_bytes([sector, more])) * 512;
        let length = u64::from(u16::from_le_bytes([length, longer])) * 128;
        let mut flags = u16::from(flags);
        if command == cmd::WRITE && extended && damage != 1 {
            flags |= cmd_flag::PAYLOAD_LEN;
        }
        let start = bytes.len();
        RequestHeader { flags, command, cookie, offset, length }.encode(headers, &mut bytes);
        let carries = if extended { flags & cmd_flag::PAYLOAD_LEN != 0 } else { command == cmd::WRITE };
        if carries && length < 1 << 18 {
            bytes.resize(bytes.len() + length as usize, damage);
        }
        if damage > 250 {
            bytes[start + usize::from(cut % 28)] ^= cut;
        }
    }
    bytes
}

fn session(late: bool) -> (Arc<Memory>, Arc<Exports>, NbdSession) {
    let (memory, device) = device::open(late);
    let exports = Arc::new(Exports::new());
    let device = Aligned::new(device);
    exports.add(Export::new("disk", device).expect("a good name")).expect("the first export");
    let session = NbdSession::new(exports.clone(), CONFIG);
    (memory, exports, session)
}

/// Sends some of what there is to send.
fn drain(session: &mut NbdSession, random: &mut Random) {
    let output = session.output();
    assert!(output.len() < OUTPUT_MAX, "{} bytes of output", output.len());
    let sent = (random.below(200_000) as usize).min(output.len());
    output.advance(sent);
}

fn poll(session: &mut NbdSession) {
    session.poll(&mut Context::from_waker(Waker::noop()));
    assert!(session.pending() <= CONFIG.requests_max + 1);
}

/// Gives some of `bytes`, as an event loop would; returns how many were taken.
fn deliver(session: &mut NbdSession, bytes: &[u8], random: &mut Random) -> usize {
    let longest = [1, 30, 5000, 100_000][random.below(4) as usize];
    let count = (1 + random.below(longest) as usize).min(bytes.len());
    match session.intake() {
        Intake::Pause => 0,
        Intake::Bytes => session.receive(&bytes[..count]),
        Intake::Payload(mut window) => {
            let count = count.min(window.len());
            window[..count].copy_from_slice(&bytes[..count]);
            session.returned(window, count);
            count
        }
    }
}

fn converse(session: &mut NbdSession, bytes: &[u8], random: &mut Random) {
    let mut at = 0;
    let mut idle = 0;
    while at < bytes.len() && !session.finished() {
        let used = deliver(session, &bytes[at..], random);
        idle = if used == 0 { idle + 1 } else { 0 };
        assert!(idle < 1000, "a session that neither takes nor gives");
        at += used;
        poll(session);
        drain(session, random);
    }
}

fuzz_target!(|input: &[u8]| {
    let [choices, seed, bytes @ ..] = input else { return };
    let mut random = Random(u64::from(*seed));
    let (memory, exports, mut session) = session(choices & 8 != 0);
    if choices & 1 != 0 {
        converse(&mut session, &handshake(*choices), &mut random);
        assert_eq!(exports.find(b"").expect("it is served").export().clients(), 1);
    }
    match choices & 32 != 0 {
        true => converse(&mut session, &requests(*choices, bytes), &mut random),
        false => converse(&mut session, bytes, &mut random),
    }
    if choices & 16 != 0 {
        session.hang_up();
        memory.bury();
    } else {
        session.wind_down();
    }
    for _ in 0..POLLS_MAX {
        if session.finished() {
            break;
        }
        poll(&mut session);
        // The peer reads: a request may wait for the memory of replies.
        let unsent = session.output().len();
        session.output().advance(unsent);
    }
    assert!(session.finished() && session.pending() == 0, "a session that does not end");
    drop(session);
    assert!(exports.find(b"").expect("it is served").export().reserve().is_ok(), "a client that does not leave");
});
