//! Reads: hits, misses, and what happens meanwhile.

use super::*;

#[test]
fn a_second_read_is_answered_at_once() {
    let house = House::new(&mebibyte());
    assert_eq!(house.read(3, 2), [0, 0]);
    assert_eq!(house.below.take(Op::Read), [(3 * BLOCK as u64, 2 * BLOCK as u64)]);
    assert!(matches!(house.submit(Request::read(3 * BLOCK as u64, IoBuf::new(2 * BLOCK))), Answer::Done(_)));
    assert_eq!(
        (house.number("read_bytes"), house.number("read_hit_bytes")),
        (4 * BLOCK as u64, 2 * BLOCK as u64)
    );
    assert_eq!(house.text("hit_ratio"), "0.5");
}

#[test]
fn each_stretch_that_is_missing_is_one_read() {
    let house = House::new(&Config { folio_size: Some(8192), ..mebibyte() });
    house.write(10, 4, 1);
    house.write(21, 5, 1);
    assert_eq!(house.read(5, 25)[5], 4);
    let at = |block: u64, blocks: u64| (block * BLOCK as u64, blocks * BLOCK as u64);
    assert_eq!(house.below.take(Op::Read), [at(5, 5), at(11, 10), at(22, 8)]);
}

#[test]
fn what_is_written_while_it_is_read_in_is_not_filled_over() {
    let house = House::new(&Config { folio_size: Some(65536), ..mebibyte() });
    let read = house.spawn(house.submit(Request::read(0, IoBuf::new(16 * BLOCK))));
    house.until("a read below", || !house.below.seen.lock().is_empty());
    house.write(4, 9, 2);
    house.until("the read", || read.get() == Some(Ok(())));
    let expected: Vec<u8> = (0..16).map(|block| if block == 4 || block == 5 { 9 } else { 0 }).collect();
    assert_eq!(house.read(0, 16), expected);
    house.flush();
    assert_eq!(house.below.take(Op::Write), [(4 * BLOCK as u64, 2 * BLOCK as u64)]);
}

#[test]
fn a_second_reader_waits_for_the_first_and_reads_nothing_itself() {
    let house = House::new(&mebibyte());
    let reads = [0, 1].map(|_| house.spawn(house.submit(Request::read(0, IoBuf::new(4 * BLOCK)))));
    house.until("both", || reads.iter().all(|read| read.get() == Some(Ok(()))));
    assert_eq!(house.below.take(Op::Read).len(), 1);
}

#[test]
fn a_reader_that_leaves_leaves_the_blocks_to_the_next() {
    let house = House::new(&mebibyte());
    let mut first = Box::pin(house.submit(Request::read(0, IoBuf::new(4 * BLOCK))));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(std::future::Future::poll(first.as_mut(), &mut context).is_pending());
    let second = house.spawn(house.submit(Request::read(0, IoBuf::new(4 * BLOCK))));
    house.world.go_on();
    drop(first);
    house.until("the second", || second.get() == Some(Ok(())));
}
