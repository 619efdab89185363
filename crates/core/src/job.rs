//! Jobs: work on another thread, or on request of another, whose outcome is waited for.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};

use crate::env::{Env, Place, task};
use crate::sync::Mutex;

/// Work under way, and its outcome once it is done: `None` where the work was dropped before. Dropped, it leaves the work to itself.
pub struct Job<T>(Arc<Mutex<State<T>>>);

/// Drop guard of the work: reports the outcome, or `None` if dropped early. Several who are waited for together share one in an [`Arc`].
pub struct Report<T> {
    outcome: Option<T>,
    job: Arc<Mutex<State<T>>>,
}

struct State<T> {
    /// `Some(None)` once the work was dropped.
    outcome: Option<Option<T>>,
    waiter: Option<Waker>,
}

impl<T> Job<T> {
    /// A job for the owner of its report.
    pub fn new() -> (Self, Report<T>) {
        let state = Arc::new(Mutex::new(State { outcome: None, waiter: None }));
        (Self(state.clone()), Report { outcome: None, job: state })
    }

    /// Runs `work` at `place` to its end, whether anybody waits for it or not.
    pub fn spawn<F>(env: &dyn Env, place: Place, work: impl FnOnce() -> F + Send + 'static) -> Self
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (job, report) = Self::new();
        env.spawn(place, task(move || async move { report.done(work().await) }));
        job
    }

    /// Runs `work` on this thread to its end, whether anybody waits for it or not.
    pub fn spawn_here(env: &dyn Env, work: impl Future<Output = T> + 'static) -> Self
    where
        T: 'static,
    {
        let (job, report) = Self::new();
        env.spawn_here(Box::pin(async move { report.done(work.await) }));
        job
    }

    /// Whether the outcome is there.
    pub fn is_done(&self) -> bool {
        self.0.lock().outcome.is_some()
    }
}

impl<T> Future for Job<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut state = self.0.lock();
        match state.outcome.take() {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                state.waiter = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl<T> Report<T> {
    /// The work is done.
    pub fn done(mut self, outcome: T) {
        self.outcome = Some(outcome);
    }
}

impl<T> Drop for Report<T> {
    fn drop(&mut self) {
        let mut state = self.job.lock();
        state.outcome = Some(self.outcome.take());
        let waiter = state.waiter.take();
        drop(state);
        waiter.into_iter().for_each(Waker::wake);
    }
}

/// Runs a future to its end on this thread, parking between wakes.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_crosses_threads() {
        let (job, report) = Job::new();
        let work = std::thread::spawn(move || report.done(7));
        assert_eq!(block_on(job), Some(7));
        work.join().unwrap();
    }

    #[test]
    fn dropped_work_is_reported_as_such() {
        let (job, report) = Job::<u32>::new();
        assert!(!job.is_done());
        drop(report);
        assert!(job.is_done());
        assert_eq!(block_on(job), None);
    }
}
