//! One client beside another that asks for much, on one worker.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Command;

use rustix::process::Signal;
use spillway_tests::raw::{Client, Status, command, flag};
use spillway_tests::{Launch, Server, pattern, until};

const GIB: u64 = 1 << 30;

/// Bytes in a request that a compact header has room for.
const LONG: u32 = 3 << 30;

/// Questions about [`LONG`] bytes that one client asks at once.
const QUESTIONS: u64 = 1500;

/// Answers to them that may come before a bystander's: those of the turn that was under way, and of one more.
const AHEAD_MAX: usize = 4;

/// Zeroes that are written, not punched, over most of a device, and then more questions about them than a worker answers in a
/// second: a block of another client is read between the first of these answers.
#[test]
fn a_read_is_answered_between_long_questions_of_another_client() {
    let server = Launch::ram("16G").with("--memory", "512M").with("--workers", "1").start();
    let mut bystander = server.client();
    let block = pattern::random(1, 15 * GIB, 4096);
    bystander.write(15 * GIB, &block).expect("a write");
    let mut hostile = Status::open(server.socket(), "");
    for at in 0..5 {
        hostile
            .send(flag::NO_HOLE, command::WRITE_ZEROES, at * u64::from(LONG), LONG)
            .expect("room in the socket");
    }
    (0..5).for_each(|_| assert!(hostile.answered().expect("the server answers"), "zeroes are written"));
    let ahead = until("the server is stopped while it answers questions", || {
        answers_ahead(&server, &mut hostile, &mut bystander, &block)
    });
    assert!(ahead <= AHEAD_MAX, "{ahead} answers to questions came first");
}

/// How many questions are answered before the bystander's read, which the server finds when it goes on after a stop. The read's answer stops it
/// again, so that nobody has to look in time. None where too few questions were left for that.
fn answers_ahead(
    server: &Server,
    hostile: &mut Status,
    bystander: &mut Client,
    block: &[u8],
) -> Option<usize> {
    let questions = (0..QUESTIONS).map(|n| (command::BLOCK_STATUS, n % 5 * u64::from(LONG), LONG));
    hostile.send_all(questions).expect("headers fit in the socket");
    assert!(hostile.answered().expect("the server answers"));
    server.signal(Signal::STOP);
    until("the server is stopped", || is_stopped(server).then_some(()));
    let mut arrived = 1 + hostile.arrived();
    let ahead = (arrived < QUESTIONS as usize / 2).then(|| {
        stop_by_an_answer(bystander, worker(server));
        bystander.send(command::READ, 15 * GIB, 4096).expect("room in the socket");
        server.signal(Signal::CONT);
        // Not by reading: while a thread waits in a read, news are no signal.
        until("the server is stopped again", || is_stopped(server).then_some(()));
        assert_eq!(bystander.reply().expect("the server answers").0, 0);
        let mut bytes = [0; 4096];
        bystander.stream.read_exact(&mut bytes).expect("the answer has its bytes");
        assert!(bytes == block, "another block was read");
        hostile.arrived()
    });
    arrived += ahead.unwrap_or(0);
    server.signal(Signal::CONT);
    (arrived..QUESTIONS as usize).for_each(|_| assert!(hostile.answered().expect("the server answers")));
    ahead
}

/// Has the kernel stop the thread that sends the next bytes to `client` as soon as it has sent them, and with it its program.
fn stop_by_an_answer(client: &Client, thread: u32) {
    let socket = client.stream.try_clone().expect("a descriptor can be had twice");
    let set = Command::new("/usr/bin/python3")
        .args(["-c", STOP_BY_NEWS, &thread.to_string()])
        .stdin(OwnedFd::from(socket))
        .status();
    assert!(set.expect("it is installed").success());
}

/// Its standard input sends SIGSTOP to a thread (F_SETOWN_EX with F_OWNER_TID) when there is something to read.
const STOP_BY_NEWS: &str = "
import fcntl, os, signal, struct, sys
fcntl.fcntl(0, 15, struct.pack('ii', 0, int(sys.argv[1])))
fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGSTOP)
fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
";

/// The threads of a server, each with the rest of its line in `stat` behind the number: its name and its state.
fn threads(server: &Server) -> Vec<(u32, String)> {
    let folders = fs::read_dir(format!("/proc/{}/task", server.pid())).expect("the server is running");
    let lines = folders.flatten().filter_map(|folder| fs::read_to_string(folder.path().join("stat")).ok());
    let parsed = lines.map(|line| {
        let (number, rest) = line.split_once(' ').expect("a line has words");
        (number.parse().expect("the kernel writes a number"), rest.to_owned())
    });
    parsed.collect()
}

fn is_stopped(server: &Server) -> bool {
    threads(server).iter().all(|(_, rest)| rest.contains(") T "))
}

fn worker(server: &Server) -> u32 {
    let threads = threads(server);
    let found: Vec<_> = threads.iter().filter(|(_, rest)| rest.starts_with("(spillway-0)")).collect();
    assert_eq!(found.len(), 1, "{threads:?}");
    found[0].0
}
