//! The world that models of threads live in: buffers of their own, and an [`Env`] whose tasks are threads.

use std::future::pending;
use std::time::Duration;

use shuttle::future::{spawn_local, yield_now};

use crate::block_device::device::LocalFuture;
use crate::env::{Env, Place, Task};
use crate::memory::buffer::Buffers;
use crate::sync::models;

pub use crate::sync::models::finds;

/// Runs `model` in so many orders, as [`models::every_order`] does, each with buffers of its own.
pub fn every_order(orders: usize, model: impl Fn() + Send + Sync + 'static) {
    models::every_order(orders, move || {
        Buffers::default().enter();
        model();
    });
}

/// A world in which every task is a thread of its own, and time stands still, so that no timer comes to the rescue.
pub struct Tasks;

impl Env for Tasks {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn coarse_now(&self) -> Duration {
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

    fn idle_workers(&self) -> usize {
        0
    }

    fn random(&self) -> u64 {
        0
    }
}
