//! Threads for the calls of one file that can only block.

use std::sync::Arc;

use compio::runtime::Runtime;
use spillway_core::sync::Semaphore;

use crate::runtime::blocking::call_on_blocking_thread;
use crate::runtime::driver::{BLOCKING_THREADS_IO_URING, BLOCKING_THREADS_POLL};

/// Half of the threads for such calls, where all can be had: a file that hangs leaves the others to other files.
pub(super) struct Turns(Semaphore);

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Semaphore::new(BLOCKING_THREADS_POLL as u64 / 2)))
    }

    /// What `call` returns, on such a thread, once there is one for it.
    pub(super) async fn call<T: Send + 'static>(
        self: Arc<Self>,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let units = if is_polling() { 1 } else { (BLOCKING_THREADS_POLL / BLOCKING_THREADS_IO_URING) as u64 };
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
pub(super) fn is_polling() -> bool {
    Runtime::with_current(|runtime| runtime.driver_type().is_polling())
}

/// Held by a call until it has ended, whether anybody waits for it or not.
struct Turn(Arc<Turns>, u64);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.give(self.1);
    }
}
