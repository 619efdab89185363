//! Work that the server's own thread has done on a background thread.

use std::future::Future;
use std::sync::mpsc::{self, Receiver};

use spillway_core::{Env, Error, Kind, Place, task};

/// Runs `work` on a background thread, and waits for it.
pub(crate) fn wait_in_background<T, F>(
    env: &dyn Env,
    work: impl FnOnce() -> F + Send + 'static,
) -> Result<T, Error>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Error>> + 'static,
{
    let outcome = wait_for(&in_background(env, work));
    outcome.unwrap_or_else(|| Err(Error::new(Kind::ShuttingDown, "the server ends")))
}

/// Runs `work` on a background thread; its outcome arrives once.
pub(crate) fn in_background<T, F>(env: &dyn Env, work: impl FnOnce() -> F + Send + 'static) -> Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = T> + 'static,
{
    let (sender, outcome) = mpsc::channel();
    let work = move || async move {
        // Nobody waits any more only where the server's thread is gone.
        let _ = sender.send(work().await);
    };
    env.spawn(Place::Background, task(work));
    outcome
}

/// The outcome, or `None` where a background thread dropped the work.
pub(crate) fn wait_for<T>(outcome: &Receiver<T>) -> Option<T> {
    outcome.recv().ok()
}
