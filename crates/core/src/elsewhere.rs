//! Work on another thread, whose outcome the caller waits for.

use std::future::Future;
use std::sync::Arc;

use crate::env::{Env, Place, task};
use crate::sync::{Mutex, WaitList};

/// Runs `work` at `place` to its end, whether anybody waits for its outcome or not. `None` where it was dropped before: its thread ends.
pub fn elsewhere<T, F>(
    env: &dyn Env,
    place: Place,
    work: impl FnOnce() -> F + Send + 'static,
) -> impl Future<Output = Option<T>> + 'static
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let ended = Arc::new(Ended { outcome: Mutex::new(None), waiter: WaitList::default() });
    let worker = Worker { outcome: None, ended: ended.clone() };
    env.spawn(place, task(move || async move { worker.end(work().await) }));
    async move { ended.waiter.until(|| ended.outcome.lock().take()).await }
}

struct Ended<T> {
    /// `Some(None)` once the work was dropped.
    outcome: Mutex<Option<Option<T>>>,
    waiter: WaitList,
}

/// Says what came of the work, whatever becomes of it.
struct Worker<T> {
    outcome: Option<T>,
    ended: Arc<Ended<T>>,
}

impl<T> Worker<T> {
    fn end(mut self, outcome: T) {
        self.outcome = Some(outcome);
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        *self.ended.outcome.lock() = Some(self.outcome.take());
        self.ended.waiter.wake_all();
    }
}
