//! What a front end and the next server make of a server that has come to its end.

use std::sync::Arc;
use std::task::Context;

use spillway_core::Op;
use spillway_core::contract::Wakes;
use spillway_core::shared_memory::{Queue, SharedMemory};

use super::super::inflight::{Former, Inflight, Unflushed, total_len};
use super::super::queue::BlockQueue;
use super::guest::{Fixture, Guest, Heap, SIZE};

fn poll(queue: &mut BlockQueue) {
    let wakes = Arc::<Wakes>::default();
    queue.poll(&mut Context::from_waker(&wakes.waker()));
}

#[test]
fn what_was_in_flight_is_carried_out_again_in_its_order_and_what_was_answered_is_not() {
    let (fixture, mut guest) = (Fixture::new(), Guest::new());
    let mut queue = fixture.queue(&guest);
    guest.request(1, 0, &[1; 4096], 0);
    poll(&mut queue);
    fixture.device.hold();
    let lost: Vec<_> =
        (2..5).map(|value| guest.request(1, u64::from(value) * 8, &[value; 4096], 0)).collect();
    poll(&mut queue);
    assert_eq!((guest.used().len(), queue.pending()), (1, 3));
    drop(queue);
    fixture.device.log();
    // Of the next server, whose device answers.
    let next = Fixture { inflight: fixture.inflight.clone(), ..Fixture::new() };
    let mut queue = next.queue(&guest);
    let new = guest.request(0, 0, &[], 512);
    poll(&mut queue);
    let wanted: Vec<_> = lost.iter().chain([&new]).map(|added| u32::from(added.head)).collect();
    assert_eq!(guest.used().iter().map(|(head, _)| *head).collect::<Vec<_>>(), wanted);
    let log: Vec<_> = next.device.log().iter().map(|(op, range, _)| (*op, range.offset)).collect();
    assert_eq!(log, [(Op::Write, 8192), (Op::Write, 12288), (Op::Write, 16384), (Op::Read, 0)]);
    drop(queue);
    let mut queue = next.queue(&guest);
    poll(&mut queue);
    assert!(guest.used().is_empty() && next.device.log().is_empty(), "nothing was left");
}

#[test]
fn a_request_that_was_given_back_and_not_noted_is_done() {
    let heap = Heap::new(total_len(1, SIZE));
    let mut before = Inflight::open(heap.clone(), 0, SIZE).unwrap();
    [3, 9, 1].into_iter().for_each(|head| before.take(head));
    before.give_back(9);
    before.given_back(9, 1);
    before.give_back(3);
    // The used ring has it; then the server ends.
    let mut after = Inflight::open(heap.clone(), 0, SIZE).unwrap();
    assert_eq!(after.recover(2), [1]);
    after.take(5);
    let mut last = Inflight::open(heap.clone(), 0, SIZE).unwrap();
    assert_eq!(last.recover(2), [1, 5], "in the order in which they were taken");
    // Before the used ring has it.
    last.give_back(1);
    assert_eq!(Inflight::open(heap, 0, SIZE).unwrap().recover(2), [1, 5]);
}

#[test]
fn memory_of_another_kind_or_size_is_refused() {
    let heap = Heap::new(total_len(2, SIZE));
    assert!(Inflight::open(heap.clone(), 0, SIZE).is_some());
    assert!(Inflight::open(heap.clone(), 0, SIZE / 2).is_none(), "another size");
    assert!(Inflight::open(heap.clone(), 7, SIZE).is_none(), "beyond its end");
    assert!(Inflight::open(Heap::new(total_len(1, 2)), 0, 2).is_some());
    assert!(Inflight::open(Heap::new(total_len(1, 2)), 1, 2).is_none(), "the trailer is there");
    heap.store(8, 2);
    assert!(Inflight::open(heap, 0, SIZE).is_none(), "another version");
}

#[test]
fn who_comes_next_knows_whether_acknowledged_writes_were_flushed() {
    let heap = Heap::new(total_len(1, SIZE));
    let open = |server| {
        let (unflushed, former) = Unflushed::open(heap.clone(), server, true);
        unflushed.claim(server);
        (unflushed, former)
    };
    let (first, former) = open(1);
    assert_eq!(former, Former::None);
    assert_eq!(open(2).1, Former::Other { unflushed: false });
    first.written();
    assert_eq!(open(3).1, Former::Other { unflushed: true });
    let number = first.begin_flush();
    assert_eq!(open(4).1, Former::Other { unflushed: true }, "it has not ended");
    first.flushed(number);
    assert_eq!(open(5).1, Former::Other { unflushed: false });
    let (early, late) = (first.begin_flush(), first.begin_flush());
    first.written();
    first.flushed(early);
    first.flushed(late);
    assert_eq!(open(6).1, Former::Other { unflushed: true }, "written while they were under way");
    let early = first.begin_flush();
    first.written();
    let late = first.begin_flush();
    first.flushed(early);
    assert_eq!(open(7).1, Former::Other { unflushed: true }, "the early one has not covered it");
    first.flushed(late);
    assert_eq!(open(8).1, Former::Other { unflushed: false });
    assert_eq!(open(8).1, Former::This);
    heap.write(total_len(1, SIZE) - 64, b"another.");
    assert_eq!(open(9).1, Former::Other { unflushed: true }, "nothing is known of it");
}

#[test]
fn what_was_lost_is_told_whichever_server_the_front_end_comes_to_next() {
    let heap = Heap::new(total_len(1, SIZE));
    let open = |server| Unflushed::open(heap.clone(), server, true).0;
    open(1).claim(1);
    open(2).lose();
    assert!(open(2).lost(), "it comes again to the server that knew it");
    assert!(open(2).lost() && open(3).lost(), "as often as it comes");
    let durable = Unflushed::open(heap.clone(), 4, false).0;
    durable.claim(4);
    durable.written();
    assert_eq!(
        Unflushed::open(heap, 5, true).1,
        Former::Other { unflushed: false },
        "nothing is lost with it"
    );
}

/// What the next server finds after one request.
fn noted(write_through: bool, kind: u32, payload: &[u8]) -> Former {
    let (heap, mut guest) = (Heap::new(total_len(1, SIZE)), Guest::new());
    let (unflushed, _) = Unflushed::open(heap.clone(), 1, true);
    unflushed.claim(1);
    let fixture = Fixture { unflushed: Arc::new(unflushed), write_through, ..Fixture::new() };
    let mut queue = fixture.queue(&guest);
    guest.request(kind, 0, payload, 0);
    poll(&mut queue);
    assert_eq!(guest.used().len(), 1);
    Unflushed::open(heap, 2, true).1
}

#[test]
fn only_what_a_crash_can_take_is_noted() {
    let range = [&0u64.to_le_bytes()[..], &8u32.to_le_bytes(), &0u32.to_le_bytes()].concat();
    let write = [1; 4096];
    for (write_through, kind, payload, unflushed) in [
        (false, 1, &write[..], true),
        (false, 13, &range, true),
        (false, 11, &range, false),
        (true, 1, &write, false),
        (true, 13, &range, false),
    ] {
        let found = noted(write_through, kind, payload);
        assert_eq!(found, Former::Other { unflushed }, "kind {kind}, write-through {write_through}");
    }
}

#[test]
fn every_flush_fails_where_a_former_server_has_lost_writes() {
    let mut unflushed = Unflushed::unseen();
    unflushed.lose();
    let (fixture, mut guest) = (Fixture { unflushed: Arc::new(unflushed), ..Fixture::new() }, Guest::new());
    let mut queue = fixture.queue(&guest);
    let flushes = [(); 2].map(|()| guest.request(4, 0, &[], 0));
    poll(&mut queue);
    assert_eq!(flushes.each_ref().map(|flush| guest.outcome(flush).1), [1, 1]);
    assert_eq!(fixture.device.log().len(), 0);
}
