//! Buffers that threads keep and others of the same engine need.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::sync::{Barrier, mpsc};
use std::task::{Context, Poll, Waker};

use spillway_core::buffer::{self, Buffers, Reserve};
use spillway_core::{IoBuf, block_on};

const MIB: usize = 1 << 20;

/// Runs a test on a thread of an engine of its own, which has everything back when this returns.
fn with_limit(limit: usize, test: fn(&Buffers)) {
    let buffers = Buffers::new(limit as u64);
    let entered = buffers.clone();
    let thread = std::thread::spawn(move || {
        entered.enter();
        test(&entered);
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!((buffers.bytes_in_use(), buffers.waiting()), (0, 0), "something was not given back");
}

/// Has so many threads use buffers of many lengths and then idle while `then` runs.
fn beside_idle_threads(buffers: &Buffers, threads: usize, then: impl FnOnce()) {
    let lengths = [4096, 16 << 10, 128 << 10, 256 << 10, 1 << 20];
    beside_idle_users(
        buffers,
        threads,
        || lengths.iter().for_each(|&len| drop([IoBuf::new(len), IoBuf::new(len)])),
        then,
    );
}

/// Has so many threads run `use_some` and then idle while `then` runs.
fn beside_idle_users(buffers: &Buffers, threads: usize, use_some: impl Fn() + Sync, then: impl FnOnce()) {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let idle: Vec<_> = (0..threads)
            .map(|_| {
                let (end, ended) = mpsc::channel::<()>();
                let (barrier, use_some) = (&barrier, &use_some);
                let thread = scope.spawn(move || {
                    // Each cache has its final share before anything is put there.
                    buffers.enter();
                    barrier.wait();
                    use_some();
                    barrier.wait();
                    let _ = ended.recv();
                });
                (end, thread)
            })
            .collect();
        barrier.wait();
        barrier.wait();
        then();
        for (end, thread) in idle {
            drop(end);
            // A scope alone does not wait for what a thread drops at its end.
            thread.join().unwrap();
        }
    });
}

#[test]
fn idle_threads_give_what_they_keep_to_who_waits() {
    with_limit(16 * MIB, |buffers| {
        beside_idle_threads(buffers, 16, || {
            let kept = buffers.bytes_in_use();
            assert!(kept > 2 * MIB as u64, "{kept} bytes are kept: nothing to give back");
            let long = [8 * MIB, 4 * MIB].map(|len| IoBuf::try_new(len).expect("idle memory counts as free"));
            let mut waiting = pin!(buffer::room(2 * MIB));
            let polled = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert!(matches!(polled, Poll::Ready(_)), "a request waits for memory that is not in use");
            drop(long);
        });
    });
}

/// What threads keep for themselves, without a lock, no other gets: it is little of the limit, however many they are.
#[test]
fn what_threads_keep_for_themselves_is_a_small_part_of_the_limit() {
    with_limit(8 * MIB, |buffers| {
        let small = || drop((0..64).map(|_| IoBuf::new(4096)).collect::<Vec<_>>());
        beside_idle_users(buffers, 64, small, || {
            let long = [4 * MIB, 2 * MIB, MIB, MIB / 2];
            let long = long.map(|len| IoBuf::try_new(len).expect("a sixteenth at most is with the threads"));
            drop(long);
        });
    });
}

#[test]
fn memory_is_short_only_when_it_is_in_use() {
    with_limit(16 * MIB, |buffers| {
        beside_idle_threads(buffers, 16, || {
            let before = buffers.bytes_in_use();
            let mut forced = Vec::new();
            while buffers.bytes_in_use() < 16 * MIB as u64 {
                forced.push(IoBuf::new(256 << 10));
            }
            assert!(!buffer::is_short(), "{before} bytes were kept");
            let reserve = Reserve::try_new(MIB as u64).expect("there is room for it");
            drop((forced, reserve));
        });
    });
}

#[test]
fn a_reserve_that_is_refused_takes_and_gives_nothing() {
    with_limit(MIB, |buffers| {
        let held = Reserve::try_new(MIB as u64 - 4096).expect("nothing is in use");
        let before = buffers.bytes_in_use();
        assert!(Reserve::try_new(8192).is_none());
        assert_eq!(buffers.bytes_in_use(), before);
        drop(held);
        assert_eq!(buffers.bytes_in_use(), before + 4096 - MIB as u64);
    });
}

#[test]
fn no_request_waits_for_ever_while_threads_keep_and_idle() {
    with_limit(4 * MIB, |buffers| {
        for _ in 0..200 {
            let enter_and_use = |times: usize, len: usize| {
                buffers.enter();
                (0..times).for_each(|_| drop(block_on(buffer::room(len))));
            };
            std::thread::scope(|scope| {
                let threads = [(); 4].map(|()| scope.spawn(|| enter_and_use(20, 256 << 10)));
                let large = scope.spawn(|| enter_and_use(1, 3 * MIB));
                threads.into_iter().chain([large]).for_each(|thread| thread.join().unwrap());
            });
        }
    });
}
