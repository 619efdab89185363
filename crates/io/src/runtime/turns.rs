//! Threads for calls of one kind that can only block.

use std::sync::Arc;

use compio::runtime::Runtime;
use spillway_core::sync::Semaphore;

use crate::runtime::blocking::call_on_blocking_thread;
use crate::runtime::driver::{BLOCKING_THREADS_IO_URING, BLOCKING_THREADS_POLL};

/// A part of the threads for such calls, where all can be had: a file or a name server that hangs leaves the others to others.
pub(crate) struct Turns(Semaphore);

/// Of one thread under io_uring.
const UNITS: u64 = (BLOCKING_THREADS_POLL / BLOCKING_THREADS_IO_URING) as u64;

impl Turns {
    /// Half of the threads.
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Semaphore::new(BLOCKING_THREADS_POLL as u64 / 2)))
    }

    /// An eighth of the threads, which is one under io_uring.
    pub(crate) fn few() -> Arc<Self> {
        Arc::new(Self(Semaphore::new(UNITS)))
    }

    /// What `call` returns, on such a thread, once there is one for it.
    pub(crate) async fn call<T: Send + 'static>(
        self: Arc<Self>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let units = if is_polling() { 1 } else { UNITS };
        self.0.take(units).await;
        let turn = Turn(self, units);
        call_on_blocking_thread(move || {
            let done = call();
            drop(turn);
            done
        })
        .await
    }
}

/// Whether the thread's driver polls.
pub(crate) fn is_polling() -> bool {
    Runtime::with_current(|runtime| runtime.driver_type().is_polling())
}

/// Held by a call until it has ended, whether anybody waits for it or not.
struct Turn(Arc<Turns>, u64);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.give(self.1);
    }
}
