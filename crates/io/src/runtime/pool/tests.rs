//! Which threads are at work, and whose turn it is.

use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, mpsc};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, write};
use spillway_core::sync::{AtomicUsize, Mutex, Ordering};
use spillway_core::{Place, task};

use super::others_first;
use crate::runtime::op::{Awaited, Readiness};
use crate::{DriverChoice, Workers, WorkersOptions};

fn until(wanted: impl Fn() -> bool) {
    let start = Instant::now();
    while !wanted() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never is");
        std::thread::yield_now();
    }
}

#[test]
fn what_background_and_compute_threads_do_keeps_workers_from_yielding() {
    let options = WorkersOptions { count: 2, background: 2, compute: 2, ..WorkersOptions::default() };
    let workers = Workers::start(options).unwrap();
    let pool = workers.pool().clone();
    until(|| pool.idle_workers() == 2 && !pool.background_runs());
    let (release, held) = mpsc::channel::<()>();
    workers.run_on(0, task(move || async move { held.recv().unwrap() }));
    until(|| pool.idle_workers() == 1 && !pool.background_runs());
    for place in [Place::Background, Place::Compute, Place::Background, Place::Compute] {
        let (release, held) = mpsc::channel::<()>();
        workers.env().spawn(place, task(move || async move { held.recv().unwrap() }));
        until(|| pool.background_runs());
        release.send(()).unwrap();
        until(|| !pool.background_runs());
    }
    release.send(()).unwrap();
    workers.stop();
}

/// Turns of a task that is never done, in each of which a client of another one answers: that one has a turn after each.
#[test]
fn who_is_answered_in_a_turn_of_another_is_next() {
    const TURNS: usize = 100;
    for driver in [DriverChoice::IoUring, DriverChoice::Poll] {
        let workers =
            Workers::start(WorkersOptions { count: 1, driver, ..WorkersOptions::default() }).unwrap();
        let event = Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap());
        let (answer, turns) = (event.clone(), Arc::new(AtomicUsize::new(0)));
        let taken = turns.clone();
        let busy = poll_fn(move |context| {
            write(&answer, &1u64.to_ne_bytes()).unwrap();
            taken.fetch_add(1, Ordering::Relaxed);
            others_first(context);
            Poll::<()>::Pending
        });
        let (done, counted) = mpsc::channel();
        let bystander = move || async move {
            turn_of(&event).await;
            let before = turns.load(Ordering::Relaxed);
            for _ in 0..TURNS {
                turn_of(&event).await;
            }
            done.send(turns.load(Ordering::Relaxed) - before).unwrap();
        };
        workers.run_on(0, task(move || busy));
        workers.run_on(0, task(bystander));
        assert_eq!(counted.recv().unwrap(), TURNS, "{driver:?}");
        workers.stop();
    }
}

/// It does not see yet what the other task has made ready there.
#[test]
fn who_is_woken_by_another_task_does_not_wait_for_the_ring() {
    for driver in [DriverChoice::IoUring, DriverChoice::Poll] {
        let workers =
            Workers::start(WorkersOptions { count: 1, driver, ..WorkersOptions::default() }).unwrap();
        let [begin, end] = [(); 2].map(|()| Arc::new(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        let (waiting, (sees, seen)) = (Arc::new(Mutex::new(None::<Waker>)), mpsc::channel());
        let (known, awaited) = (waiting.clone(), end.clone());
        let second = move || {
            let mut ended = Awaited::new(&awaited, Readiness::Readable);
            poll_fn(move |context| {
                *known.lock() = Some(context.waker().clone());
                let poll = Pin::new(&mut ended).poll(context);
                sees.send(poll.is_ready()).unwrap();
                poll
            })
        };
        workers.run_on(0, task(second));
        assert!(!seen.recv().unwrap(), "{driver:?}: nobody has ended it");
        let event = begin.clone();
        let first = move || async move {
            turn_of(&event).await;
            write(&end, &1u64.to_ne_bytes()).unwrap();
            let second = waiting.lock().take().unwrap();
            second.wake();
        };
        workers.run_on(0, task(first));
        write(&begin, &1u64.to_ne_bytes()).unwrap();
        assert_eq!([(); 2].map(|()| seen.recv().unwrap()), [false, true], "{driver:?}");
        workers.stop();
    }
}

/// A turn of a task whose client has answered.
async fn turn_of(event: &Arc<OwnedFd>) {
    Awaited::new(event, Readiness::Readable).await;
    read(event, &mut [0; 8]).unwrap();
}
