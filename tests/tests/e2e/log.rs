//! The log of a server whose log nobody takes: a full device, a closed pipe, a pipe that nobody reads.

use std::fs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;
use spillway_tests::logging::{
    MANY, are_whole, closed_pipe, full_device, have_logged, pipe_that_nobody_reads, said_to_be_lost,
    talkative,
};
use spillway_tests::raw::Client;
use spillway_tests::{Launch, pattern, until};

const MIB: usize = 1 << 20;

/// Requests are answered, and the end flushes and is an end.
fn serves_and_ends_well(launch: Launch, origin: &Path) {
    let mut server = launch.start();
    let bytes = pattern::random(1, 0, MIB);
    server.client().write(0, &bytes).expect("a write");
    have_logged(&server, "disk0", MANY, 500);
    assert!(server.client().read(0, MIB) == Ok(bytes.clone()), "a read");
    server.signal(Signal::INT);
    assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    assert!(fs::read(origin).expect("it exists")[..MIB] == bytes, "an acknowledged write is lost");
}

#[test]
fn a_log_that_nobody_takes_costs_no_request_and_no_flush() {
    for format in ["text", "json"] {
        for deaf in [full_device, closed_pipe, pipe_that_nobody_reads] {
            let ((launch, origin), (stderr, _reader)) = (talkative(format), deaf());
            serves_and_ends_well(launch.stderr(stderr), &origin);
        }
        let (launch, origin) = talkative(format);
        serves_and_ends_well(launch.with("--log-file", "/dev/full"), &origin);
    }
}

/// What a client that has come over the network can have logged without a word of the server's owner.
#[test]
fn too_many_clients_cost_no_server_its_life_whose_log_is_on_a_full_device() {
    let mut server = Launch::ram("16M").with("--memory", "32M").stderr(full_device().0).start();
    let clients: Vec<_> = (0..32).map(|_| server.client()).collect();
    let mut refused = UnixStream::connect(server.socket()).expect("it listens");
    assert_eq!(refused.read(&mut [0]).expect("it is closed"), 0, "one client too many");
    drop(clients);
    until("there is room again", || Client::try_open(server.socket(), "").ok());
    server.signal(Signal::TERM);
    assert_eq!(server.ends().code(), Some(0));
}

#[test]
fn a_start_text_that_nobody_takes_keeps_no_server_from_serving() {
    for deaf in [full_device, closed_pipe, pipe_that_nobody_reads] {
        let (stdout, _reader) = deaf();
        let mut server = Launch::ram("16M").stdout(stdout).start();
        server.client().write(0, &[1; 512]).expect("a write");
        server.signal(Signal::TERM);
        assert_eq!(server.ends().code(), Some(0), "{}", server.log());
    }
}

#[test]
fn lines_that_are_dropped_are_counted_and_said_once_there_is_a_reader() {
    for format in ["text", "json"] {
        let (stderr, reader) = pipe_that_nobody_reads();
        let mut server = talkative(format).0.stderr(stderr).start();
        have_logged(&server, "disk0", MANY, 500);
        let mut reader = reader.expect("the other end");
        let read = std::thread::spawn(move || {
            let mut log = String::new();
            reader.read_to_string(&mut log).map(|_| log).expect("text")
        });
        server.signal(Signal::TERM);
        assert_eq!(server.ends().code(), Some(0));
        let log = read.join().expect("it ends with the server");
        let (written, lost) = (log.matches("mark-").count(), said_to_be_lost(&log));
        assert!(written > 0 && lost > 0 && written + lost == MANY, "{written} written, {lost} lost");
        assert!(log.contains("stopping"), "what comes later is written again");
        are_whole(&log, format);
    }
}
