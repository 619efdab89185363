//! Writes that need more room than the journal has.

use std::sync::Arc;
use std::task::{Context, Waker};

use spillway_core::contract::Wakes;
use spillway_core::session::Session;
use spillway_core::storage::Moved;
use spillway_core::sync::{AtomicBool, GroupFlush};
use spillway_core::test_clock::Clock;
use spillway_core::{Budget, Geometry, IoBuf, Kind, LocalFuture, Workspace};

use super::super::access::Access;
use super::super::link::Link;
use super::super::negotiation::Described;
use super::connected;
use crate::nbd::wire::{self, cmd};

const BLOCK: usize = 4096;
const BLOCKS: usize = 8;

/// A link whose journal has room for so many blocks, in a world where nothing sleeps.
fn link() -> Arc<Link> {
    super::link(Arc::<Clock>::default(), None, BLOCKS * BLOCK)
}

fn access(link: Arc<Link>) -> Arc<Access> {
    let budget = Budget::new(Budget::UNLIMITED);
    Arc::new(Access {
        link,
        described: Described { structured: true, ..Described::NOTHING },
        geometry: Geometry::in_memory(1 << 20),
        journal: Workspace::new("tests", &budget, BLOCKS * BLOCK).unwrap(),
        _charge: budget.hold(1).unwrap(),
        flushes: GroupFlush::default(),
        freeing: AtomicBool::new(false),
    })
}

/// A write of a block.
fn write(access: &Arc<Access>, block: usize) -> LocalFuture<Moved> {
    let bytes = IoBuf::copy_of(&[1; BLOCK]);
    Box::pin(access.clone().write((block * BLOCK) as u64, bytes, 0, false))
}

/// A server that is slow would get one flush after the other, and none of them would make room.
#[test]
fn a_journal_full_of_changes_under_way_is_flushed_once_one_of_them_is_answered() {
    let link = link();
    let (access, mut context) = (access(link.clone()), Context::from_waker(Waker::noop()));
    let asked = || link.channels[0].lock().calls.iter().map(|call| call.command).collect::<Vec<_>>();
    let mut under_way: Vec<_> = (0..BLOCKS).map(|block| write(&access, block)).collect();
    assert!(under_way.iter_mut().all(|write| write.as_mut().poll(&mut context).is_pending()));
    let mut last = write(&access, BLOCKS);
    (0..10).for_each(|_| assert!(last.as_mut().poll(&mut context).is_pending()));
    assert_eq!(asked(), [cmd::WRITE; BLOCKS], "a flush covers none of them");

    let first = link.channels[0].lock().calls.pop_front().unwrap();
    first.answer(Ok(()), &link.journal);
    (0..2).for_each(|_| assert!(last.as_mut().poll(&mut context).is_pending()));
    assert_eq!(asked().last(), Some(&cmd::FLUSH), "it covers the first");
    let flush = link.channels[0].lock().calls.pop_back().unwrap();
    flush.answer(Ok(()), &link.journal);
    assert!(last.as_mut().poll(&mut context).is_pending());
    assert_eq!(asked(), [cmd::WRITE; BLOCKS], "the last has the room of the first");
}

/// It does not sleep on, and lets none that comes later pass.
#[test]
fn a_write_that_waits_for_room_goes_on_as_soon_as_there_is_some() {
    let link = link();
    let (access, mut context) = (access(link.clone()), Context::from_waker(Waker::noop()));
    let mut under_way: Vec<_> = (0..BLOCKS).map(|block| write(&access, block)).collect();
    assert!(under_way.iter_mut().all(|write| write.as_mut().poll(&mut context).is_pending()));
    let (wakes, mut waiting) = (Arc::<Wakes>::default(), write(&access, BLOCKS));
    let waker = wakes.waker();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());

    let first = link.channels[0].lock().calls.pop_front().unwrap();
    first.give_up(Kind::Unreachable);
    assert_eq!(wakes.count(), 1, "what the first had is free");
    let mut later = write(&access, BLOCKS + 1);
    assert!(later.as_mut().poll(&mut context).is_pending());
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let asked = link.channels[0].lock().calls.back().map(|call| call.range.offset);
    assert_eq!(asked, Some((BLOCKS * BLOCK) as u64), "the one that came first is sent");
}

/// Nobody else looks at the journal then: all who write wait.
#[test]
fn a_write_that_waits_for_room_is_woken_once_a_flush_may_make_some() {
    let link = link();
    let (access, mut context) = (access(link.clone()), Context::from_waker(Waker::noop()));
    let mut session = connected(&link);
    let mut under_way: Vec<_> = (0..BLOCKS).map(|block| write(&access, block)).collect();
    assert!(under_way.iter_mut().all(|write| write.as_mut().poll(&mut context).is_pending()));
    let (wakes, mut waiting) = (Arc::<Wakes>::default(), write(&access, BLOCKS));
    let waker = wakes.waker();
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    session.poll(&mut context);
    session.output().clear();
    assert_eq!((session.pending(), wakes.count()), (BLOCKS, 0), "all are sent");

    session.receive(&wire::simple_reply(0, 1));
    assert_eq!(wakes.count(), 1, "the journal has the first");
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let asked = link.channels[0].lock().calls.pop_front().expect("something is asked");
    assert_eq!(asked.command, cmd::FLUSH);
    asked.answer(Ok(()), &link.journal);
    assert!(waiting.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let asked = link.channels[0].lock().calls.back().map(|call| call.range.offset);
    assert_eq!(asked, Some((BLOCKS * BLOCK) as u64), "it has the room of the first");
}
