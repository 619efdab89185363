//! An answer that one thread owes a task on another.

use std::sync::Arc;

use spillway_core::sync::{Mutex, WaitList};
use spillway_core::{Answer, Error, Kind};

type Outcome = Result<(), Error>;

#[derive(Default)]
struct Shared {
    outcome: Mutex<Option<Outcome>>,
    waiting: WaitList,
}

/// The obligation. Dropped without an answer, it answers that the server stops.
pub(crate) struct Promise(Arc<Shared>);

impl Promise {
    /// A promise, and the answer that keeps it.
    pub(crate) fn new() -> (Self, Answer<Outcome>) {
        let shared = Arc::new(Shared::default());
        let waiter = shared.clone();
        let answer = async move { waiter.waiting.until(|| waiter.outcome.lock().take()).await };
        (Self(shared), Answer::pending(answer))
    }

    /// Answers.
    pub(crate) fn keep(self, outcome: Outcome) {
        *self.0.outcome.lock() = Some(outcome);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let stopping = || Err(Error::new(Kind::ShuttingDown, "the server stops"));
        self.0.outcome.lock().get_or_insert_with(stopping);
        self.0.waiting.wake_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_core::contract::block_on;

    #[test]
    fn a_promise_is_kept_across_threads_or_broken_loudly() {
        let (promise, answer) = Promise::new();
        let keeper = std::thread::spawn(move || promise.keep(Ok(())));
        assert_eq!(block_on(answer), Ok(()));
        keeper.join().unwrap();
        let (promise, answer) = Promise::new();
        drop(promise);
        assert_eq!(block_on(answer).unwrap_err().kind, Kind::ShuttingDown);
    }
}
