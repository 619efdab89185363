//! Buffers that threads keep and others need. The limit of buffers is the whole process's: one test at a time.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::pin::pin;
use std::sync::{Barrier, mpsc};
use std::task::{Context, Poll, Waker};

use spillway_core::IoBuf;
use spillway_core::buffer::{self, Reserve};
use spillway_core::contract::block_on;
use spillway_core::sync::Mutex;

static ALONE: Mutex<()> = Mutex::new(());

const MIB: usize = 1 << 20;

/// Runs a test by itself, on a thread whose buffers are gone when this returns.
fn alone(limit: usize, test: fn()) {
    let _alone = ALONE.lock();
    buffer::set_limit(limit as u64);
    std::thread::spawn(test).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    assert_eq!((buffer::bytes_in_use(), buffer::waiting()), (0, 0), "something is left to the next test");
}

/// Has so many threads use buffers of many lengths and then idle while `then` runs.
fn beside_idle_threads(threads: usize, then: impl FnOnce()) {
    let lengths = [4096, 16 << 10, 128 << 10, 256 << 10, 1 << 20];
    beside_idle_users(
        threads,
        || lengths.iter().for_each(|&len| drop([IoBuf::new(len), IoBuf::new(len)])),
        then,
    );
}

/// Has so many threads run `use_some` and then idle while `then` runs.
fn beside_idle_users(threads: usize, use_some: impl Fn() + Sync, then: impl FnOnce()) {
    let barrier = Barrier::new(threads + 1);
    std::thread::scope(|scope| {
        let idle: Vec<_> = (0..threads)
            .map(|_| {
                let (end, ended) = mpsc::channel::<()>();
                let (barrier, use_some) = (&barrier, &use_some);
                let thread = scope.spawn(move || {
                    // Each cache has its final share before anything is put there.
                    drop(IoBuf::new(1));
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
    alone(16 * MIB, || {
        beside_idle_threads(16, || {
            let kept = buffer::bytes_in_use();
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
    alone(8 * MIB, || {
        let small = || drop((0..64).map(|_| IoBuf::new(4096)).collect::<Vec<_>>());
        beside_idle_users(64, small, || {
            let long = [4 * MIB, 2 * MIB, MIB, MIB / 2];
            let long = long.map(|len| IoBuf::try_new(len).expect("a sixteenth at most is with the threads"));
            drop(long);
        });
    });
}

#[test]
fn memory_is_short_only_when_it_is_in_use() {
    alone(16 * MIB, || {
        beside_idle_threads(16, || {
            let before = buffer::bytes_in_use();
            let mut forced = Vec::new();
            while buffer::bytes_in_use() < 16 * MIB as u64 {
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
    alone(MIB, || {
        let held = Reserve::try_new(MIB as u64 - 4096).expect("nothing is in use");
        let before = buffer::bytes_in_use();
        assert!(Reserve::try_new(8192).is_none());
        assert_eq!(buffer::bytes_in_use(), before);
        drop(held);
        assert_eq!(buffer::bytes_in_use(), before + 4096 - MIB as u64);
    });
}

#[test]
fn no_request_waits_for_ever_while_threads_keep_and_idle() {
    alone(4 * MIB, || {
        for _ in 0..200 {
            std::thread::scope(|scope| {
                let small = || (0..20).for_each(|_| drop(block_on(buffer::room(256 << 10))));
                let threads = [small, small, small, small].map(|work| scope.spawn(work));
                let large = scope.spawn(|| drop(block_on(buffer::room(3 * MIB))));
                threads.into_iter().chain([large]).for_each(|thread| thread.join().unwrap());
            });
        }
    });
}
