//! What one turn of a worker does for one client, counted.

use std::future::poll_fn;
use std::task::{Context, Poll, Waker};

use spillway_core::session::Session;
use spillway_core::sync::{AtomicUsize, Ordering};
use spillway_core::{Answer, BlockDevice, ByteRange, Extent, Geometry, Kind, Request, Submission, work};

use super::*;

/// Requests that one turn takes at most, and the one that spends it.
const REQUESTS_MAX: usize = (work::TURN / work::REQUEST) as usize + 1;

const COUNT: usize = 3000;

/// 4 GiB of nothing. What asks for extents looks for long, in three slices of a turn each; everything else succeeds at once.
#[derive(Default)]
struct Vast {
    slices: Arc<AtomicUsize>,
    long: bool,
}

impl BlockDevice for Vast {
    fn geometry(&self) -> Geometry {
        Geometry::in_memory(4 << 30)
    }

    fn submit(&self, request: Request) -> Submission {
        Answer::Done(request.answer(Ok(())))
    }

    fn extents(&self, range: ByteRange, _: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let found = Ok(vec![Extent::hole(range.len)]);
        if !self.long {
            return Answer::Done(found);
        }
        let (slices, mut left) = (self.slices.clone(), 3);
        Answer::pending(poll_fn(move |context| {
            slices.fetch_add(1, Ordering::SeqCst);
            work::spend(work::TURN);
            left -= 1;
            if left == 0 {
                return Poll::Ready(found.clone());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }
}

/// Bytes of as many requests, all alike, as a large receive may hold at once.
fn pipelined(client: &mut Client, command: u16, length: u64, payload: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..COUNT {
        let (_, header) = client.request(command, 0, 0, length);
        header.encode(client.header_style(), &mut bytes);
        bytes.extend(vec![1; payload]);
    }
    bytes
}

/// Offers bytes in turns until all are taken; returns the most requests that were taken in one.
fn most_in_a_turn(client: &mut Client, bytes: &[u8]) -> usize {
    let (mut at, mut most, len) = (0, 0, bytes.len() / COUNT);
    while at < bytes.len() {
        let _turn = work::turn(work::TURN);
        let before = at;
        while !work::spent() && at < bytes.len() {
            at += client.session.receive(&bytes[at..]);
            client.session.output().clear();
        }
        assert!(at > before, "each turn gets on");
        most = most.max((at - before).div_ceil(len));
    }
    most
}

#[test]
fn a_turn_takes_so_many_requests_and_leaves_the_rest() {
    for (command, length, payload, most) in [
        (cmd::CACHE, 4096, 0, REQUESTS_MAX),
        (cmd::TRIM, 4096, 0, REQUESTS_MAX),
        (99, 4096, 0, REQUESTS_MAX),
        (cmd::FLUSH, 0, 0, REQUESTS_MAX),
        (cmd::WRITE, 512, 512, REQUESTS_MAX),
        (cmd::READ, 65_536, 0, REQUESTS_MAX / 25),
        (cmd::WRITE_ZEROES, SIZE, 0, REQUESTS_MAX / 2),
        (cmd::BLOCK_STATUS, SIZE, 0, REQUESTS_MAX / 2),
    ] {
        let (_, exports) = one_export();
        let mut client = Client::transmitting(&exports, Style::Structured);
        let bytes = pipelined(&mut client, command, length, payload);
        let taken = most_in_a_turn(&mut client, &bytes);
        assert!((2..=most).contains(&taken), "{taken} requests {command} in a turn, {most} allowed");
    }
}

#[test]
fn a_request_over_much_of_a_device_is_a_turn_of_its_own() {
    let exports = Arc::new(Exports::new());
    exports.add(Export::new("vast", Aligned::new(Arc::new(Vast::default()))).unwrap()).unwrap();
    let mut client = Client::transmitting(&exports, Style::Structured);
    for command in [cmd::BLOCK_STATUS, cmd::TRIM, cmd::WRITE_ZEROES] {
        let bytes = pipelined(&mut client, command, 3 << 30, 0);
        assert_eq!(most_in_a_turn(&mut client, &bytes), 1);
    }
}

#[test]
fn answers_that_come_together_are_taken_in_turns() {
    let (device, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    device.hold();
    for _ in 0..1000 {
        client.ask(cmd::TRIM, 0, 0, 4096);
    }
    assert_eq!(client.session.pending(), 1000);
    device.release(1000);
    let mut turns = 0;
    while client.session.pending() > 0 {
        let before = client.session.pending();
        let _turn = work::turn(work::TURN / 10);
        client.session.poll(&mut Context::from_waker(Waker::noop()));
        let answered = before - client.session.pending();
        assert!((1..=41).contains(&answered), "{answered} answers in a tenth of a turn");
        turns += 1;
    }
    assert!(turns >= 1000 / 41);
}

#[test]
fn requests_that_work_for_long_get_a_slice_in_each_turn() {
    const LONG: usize = 100;
    let (exports, slices) = (Arc::new(Exports::new()), Arc::default());
    let vast = Vast { slices: Arc::clone(&slices), long: true };
    exports.add(Export::new("vast", Aligned::new(Arc::new(vast))).unwrap()).unwrap();
    let mut client = Client::transmitting(&exports, Style::Structured);
    let bytes = pipelined(&mut client, cmd::BLOCK_STATUS, 4096, 0);
    let (mut rest, mut turns) = (&bytes[..bytes.len() / COUNT * LONG], 0);
    while !rest.is_empty() || client.session.pending() > 0 {
        let before = slices.load(Ordering::SeqCst);
        let _turn = work::turn(work::TURN);
        let used = client.session.receive(rest);
        rest = &rest[used..];
        client.session.poll(&mut Context::from_waker(Waker::noop()));
        let done = slices.load(Ordering::SeqCst) - before;
        assert!(done <= 2, "{done} slices in a turn: one of a new request, one of an old one");
        turns += 1;
        assert!(turns <= 3 * LONG, "each turn gets on");
    }
    assert_eq!(slices.load(Ordering::SeqCst), 3 * LONG);
}

/// Each of a client's long requests gets on: the one that came first does not run to its end before the others.
#[test]
fn long_requests_of_one_client_get_their_slices_in_turn() {
    const LONG: usize = 60;
    let (exports, slices) = (Arc::new(Exports::new()), Arc::default());
    let vast = Vast { slices: Arc::clone(&slices), long: true };
    exports.add(Export::new("vast", Aligned::new(Arc::new(vast))).unwrap()).unwrap();
    let mut client = Client::transmitting(&exports, Style::Structured);
    let bytes = pipelined(&mut client, cmd::BLOCK_STATUS, 4096, 0);
    let bytes = &bytes[..bytes.len() / COUNT * LONG];
    {
        let _turn = work::turn(u32::MAX);
        assert_eq!(client.session.receive(bytes), bytes.len());
    }
    assert_eq!(
        (client.session.pending(), slices.load(Ordering::SeqCst)),
        (LONG, LONG),
        "a slice each so far"
    );
    while client.session.pending() == LONG {
        let _turn = work::turn(work::TURN);
        client.session.poll(&mut Context::from_waker(Waker::noop()));
    }
    let done = slices.load(Ordering::SeqCst);
    assert_eq!(done, 2 * LONG + 1, "the first is answered once every other has had its second slice");
}

#[test]
fn options_are_taken_in_turns_too() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    let option = [&b"IHAVEOPT"[..], &opt::LIST.to_be_bytes(), &[0; 4]].concat();
    let bytes = option.repeat(4000);
    let mut at = 0;
    while at < bytes.len() {
        let _turn = work::turn(work::TURN);
        let used = client.session.receive(&bytes[at..]);
        client.session.output().clear();
        assert!((1..=REQUESTS_MAX).contains(&(used / option.len())), "{used} bytes of options in a turn");
        at += used;
    }
}
