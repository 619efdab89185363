//! The world that models of threads live in: buffers of their own, and an [`Env`] whose tasks are threads.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use shuttle::future::{spawn_local, yield_now};
use shuttle::thread::{self, JoinHandle};

use crate::block_device::request::{Op, Request};
use crate::env::{Env, LocalFuture, Place, Task};
use crate::memory::buffer::Buffers;
use crate::sync::{AtomicU64, Ordering, Unseen, models};

pub use crate::sync::models::finds;

/// Runs `model` in so many orders, as [`models::every_order`] does, each with buffers of its own.
pub fn every_order(orders: usize, model: impl Fn() + Send + Sync + 'static) {
    models::every_order(orders, move || {
        Buffers::default().enter();
        model();
    });
}

/// Runs each client in a thread of its own, and waits for all.
pub fn together<T: Send + Sync + 'static>(shared: &Arc<T>, clients: &[fn(&T)]) {
    let spawn = |client: &fn(&T)| {
        let (shared, client) = (shared.clone(), *client);
        thread::spawn(move || client(&shared))
    };
    join(clients.iter().map(spawn).collect::<Vec<_>>());
}

/// Waits for threads that have begun.
pub fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("it ends"));
}

/// Does what is asked of a disk with these bytes.
pub fn carry_out(bytes: &Unseen<Vec<u8>>, request: &mut Request) {
    let mut bytes = bytes.lock();
    let place = request.range.offset as usize..(request.range.offset + request.range.len) as usize;
    match request.op {
        Op::Read => request.buf.copy_from_slice(&bytes[place]),
        Op::Write => bytes[place].copy_from_slice(&request.buf),
        Op::WriteZeroes | Op::Discard => bytes[place].fill(0),
        Op::Flush => {}
    }
}

/// A world in which every task is a thread of its own, and time stands still, so that no timer comes to the rescue.
pub struct Tasks;

impl Env for Tasks {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        if duration.is_zero() { Box::pin(yield_now()) } else { Box::pin(pending()) }
    }

    fn spawn(&self, _: Place, task: Task) {
        self.spawn_here(task());
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        spawn_local(task);
    }

    fn random(&self) -> u64 {
        0
    }
}

/// A world in which time passes: a sleep ends once others had their turn, and then it is as late as it was to end.
#[derive(Clone, Default)]
pub struct Passing(Arc<AtomicU64>);

impl Env for Passing {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn sleep(&self, duration: Duration) -> LocalFuture<()> {
        let passing = self.clone();
        Box::pin(async move {
            yield_now().await;
            passing.0.fetch_add(duration.as_nanos() as u64, Ordering::SeqCst);
        })
    }

    fn spawn(&self, place: Place, task: Task) {
        Tasks.spawn(place, task);
    }

    fn spawn_here(&self, task: LocalFuture<()>) {
        Tasks.spawn_here(task);
    }

    fn random(&self) -> u64 {
        0
    }
}
