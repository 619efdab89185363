//! One client beside another that asks for much, on one worker.

use rustix::process::Signal;
use spillway_tests::raw::{Client, Status, command, flag};
use spillway_tests::{Launch, Server, pattern};

const GIB: u64 = 1 << 30;

/// Bytes in a request that a compact header has room for.
const LONG: u32 = 3 << 30;

/// Questions about [`LONG`] bytes that one client asks at once.
const QUESTIONS: u64 = 1500;

/// Answers to them that may come before a bystander's: what is under way, and a slow client that gets the news late.
const AHEAD_MAX: usize = 150;

/// Rounds of which one has to show it: between an answer and the look at what else has come, others may run.
const ROUNDS: usize = 5;

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
    let mut ahead = Vec::new();
    while ahead.len() < ROUNDS && ahead.last().is_none_or(|&count| count > AHEAD_MAX) {
        ahead.push(answers_ahead(&server, &mut hostile, &mut bystander, &block));
    }
    assert!(ahead.last().is_some_and(|&count| count <= AHEAD_MAX), "of {QUESTIONS} came first: {ahead:?}");
}

/// How many of the questions were answered when the bystander's read was, which was sent after the first of them.
fn answers_ahead(server: &Server, hostile: &mut Status, bystander: &mut Client, block: &[u8]) -> usize {
    let questions = (0..QUESTIONS).map(|n| (command::BLOCK_STATUS, n % 5 * u64::from(LONG), LONG));
    hostile.send_all(questions).expect("headers fit in the socket");
    assert!(hostile.answered().expect("the server answers"));
    assert!(bystander.read(15 * GIB, 4096).as_deref() == Ok(block));
    server.signal(Signal::STOP);
    let arrived = 1 + hostile.arrived();
    server.signal(Signal::CONT);
    (arrived..QUESTIONS as usize).for_each(|_| assert!(hostile.answered().expect("the server answers")));
    arrived
}
