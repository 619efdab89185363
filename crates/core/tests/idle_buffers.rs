//! Buffers that threads keep and others need. The limit of buffers is the whole process's: one test at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::sync::Barrier;
use std::task::{Context, Poll, Waker};

use spillway_core::IoBuf;
use spillway_core::buffer::{self, Reserve};
use spillway_core::contract::block_on;
use spillway_core::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

/// Has so many threads use buffers and then idle while `then` runs.
fn beside_idle_threads(threads: usize, then: impl FnOnce()) {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                for len in [4096, 16 << 10, 128 << 10, 256 << 10, 1 << 20] {
                    drop([IoBuf::new(len), IoBuf::new(len)]);
                }
                barrier.wait();
                barrier.wait();
            });
        }
        barrier.wait();
        then();
        barrier.wait();
    });
}

#[test]
fn idle_threads_give_what_they_keep_to_who_waits() {
    let _alone = ALONE.lock();
    buffer::set_limit(16 * MIB as u64);
    beside_idle_threads(16, || {
        let kept = buffer::bytes_in_use();
        assert!(kept > 2 * MIB as u64, "{kept} bytes are kept: nothing to give back");
        let long = IoBuf::try_new(8 * MIB).expect("idle memory counts as free");
        let mut waiting = pin!(buffer::room(4 * MIB));
        let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Ready(_)), "a request waits for memory that nobody uses");
        drop(long);
    });
    assert_eq!(buffer::waiting(), 0);
}

#[test]
fn memory_is_short_only_when_it_is_in_use() {
    let _alone = ALONE.lock();
    buffer::set_limit(8 * MIB as u64);
    beside_idle_threads(16, || {
        let before = buffer::bytes_in_use();
        let room = (8 * MIB as u64).saturating_sub(before);
        let forced = IoBuf::new((room as usize).next_power_of_two().max(MIB));
        assert!(!buffer::is_short(), "{before} bytes were kept");
        let reserve = Reserve::try_new(MIB as u64).expect("there is room for it");
        drop((forced, reserve));
    });
}

#[test]
fn a_reserve_that_is_refused_takes_and_gives_nothing() {
    let _alone = ALONE.lock();
    buffer::set_limit(MIB as u64);
    let held = Reserve::try_new(MIB as u64 - 4096).expect("nothing is in use");
    let before = buffer::bytes_in_use();
    assert!(Reserve::try_new(8192).is_none());
    assert_eq!(buffer::bytes_in_use(), before);
    drop(held);
    assert_eq!(buffer::bytes_in_use(), before + 4096 - MIB as u64);
}

#[test]
fn nobody_waits_for_ever_while_threads_keep_and_idle() {
    let _alone = ALONE.lock();
    buffer::set_limit(4 * MIB as u64);
    for _ in 0..200 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20).for_each(|_| drop(block_on(buffer::room(256 << 10)))));
            }
            scope.spawn(|| drop(block_on(buffer::room(3 * MIB))));
        });
    }
}
