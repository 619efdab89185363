//! Threads for calls that can only block: opening files, questions to a file system, and all calls on files where the driver polls.
//!
//! All of them are made at the start, so that no request needs a thread that the system may refuse: a call waits for one instead, first come,
//! first served. Where fewer can be had than wanted, half of those are kept: the rest is left to what else of the server needs a thread.
//!
//! Needs: nothing but the kernel. Locks: the queue is a leaf.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, Thread, current, park};

use spillway_core::Job;
use spillway_core::buffer::Buffers;
use spillway_core::sync::Mutex;

use crate::runtime::pool::AbortOnPanic;

type Call = Box<dyn FnOnce() + Send>;

/// The threads; they end with it, after the calls that were made.
#[derive(Default)]
pub(crate) struct Blocking {
    queue: Arc<Queue>,
}

#[derive(Default)]
struct Queue(Mutex<State>);

#[derive(Default)]
struct State {
    calls: VecDeque<Call>,
    idle: Vec<Thread>,
    /// Threads that are to end.
    surplus: usize,
    ended: bool,
}

impl Blocking {
    /// Makes `wanted` threads, or as many as there can be. What the system says where there is none at all.
    pub(crate) fn start(&self, wanted: usize) -> io::Result<()> {
        // Each has to begin before this returns: a beginning thread asks for memory, and breaks down where that is refused.
        let (begins, begun) = mpsc::channel::<()>();
        for count in 0..wanted {
            let (queue, begins) = (self.queue.clone(), begins.clone());
            let serve = move || {
                drop(begins);
                queue.serve();
            };
            match Builder::new().name("spillway-call".into()).spawn(serve) {
                Ok(_) => {}
                Err(error) if count == 0 => return Err(error),
                Err(error) => {
                    let kept = count.div_ceil(2);
                    tracing::warn!("threads for calls that block: {kept} of {wanted} are made: {error}");
                    self.queue.dismiss(count - kept);
                    break;
                }
            }
        }
        drop(begins);
        let ended = begun.recv();
        assert!(ended.is_err(), "nothing is sent");
        Ok(())
    }

    /// Calls of the calling thread are made by these threads from now on.
    pub(crate) fn enter(&self) {
        CURRENT.replace(Some(self.queue.clone()));
    }

    /// The same as [`call_on_blocking_thread`] on one of these.
    pub(crate) async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        self.queue.call(call).await
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        self.queue.0.lock().ended = true;
        self.queue.wake_all();
    }
}

impl Queue {
    async fn call<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> T {
        let (job, report) = Job::new();
        self.push(Box::new(move || report.done(call())));
        job.await.expect("a call that was begun is answered")
    }

    fn push(&self, call: Call) {
        let mut state = self.0.lock();
        state.calls.push_back(call);
        let idle = state.idle.pop();
        drop(state);
        idle.iter().for_each(Thread::unpark);
    }

    fn dismiss(&self, threads: usize) {
        self.0.lock().surplus = threads;
        self.wake_all();
    }

    fn wake_all(&self) {
        let idle = std::mem::take(&mut self.0.lock().idle);
        idle.iter().for_each(Thread::unpark);
    }

    fn serve(&self) {
        let _guard = AbortOnPanic;
        while let Some(call) = self.next() {
            call();
        }
    }

    /// The next call, once there is one; `None` where the thread is to end.
    fn next(&self) -> Option<Call> {
        let me = current();
        loop {
            let mut state = self.0.lock();
            // Woken for no reason, it still stands there.
            state.idle.retain(|thread| thread.id() != me.id());
            if state.surplus > 0 {
                state.surplus -= 1;
                return None;
            }
            if let Some(call) = state.calls.pop_front() {
                return Some(call);
            }
            if state.ended {
                return None;
            }
            state.idle.push(me.clone());
            drop(state);
            park();
        }
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Arc<Queue>>> = const { RefCell::new(None) };
}

/// Makes a call that can only block on a thread for such calls, whose buffers are those of this thread's engine. It is made to its end even if
/// nobody waits for it. Needs a runtime of this crate on the thread that polls it.
pub fn on_blocking_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> impl Future<Output = T> {
    let buffers = Buffers::here();
    call_on_blocking_thread(move || {
        buffers.enter();
        call()
    })
}

/// The same for a call that allocates no buffer: the thread gets no share of the memory that the engine's threads keep for reuse.
pub(crate) async fn call_on_blocking_thread<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let queue = CURRENT.with_borrow(Clone::clone).expect("a thread with a runtime has threads for calls");
    queue.call(call).await
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;
    use crate::{DriverChoice, Local};

    #[test]
    fn more_calls_than_threads_wait_for_their_turn() {
        let local = Local::new(DriverChoice::Poll).unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        let calls = (0..100).map(|number| {
            let held = held.clone();
            on_blocking_thread(move || {
                held.lock().recv().unwrap();
                number
            })
        });
        let mut calls: Vec<_> = calls.map(Box::pin).collect();
        local.block_on(poll_fn(|context| {
            let begun = calls.iter_mut().map(|call| call.as_mut().poll(context));
            assert!(begun.into_iter().all(|call| call.is_pending()), "each waits to be released");
            Poll::Ready(())
        }));
        (0..100).for_each(|_| release.send(()).unwrap());
        for (number, call) in calls.into_iter().enumerate() {
            assert_eq!(local.block_on(call), number);
        }
    }

    #[test]
    fn who_is_surplus_ends_and_the_rest_goes_on_until_the_last_call_is_made() {
        let blocking = Blocking::default();
        blocking.start(4).unwrap();
        blocking.queue.dismiss(3);
        let (sender, outcomes) = mpsc::channel();
        for number in 0..10 {
            let sender = sender.clone();
            blocking.queue.push(Box::new(move || sender.send((number, current().id())).unwrap()));
        }
        drop((blocking, sender));
        let outcomes: Vec<_> = outcomes.iter().collect();
        assert_eq!(outcomes.len(), 10, "each call is made");
        assert!(outcomes.iter().all(|(_, thread)| *thread == outcomes[0].1), "one thread is left");
    }
}
