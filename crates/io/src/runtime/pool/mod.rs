//! What the threads share: mailboxes, loads and the tasks that run on each.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use compio::runtime::Runtime;
use spillway_core::buffer::{Buffers, Workspace};
use spillway_core::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use spillway_core::{Budget, Task};

use crate::patient::write_all;
use crate::runtime::clock::Clock;
use crate::runtime::idle_backoff::IdleBackoff;
use crate::runtime::number;
use crate::runtime::waits::Waits;

/// Tasks that run between two looks at the ring of another thread than a worker: they are long or few. Up to three more, as there.
pub(crate) const TASKS_BETWEEN_POLLS_BACKGROUND: usize = 4;

/// Tasks started from the mail between two looks at the ring: no more than run meanwhile, so that they do not pile up in front
/// of those that run.
const MAIL_MAX: usize = TASKS_BETWEEN_POLLS_BACKGROUND;

/// Bytes fetched at once from a connection of which more has arrived than its small receive takes.
pub const BULK_LEN: usize = 512 << 10;

/// How many threads of each kind there are besides the front thread, at least one of each.
#[derive(Clone, Copy)]
pub(crate) struct ThreadCounts {
    pub(crate) workers: usize,
    pub(crate) background: usize,
    pub(crate) compute: usize,
}

/// What a thread is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    Worker,
    Background,
    Compute,
    Front,
}

/// What the threads share. First the workers, then the background threads, the compute threads and the front thread.
pub(crate) struct ThreadPool {
    counts: ThreadCounts,
    threads: Vec<PoolThread>,
    next_assistant: AtomicUsize,
    next_background: AtomicUsize,
    next_compute: AtomicUsize,
    pub(crate) clock: Clock,
    pub(crate) buffers: Buffers,
    pub(crate) bulk: Workspace,
}

impl ThreadPool {
    pub(crate) fn new(counts: ThreadCounts, buffers: Buffers, bulk: Option<Workspace>) -> Self {
        let ThreadCounts { workers, background, compute } = counts;
        assert!(workers > 0 && background > 0 && compute > 0, "a task of each kind runs somewhere");
        let threads = (0..workers + background + compute + 1).map(PoolThread::new).collect();
        let bulk = bulk.unwrap_or_else(|| {
            let unlimited = Budget::new(Budget::UNLIMITED);
            Workspace::new("large receives", &unlimited, BULK_LEN * workers.min(8))
                .expect("there is no limit")
        });
        Self {
            counts,
            threads,
            next_assistant: AtomicUsize::new(0),
            next_background: AtomicUsize::new(0),
            next_compute: AtomicUsize::new(0),
            clock: Clock::new(),
            buffers,
            bulk,
        }
    }

    pub(crate) fn workers(&self) -> usize {
        self.counts.workers
    }

    pub(crate) fn thread_count(&self) -> usize {
        self.threads.len()
    }

    pub(crate) fn thread(&self, index: usize) -> &PoolThread {
        &self.threads[index]
    }

    /// The background threads in turn.
    pub(crate) fn background(&self) -> &PoolThread {
        let turn = self.next_background.fetch_add(1, Ordering::Relaxed) % self.counts.background;
        &self.threads[self.counts.workers + turn]
    }

    /// The compute threads in turn.
    pub(crate) fn compute(&self) -> &PoolThread {
        let turn = self.next_compute.fetch_add(1, Ordering::Relaxed) % self.counts.compute;
        &self.threads[self.counts.workers + self.counts.background + turn]
    }

    /// Accepting, the clock and what looks after connections; nothing that takes long.
    pub(crate) fn front(&self) -> &PoolThread {
        self.threads.last().expect("the front thread is the last")
    }

    /// Counts one more connection or queue of a worker.
    pub(crate) fn add_load(self: &Arc<Self>, worker: usize) -> LoadGuard {
        self.thread(worker).load.fetch_add(1, Ordering::Relaxed);
        LoadGuard { pool: self.clone(), worker }
    }

    /// The worker with the fewest connections and queues, and how many these are.
    pub(crate) fn emptiest(&self) -> (usize, usize) {
        let load = |index: usize| self.threads[index].load.load(Ordering::Relaxed);
        let all = (0..self.workers()).map(|index| (index, load(index)));
        all.min_by_key(|(_, load)| *load).expect("one worker at least")
    }

    /// A worker other than the caller's, an idle one if there is any; the caller's own if it is the only one.
    pub(crate) fn assistant(&self) -> &PoolThread {
        let count = self.workers();
        let first = self.next_assistant.fetch_add(1, Ordering::Relaxed);
        let caller = CURRENT.get();
        let others = || {
            let all = (0..count).map(|step| &self.threads[(first.wrapping_add(step)) % count]);
            all.filter(|thread| !std::ptr::eq(*thread, caller))
        };
        let idle = others().find(|thread| thread.idle.load(Ordering::Relaxed));
        idle.or_else(|| others().next()).unwrap_or(&self.threads[0])
    }

    /// Whether a thread of the background computes: who yields may have to wait until the scheduler takes the processor from it.
    pub(crate) fn background_runs(&self) -> bool {
        let (first, front) = (self.workers(), self.threads.len() - 1);
        self.threads[first..front].iter().any(|thread| !thread.idle.load(Ordering::Relaxed))
    }

    pub(crate) fn idle_workers(&self) -> usize {
        self.threads[..self.workers()].iter().filter(|thread| thread.idle.load(Ordering::Relaxed)).count()
    }

    /// What a thread is for.
    pub(crate) fn role_of(&self, index: usize) -> ThreadRole {
        let ThreadCounts { workers, background, compute } = self.counts;
        match index {
            _ if index < workers => ThreadRole::Worker,
            _ if index < workers + background => ThreadRole::Background,
            _ if index < workers + background + compute => ThreadRole::Compute,
            _ => ThreadRole::Front,
        }
    }

    /// Threads other than workers that have one role have one name.
    pub(crate) fn thread_name(&self, index: usize) -> String {
        match self.role_of(index) {
            ThreadRole::Worker => format!("spillway-{index}"),
            ThreadRole::Background => "spillway-bg".into(),
            ThreadRole::Compute => "spillway-cpu".into(),
            ThreadRole::Front => "spillway-front".into(),
        }
    }
}

/// A connection or queue counts among those of its worker until this is dropped.
pub(crate) struct LoadGuard {
    pool: Arc<ThreadPool>,
    worker: usize,
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        let before = self.pool.thread(self.worker).load.fetch_sub(1, Ordering::Relaxed);
        assert!(before > 0, "worker {} has none that could leave", self.worker);
    }
}

/// One thread's mailbox and flags, on cache lines of its own.
#[repr(align(128))]
pub(crate) struct PoolThread {
    number: usize,
    idle: AtomicBool,
    stopping: AtomicBool,
    has_mail: AtomicBool,
    /// Connections and queues of the thread, whatever socket they came from.
    load: AtomicUsize,
    /// `None` once the thread has ended.
    mail: Mutex<Option<VecDeque<Task>>>,
    waker: OnceLock<Waker>,
}

impl PoolThread {
    fn new(number: usize) -> Self {
        Self {
            number,
            idle: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            has_mail: AtomicBool::new(false),
            load: AtomicUsize::new(0),
            mail: Mutex::new(Some(VecDeque::new())),
            waker: OnceLock::new(),
        }
    }

    /// Starts a task on the thread, or drops it if the thread has ended.
    pub(crate) fn post(&self, task: Task) {
        let mut mail = self.mail.lock();
        let Some(tasks) = &mut *mail else {
            drop(mail);
            return drop(task);
        };
        tasks.push_back(task);
        drop(mail);
        self.has_mail.store(true, Ordering::Release);
        self.wake();
    }

    /// Interrupts the thread's wait. What it is woken for is stored before: it looks after each wait.
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    /// Starts tasks that came by mail, so many at a time. True if there are more.
    fn open_mail(&self) -> bool {
        if !self.has_mail.swap(false, Ordering::Acquire) {
            return false;
        }
        let (some, more) = match &mut *self.mail.lock() {
            Some(tasks) => {
                let some: Vec<Task> = tasks.drain(..tasks.len().min(MAIL_MAX)).collect();
                (some, !tasks.is_empty())
            }
            None => (Vec::new(), false),
        };
        if more {
            self.has_mail.store(true, Ordering::Release);
        }
        some.into_iter().for_each(|task| spawn_here(task()));
        more
    }

    /// Has the thread end once it has nothing in flight.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.wake();
    }

    /// This is the calling thread: mail wakes it from now on.
    pub(crate) fn enter(&self, runtime: &Runtime) {
        let _ = self.waker.set(runtime.waker());
        CURRENT.set(self);
        number::set(self.number);
    }

    /// Runs tasks until [`PoolThread::stop`], and takes no more mail then. Before it sleeps it lets others run, where that `pays`; errors of its
    /// driver that may not pass are told to `failed`.
    pub(crate) fn serve(
        &self,
        runtime: Runtime,
        backoff: IdleBackoff,
        pays: impl Fn() -> bool,
        failed: &dyn Fn(&io::Error),
    ) {
        runtime.enter(|| self.run(backoff, pays, Waits::new(&runtime, failed)));
        SPENT.take();
        close(runtime);
        let unread = self.mail.lock().take();
        drop(unread);
    }

    fn run(&self, mut backoff: IdleBackoff, pays: impl Fn() -> bool, mut waits: Waits<'_>) {
        let stopping = || self.stopping.load(Ordering::Acquire);
        loop {
            let mail = self.open_mail();
            let before = TASKS_POLLED.get();
            let mut ready = waits.runtime.run();
            let polled = TASKS_POLLED.get().wrapping_sub(before);
            // What a task passes to another does not wait for a look at the ring, unless many have run or one was long.
            if ready && polled < TASKS_BETWEEN_POLLS_BACKGROUND && SPENT.with_borrow(Vec::is_empty) {
                ready = waits.runtime.run();
            }
            let more = ready | mail | !SPENT.with_borrow(Vec::is_empty);
            // The last task to be finished may just have been: nothing would wake the thread any more.
            if stopping() && detached() == 0 {
                return;
            }
            if TASKS_POLLED.get() != before {
                backoff.worked();
                waits.worked();
            }
            if more {
                waits.look(stopping);
                SPENT.with_borrow_mut(|spent| spent.drain(..).for_each(Waker::wake));
                continue;
            }
            let looks = backoff.let_others_run(&pays);
            self.idle.store(true, Ordering::Relaxed);
            if looks {
                waits.look(stopping);
            } else {
                waits.sleep(stopping);
            }
            self.idle.store(false, Ordering::Relaxed);
        }
    }
}

thread_local! {
    static CURRENT: Cell<*const PoolThread> = const { Cell::new(std::ptr::null()) };
    static CLOSING: Cell<bool> = const { Cell::new(false) };
    static TASKS_POLLED: Cell<usize> = const { Cell::new(0) };
    static DETACHED: Cell<usize> = const { Cell::new(0) };
    /// Tasks that have had their turn.
    static SPENT: RefCell<Vec<Waker>> = const { RefCell::new(Vec::new()) };
}

/// Wakes a task that has had its turn: behind those that are ready, and those that the next look at the ring finds ready.
pub(crate) fn others_first(context: &Context<'_>) {
    match CURRENT.get().is_null() {
        true => context.waker().wake_by_ref(),
        false => SPENT.with_borrow_mut(|spent| spent.push(context.waker().clone())),
    }
}

/// Whether a task can be started on this thread: it has a runtime, and is not taking it down.
pub(crate) fn can_spawn() -> bool {
    !CLOSING.get() && Runtime::try_with_current(|_| ()).is_ok()
}

/// Starts a task on this thread, which has a runtime.
pub(crate) fn spawn_here(future: impl Future<Output = ()> + 'static) {
    compio::runtime::spawn(Guarded(future)).detach();
}

/// Like [`spawn_here`], for work that the kernel has in flight: the thread does not end before it is done.
pub(crate) fn spawn_detached(future: impl Future<Output = ()> + 'static) {
    DETACHED.set(DETACHED.get() + 1);
    spawn_here(async move {
        future.await;
        DETACHED.set(DETACHED.get() - 1);
    });
}

/// Number of unfinished tasks of [`spawn_detached`] on this thread.
pub(crate) fn detached() -> usize {
    DETACHED.get()
}

/// Drops a runtime with all its tasks. A task that is dropped here must not start another one.
pub(crate) fn close(runtime: Runtime) {
    CLOSING.set(true);
    drop(runtime);
    CLOSING.set(false);
}

/// A task of the process: if it panics, the process ends.
struct Guarded<F>(F);

impl<F: Future> Future for Guarded<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let guard = AbortOnPanic;
        TASKS_POLLED.set(TASKS_POLLED.get().wrapping_add(1));
        // SAFETY: the field is never moved out of the pinned value, which has no Drop and is Unpin only if the field is.
        let future = unsafe { self.map_unchecked_mut(|guarded| &mut guarded.0) };
        let outcome = future.poll(context);
        std::mem::forget(guard);
        outcome
    }
}

/// Turns a panic that unwinds through its scope into the end of the process.
pub(crate) struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            fatal("a task of the server panicked (see above)");
        }
    }
}

pub(crate) fn fatal(what: &str) -> ! {
    let thread = std::thread::current();
    let text = format!("spillway: {what}; thread {}; aborting\n", thread.name().unwrap_or("?"));
    // Whether anybody can read it changes nothing.
    let _ = write_all(std::io::stderr(), text.as_bytes(), std::time::Duration::ZERO);
    std::process::abort()
}

#[cfg(test)]
mod tests;
