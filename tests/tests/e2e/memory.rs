//! The memory promise, seen from outside.

use std::io::Write;

use rustix::process::Signal;
use spillway_tests::raw::{self, Client, command, errno};
use spillway_tests::{Launch, pattern, tool};

const BUDGET: u64 = 128 << 20;

/// What a server may be resident above its budget, in bytes.
const ALLOWANCE: u64 = 64 << 20;

const STEP: u64 = 128 << 10;

/// Steps that the device has room for: 4 GiB.
const STEPS: u64 = (4 << 30) / STEP;

/// Incompressible data until nothing more fits: memory stays within the promise, and everything acknowledged is read back.
#[test]
fn a_full_budget_answers_enospc_and_loses_nothing() {
    let mut server = Launch::ram("4G").with("--memory", "128M").start();
    let mut client = server.client();
    let resident = || server.vitals().resident;
    let written = (0..STEPS).take_while(|step| {
        assert!(resident() < BUDGET + ALLOWANCE, "{} bytes resident after {step} steps", resident());
        match client.write(step * STEP, &pattern::random(1, step * STEP, STEP as usize)) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error, errno::ENOSPC);
                false
            }
        }
    });
    let count = written.count() as u64;
    assert!(count < STEPS, "4 GiB of noise fitted into {BUDGET} bytes");
    assert!(count * STEP > BUDGET / 2, "only {} of {BUDGET} bytes were usable", count * STEP);
    for step in 0..count {
        let bytes = client.read(step * STEP, STEP as usize).expect("a read");
        assert!(bytes == pattern::random(1, step * STEP, STEP as usize), "step {step} is lost");
    }
    assert!(resident() < BUDGET + ALLOWANCE, "{} bytes resident after reading", resident());
    assert!(server.lives());
}

/// An overwrite that finds no room leaves the old bytes; a discard makes room again.
#[test]
fn a_failed_overwrite_leaves_the_old_bytes_and_a_discard_makes_room() {
    let server = Launch::ram("4G").with("--memory", "64M").start();
    let mut client = server.client();
    client.write(0, &vec![7; STEP as usize]).expect("a write of one repeated byte");
    let full =
        |step: &u64| client.write(step * STEP, &pattern::random(2, step * STEP, STEP as usize)).is_err();
    let step = (1..STEPS).find(full).expect("noise fills the budget");
    // The end of a failed write may have been stored block by block; a single block is all or nothing.
    let overwrite = client.write(0, &pattern::random(3, 0, 4096));
    let wanted = if overwrite.is_ok() { pattern::random(3, 0, 4096) } else { vec![7; 4096] };
    assert!(client.read(0, 4096) == Ok(wanted), "a block changed without an acknowledgement");
    client.ask(command::TRIM, STEP, ((step / 2) * STEP) as u32).expect("a discard");
    client.write(0, &pattern::random(4, 0, STEP as usize)).expect("the discard made room");
}

/// A small budget means small buffers: the longest request is shorter then, and one that is longer is refused and not left
/// waiting for room that never comes.
#[test]
fn the_longest_request_follows_the_budget() {
    let server = Launch::ram("1G").with("--memory", "64M").start();
    let mut client = server.client();
    assert_eq!(client.read(0, 32 << 20), Err(errno::EINVAL));
    assert_eq!(client.read(0, 4 << 20).map(|bytes| bytes.len()), Ok(4 << 20));
    let shown = tool::run("nbdinfo", &["--json", &server.uri()]).well().out;
    assert!(shown.contains(&format!("\"block_size_maximum\": {}", 4 << 20)), "{shown}");
}

/// Clients whose bytes arrive together, each with several turns' work in front of a write that needs a quarter of all buffers.
const CROWD: u64 = 48;

/// Requests without payload in front of each long write.
const TRIMS: u64 = 3000;

const LONG: usize = 3 << 20;

/// What of a client's requests is sent before the server takes any: it fits in a socket.
const SENT_FIRST: usize = 128 << 10;

/// A connection that received much at once keeps the buffer while its next request waits for memory. However many do, each
/// request gets its turn.
#[test]
fn many_clients_that_send_much_at_once_do_not_wait_for_each_other() {
    let server = Launch::ram("1G").with("--memory", "64M").with("--workers", "1").start();
    let clients: Vec<Client> = (0..CROWD).map(|_| server.client()).collect();
    server.signal(Signal::STOP);
    let send_first = |(number, client): (usize, Client)| {
        let bytes = much(number as u64);
        (&client.stream).write_all(&bytes[..SENT_FIRST]).expect("the socket has room");
        (client, bytes)
    };
    let crowd: Vec<_> = clients.into_iter().enumerate().map(send_first).collect();
    server.signal(Signal::CONT);
    std::thread::scope(|scope| {
        for (mut client, bytes) in crowd {
            scope.spawn(move || {
                let mut stream = client.stream.try_clone().expect("a descriptor");
                let rest = std::thread::spawn(move || stream.write_all(&bytes[SENT_FIRST..]));
                for _ in 0..=TRIMS {
                    assert_eq!(client.reply().expect("the server answers").0, 0);
                }
                rest.join().expect("no panic").expect("the server takes the payload");
            });
        }
    });
}

/// Requests that take long, and a long write behind them: of zeroes, for which there is always memory.
fn much(number: u64) -> Vec<u8> {
    let trims = (0..TRIMS).flat_map(|cookie| raw::header(command::TRIM, cookie, 512 << 20, 64 << 10));
    let mut bytes: Vec<u8> = trims.collect();
    bytes.extend(raw::header(command::WRITE, TRIMS, number * LONG as u64, LONG as u32));
    bytes.resize(bytes.len() + LONG, 0);
    bytes
}
