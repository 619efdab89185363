//! Requests of a queue, from the ring to the device and back.

use std::sync::Arc;
use std::task::Context;

use spillway_core::contract::Wakes;
use spillway_core::random::Random;
use spillway_core::shared_memory::Queue;
use spillway_core::sync::Ordering;
use spillway_core::{Aligned, Kind, Op, work};

use super::super::queue::BlockQueue;
use super::guest::{BASE, Fixture, Guest, INDIRECT, LAYOUT, LEN, NEXT, SIZE, WRITE};
use crate::Export;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

fn poll(queue: &mut BlockQueue) {
    let wakes = Arc::<Wakes>::default();
    queue.poll(&mut Context::from_waker(&wakes.waker()));
}

fn range(sector: u64, count: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// The status of one request of its own.
fn status(fixture: &Fixture, kind: u32, sector: u64, payload: &[u8], room: usize) -> u8 {
    let mut guest = Guest::new();
    let mut queue = fixture.queue(&guest);
    let added = guest.request(kind, sector, payload, room);
    poll(&mut queue);
    assert_eq!(guest.used().len(), 1);
    assert_eq!(queue.broken(), None);
    guest.outcome(&added).1
}

#[test]
fn what_is_written_is_read_and_the_device_sees_what_was_asked_for() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let written = guest.request(OUT, 8, &[7; 4096], 0);
    poll(&mut queue);
    assert_eq!(guest.used(), [(written.head.into(), 1)]);
    let read = guest.request(IN, 8, &[], 4096);
    let flush = guest.request(FLUSH, 0, &[], 0);
    poll(&mut queue);
    assert_eq!(guest.used(), [(read.head.into(), 4097), (flush.head.into(), 1)]);
    assert_eq!(guest.outcome(&read), (vec![7; 4096], OK));
    assert_eq!((guest.outcome(&written).1, guest.outcome(&flush).1), (OK, OK));
    let ops: Vec<_> = fixture.device.log().iter().map(|(op, range, fua)| (*op, range.offset, *fua)).collect();
    assert_eq!(ops, [(Op::Write, 4096, false), (Op::Read, 4096, false), (Op::Flush, 0, false)]);
    let counted = fixture.export.statistics();
    assert_eq!((counted.reads, counted.writes, counted.flushes), (1, 1, 1));
    assert_eq!((counted.read_bytes, counted.write_bytes), (4096, 4096));
}

#[test]
fn a_payload_in_many_pieces_is_one() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let at = guest.room(4096);
    let header = guest.room(16);
    guest.put(header, &[&OUT.to_le_bytes()[..], &[0; 12]].concat());
    guest.put(at, &[1; 512]);
    guest.put(at + 512, &[2; 512]);
    let status = guest.room(1);
    // The header is in two pieces as well, and pieces of no length are none.
    let head = guest.chain(&[
        (header, 5, 0),
        (header + 5, 11, 0),
        (at, 300, 0),
        (at, 0, 0),
        (at + 300, 724, 0),
        (status, 1, WRITE),
    ]);
    guest.offer(head);
    poll(&mut queue);
    assert_eq!(guest.used(), [(head.into(), 1)]);
    let read = guest.request(IN, 0, &[], 1024);
    poll(&mut queue);
    assert_eq!(guest.outcome(&read), ([[1; 512], [2; 512]].concat(), OK));
}

/// The work of a flush in so many pieces, of which all but the header and the status are empty.
fn work_of_flush(pieces: u16) -> u64 {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let table = guest.room(16 * u64::from(pieces));
    let (header, status) = (guest.room(16), guest.room(1));
    guest.put(header, &[&FLUSH.to_le_bytes()[..], &[0; 12]].concat());
    guest.entry(table, 0, header, 16, NEXT, 1);
    (1..pieces - 1).for_each(|piece| guest.entry(table, piece, header, 0, NEXT, piece + 1));
    guest.entry(table, pieces - 1, status, 1, WRITE, 0);
    let head = guest.chain(&[(table, 16 * u32::from(pieces), INDIRECT)]);
    guest.offer(head);
    let _turn = work::turn(work::TURN);
    poll(&mut queue);
    assert_eq!(guest.used(), [(head.into(), 1)]);
    work::so_far()
}

/// A guest could keep a worker from its other clients by requests that cost much and do nothing.
#[test]
fn a_request_in_many_pieces_is_more_work() {
    let [few, many] = [2, 256].map(work_of_flush);
    assert!(many >= few + 50, "{few} units for 2 pieces, {many} for 256");
}

#[test]
fn what_cannot_be_carried_out_is_answered() {
    let fixture = Fixture::new();
    let end = (1 << 20) / 512;
    for (kind, sector, payload, room, wanted) in [
        (IN, end, 0, 512, IO_ERROR),
        (IN, u64::MAX, 0, 512, IO_ERROR),
        (IN, u64::MAX / 512, 0, 512, IO_ERROR),
        (OUT, end - 1, 1024, 0, IO_ERROR),
        (IN, 0, 0, 511, IO_ERROR),
        (OUT, 0, 513, 0, IO_ERROR),
        (OUT, 0, 0, 0, IO_ERROR),
        (IN, 0, 0, (1 << 18) + 512, IO_ERROR),
        (99, 0, 0, 0, UNSUPPORTED),
        (DISCARD, 0, 15, 0, UNSUPPORTED),
        (DISCARD, 0, 32, 0, UNSUPPORTED),
        (FLUSH, 0, 0, 0, OK),
    ] {
        let found = status(&fixture, kind, sector, &vec![0; payload], room);
        assert_eq!(found, wanted, "kind {kind} at {sector} with {payload} and room for {room}");
    }
    fixture.device.fail(Some(Kind::Io));
    assert_eq!(status(&fixture, IN, 0, &[], 512), IO_ERROR);
    fixture.device.fail(None);
    fixture.device.change(|geometry| geometry.read_only = true);
    assert_eq!(status(&fixture, OUT, 0, &[1; 512], 0), IO_ERROR);
    assert_eq!(status(&fixture, IN, 0, &[], 512), OK);
}

#[test]
fn what_is_read_only_for_clients_is_not_changed_by_any_request() {
    let fixture = Fixture::new();
    let export = Export::new("ram0", Aligned::new(fixture.device.clone())).unwrap().with_read_only(true);
    let fixture = Fixture { export: Arc::new(export), ..fixture };
    for (kind, payload) in [
        (OUT, vec![1; 512]),
        (DISCARD, range(0, 8, 0)),
        (WRITE_ZEROES, range(0, 8, 0)),
        (WRITE_ZEROES, range(0, 8, 1)),
    ] {
        assert_eq!(status(&fixture, kind, 0, &payload, 0), IO_ERROR, "kind {kind}");
    }
    assert_eq!(fixture.device.log(), []);
}

#[test]
fn ranges_are_discarded_and_zeroed_as_their_flags_say() {
    let fixture = Fixture::new();
    for (kind, flags, wanted) in [
        (DISCARD, 0, OK),
        (DISCARD, 1, UNSUPPORTED),
        (WRITE_ZEROES, 0, OK),
        (WRITE_ZEROES, 1, OK),
        (WRITE_ZEROES, 2, UNSUPPORTED),
    ] {
        assert_eq!(status(&fixture, kind, 0, &range(8, 8, flags), 0), wanted, "{kind} {flags}");
    }
    let ops: Vec<_> =
        fixture.device.log().iter().map(|(op, range, _)| (*op, range.offset, range.len)).collect();
    let zeroes = (Op::WriteZeroes, 4096, 4096);
    assert_eq!(ops, [(Op::Discard, 4096, 4096), zeroes, zeroes]);
    assert_eq!(status(&fixture, DISCARD, 0, &range(u64::MAX, u32::MAX, 0), 0), IO_ERROR);
}

#[test]
fn the_name_is_read_as_far_as_there_is_room() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let (whole, part) = (guest.request(GET_ID, 0, &[], 20), guest.request(GET_ID, 0, &[], 3));
    poll(&mut queue);
    assert_eq!(guest.outcome(&whole).0[..5], *b"ram0\0");
    assert_eq!(guest.outcome(&part), (b"ram".to_vec(), OK));
}

#[test]
fn without_flushes_writes_are_durable() {
    let fixture = Fixture { write_through: true, ..Fixture::new() };
    assert_eq!(status(&fixture, OUT, 0, &[1; 4096], 0), OK);
    assert!(fixture.device.log()[0].2);
}

#[test]
fn a_ring_that_breaks_the_rules_stops_its_queue_and_says_so_once() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    fixture.device.hold();
    guest.request(IN, 0, &[], 512);
    poll(&mut queue);
    guest.offer(SIZE);
    poll(&mut queue);
    assert!(queue.broken().is_some_and(|why| why.contains("does not have")));
    assert_eq!((queue.broken(), queue.pending()), (None, 1));
    fixture.device.release(1);
    poll(&mut queue);
    assert_eq!((queue.pending(), guest.used().len()), (0, 0), "its answer has nowhere to go");
    assert!(queue.arm() && !queue.interrupts());
}

/// The first answer breaks the ring, and the second one has come with it.
#[test]
fn a_queue_whose_ring_breaks_under_its_answers_comes_to_rest() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let done = guest.request(FLUSH, 0, &[], 0);
    poll(&mut queue);
    fixture.device.hold();
    let header = guest.room(16);
    guest.put(header, &[0; 16]);
    let nowhere = guest.chain(&[(header, 16, 0), (7, 512, WRITE), (header, 1, WRITE)]);
    guest.offer(nowhere);
    guest.request(IN, 0, &[], 512);
    poll(&mut queue);
    queue.stop();
    assert_eq!(queue.pending(), 2);
    fixture.device.release(2);
    poll(&mut queue);
    assert_eq!(queue.pending(), 0);
    assert!(queue.broken().is_some());
    assert!(queue.interrupts() && !queue.interrupts(), "for what was answered before");
    assert_eq!(guest.used(), [(done.head.into(), 1)]);
}

#[test]
fn nothing_is_written_that_was_read_from_memory_that_is_gone() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    guest.request(OUT, 0, &[1; 4096], 0);
    guest.heap.gone.store(true, Ordering::SeqCst);
    poll(&mut queue);
    assert!(queue.broken().is_some_and(|why| why.contains("cut off")));
    assert_eq!(fixture.device.log(), []);
}

#[test]
fn nothing_is_answered_that_was_written_to_memory_that_is_gone() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    fixture.device.hold();
    guest.request(IN, 0, &[], 512);
    poll(&mut queue);
    queue.stop();
    guest.heap.gone.store(true, Ordering::SeqCst);
    fixture.device.release(1);
    poll(&mut queue);
    assert!(queue.broken().is_some_and(|why| why.contains("cut off")));
    assert_eq!((queue.pending(), guest.used()), (0, Vec::new()));
}

#[test]
fn a_queue_that_stops_answers_what_it_has_taken_and_leaves_the_rest() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let parts = fixture.parts(&guest);
    let shared = parts.shared.clone();
    let mut queue = BlockQueue::new(parts);
    fixture.device.hold();
    guest.request(IN, 0, &[], 512);
    poll(&mut queue);
    queue.stop();
    guest.request(IN, 0, &[], 512);
    poll(&mut queue);
    assert_eq!((queue.pending(), queue.arm()), (1, true));
    fixture.device.release(1);
    poll(&mut queue);
    assert_eq!((queue.pending(), guest.used().len()), (0, 1));
    assert_eq!(shared.base.load(Ordering::SeqCst), 1);
}

#[test]
fn a_front_end_hears_of_the_first_answers_before_the_last_request_is_taken() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    let all = usize::from(SIZE / 2);
    for _ in 0..all {
        guest.request(FLUSH, 0, &[], 0);
    }
    poll(&mut queue);
    let first = guest.used().len();
    assert!((1..all).contains(&first) && queue.interrupts(), "{first} of {all} were answered");
    assert!(!queue.arm(), "the others wait for no kick");
    poll(&mut queue);
    assert_eq!(first + guest.used().len(), all);
    assert!(!queue.interrupts() && queue.arm(), "nobody wants to hear of more");
}

#[test]
fn a_queue_that_is_not_enabled_takes_nothing() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let parts = fixture.parts(&guest);
    let shared = parts.shared.clone();
    shared.enabled.store(0, Ordering::SeqCst);
    let mut queue = BlockQueue::new(parts);
    guest.request(FLUSH, 0, &[], 0);
    poll(&mut queue);
    assert!(guest.used().is_empty() && queue.arm());
    shared.enabled.store(1, Ordering::SeqCst);
    poll(&mut queue);
    assert_eq!(guest.used().len(), 1);
}

/// One in three polls finds a ring of noise, and the others one of which a few bytes were changed.
#[test]
fn noise_in_the_ring_harms_nobody() {
    let mut random = Random(7);
    let mut broken = 0;
    for round in 0..10_000 {
        let (fixture, mut guest) = (Fixture::new(), Guest::new());
        let mut queue = fixture.queue(&guest);
        for _ in 0..3 {
            let (kind, len) = ([IN, OUT, FLUSH, DISCARD, GET_ID, 77][random.below(6) as usize], 512);
            let payload = if kind == IN { 0 } else { len };
            guest.request(kind, random.below(4096), &vec![1; payload], len - payload);
        }
        let noise = if round % 3 == 0 { 512 } else { 1 + random.below(6) };
        for _ in 0..noise {
            let near = [BASE, LAYOUT.available, LAYOUT.used][random.below(3) as usize];
            let at = near + random.below(if noise == 512 { LEN / 2 } else { 300 });
            guest.put(at.min(BASE + LEN - 1), &[random.draw() as u8]);
        }
        (0..4).for_each(|_| poll(&mut queue));
        queue.interrupts();
        queue.arm();
        broken += usize::from(queue.broken().is_some());
        assert_eq!(queue.pending(), 0);
    }
    assert!((300..9700).contains(&broken), "{broken} of 10000 were broken");
}
