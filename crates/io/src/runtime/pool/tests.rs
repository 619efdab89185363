//! Which threads are at work.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use spillway_core::{Place, task};

use crate::{Workers, WorkersOptions};

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
