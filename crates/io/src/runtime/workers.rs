//! The threads: one worker for each core, a few for background work and for its computing, and one in front.
//!
//! The front thread accepts connections, sets the coarse clock and looks for peers that stall. It runs nothing that takes
//! long, so that these wait for nothing else. A background thread waits for devices most of the time, and never for a computation: that
//! has threads of its own, which do not take a processor from a worker that wants it.
//!
//! Each thread owns a runtime and a mailbox. A task arrives as a closure by mail, is started on the thread and stays there.
//! A panic on one of these threads ends the process: a server that has lost a task, and does not know which, is worse than
//! none. [`Workers::stop`] drops what still runs, so exports and devices are wound down before.
//!
//! Needs: nothing but the kernel. Locks: a mailbox is a leaf, taken with nothing else held.

use std::io;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use spillway_core::buffer::{Buffers, Workspace};
use spillway_core::{Env, Error, Kind, Task};

use crate::runtime::blocking::Blocking;
use crate::runtime::clock::TICK;
use crate::runtime::driver::{Driver, DriverChoice, RuntimeRecipe, kind_of};
use crate::runtime::env::SystemEnv;
use crate::runtime::idle_backoff::IdleBackoff;
use crate::runtime::pool::{
    AbortOnPanic, TASKS_BETWEEN_POLLS_BACKGROUND, ThreadCounts, ThreadPool, ThreadRole, fatal,
};

/// Workers at most; more cores than this are left to other things.
pub const WORKERS_MAX: usize = 256;

/// Tasks that run between two looks at the ring of a worker; up to three more, where so few have woken others.
const TASKS_BETWEEN_POLLS: usize = 16;

/// How many threads, and what carries their I/O.
#[derive(Clone)]
pub struct WorkersOptions {
    /// Export workers, 1 to [`WORKERS_MAX`].
    pub count: usize,
    /// Threads for background work, at least 1.
    pub background: usize,
    /// Threads for computing in the background, at least 1.
    pub compute: usize,
    /// What the I/O runs on.
    pub driver: DriverChoice,
    /// How long a worker looks for news after it has worked, before it sleeps. Keeps a processor busy for that.
    pub look: Duration,
    /// Buffers of [`BULK_LEN`](crate::BULK_LEN) for connections that receive much at once, apart from those of requests: a connection may wait for
    /// memory while it holds one. Where none are given, some that no budget counts.
    pub bulk: Option<Workspace>,
    /// Told where a thread's driver fails in a way that may not pass. The threads go on trying, but the server had better end.
    pub on_failure: OnFailure,
    /// Where the threads' buffers count: those of the starting thread, unless others are given.
    pub buffers: Buffers,
}

impl Default for WorkersOptions {
    /// One worker for each processor that this process may use, a background thread for 16 of them and a compute thread for 4.
    fn default() -> Self {
        let count = std::thread::available_parallelism().map_or(1, usize::from).min(WORKERS_MAX);
        let (background, compute) = ((count / 16).max(1), (count / 4).max(1));
        Self {
            count,
            background,
            compute,
            driver: DriverChoice::Auto,
            look: Duration::ZERO,
            bulk: None,
            on_failure: Arc::new(|error| tracing::error!("{}", error.message())),
            buffers: Buffers::here(),
        }
    }
}

/// What is told of a driver that fails.
pub type OnFailure = Arc<dyn Fn(Error) + Send + Sync>;

/// The running threads.
pub struct Workers {
    pool: Arc<ThreadPool>,
    threads: Vec<JoinHandle<()>>,
    driver: Driver,
}

impl Workers {
    /// Starts the threads and waits until each has its runtime.
    ///
    /// [`Kind::Invalid`] for a number of workers outside 1 to [`WORKERS_MAX`]; what the system says where a
    /// thread, or the driver that was asked for, cannot be had.
    pub fn start(options: WorkersOptions) -> Result<Self, Error> {
        if !(1..=WORKERS_MAX).contains(&options.count) {
            let count = options.count;
            return Err(Error::invalid(format!("{count} workers are not allowed: give 1 to {WORKERS_MAX}")));
        }
        let WorkersOptions { count: workers, background, compute, .. } = options;
        let counts = ThreadCounts { workers, background, compute };
        let recipe = RuntimeRecipe::choose(options.driver)?;
        let mut workers = Self {
            pool: Arc::new(ThreadPool::new(counts, options.buffers, options.bulk)),
            threads: Vec::new(),
            driver: recipe.driver.clone(),
        };
        workers.launch(&recipe, options.look, &options.on_failure)?;
        let pool = workers.pool.clone();
        workers.pool.front().post(Box::new(move || Box::pin(keep_time(pool))));
        Ok(workers)
    }

    fn launch(
        &mut self,
        recipe: &RuntimeRecipe,
        look: Duration,
        on_failure: &OnFailure,
    ) -> Result<(), Error> {
        let blocking = Arc::new(Blocking::default());
        let (ready, started) = mpsc::channel();
        for index in 0..self.pool.thread_count() {
            let (pool, recipe, ready) = (self.pool.clone(), recipe.clone(), ready.clone());
            let (blocking, on_failure) = (blocking.clone(), on_failure.clone());
            let thread = std::thread::Builder::new().name(pool.thread_name(index)).spawn(move || {
                blocking.enter();
                thread_main(&pool, index, &recipe, look, &*on_failure, &ready);
            });
            self.threads.push(thread.map_err(|error| {
                Error::new(kind_of(&error), format!("worker thread {index} could not be started: {error}"))
            })?);
        }
        drop(ready);
        for outcome in started.iter().take(self.threads.len()) {
            outcome?;
        }
        // Last: of these there may be fewer.
        recipe.start(&blocking)
    }

    /// What carries the I/O, and why if it is not io_uring.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// Number of export workers.
    pub fn count(&self) -> usize {
        self.pool.workers()
    }

    /// Starts a task on the worker `index`, which is below [`Workers::count`].
    pub fn run_on(&self, index: usize, task: Task) {
        assert!(index < self.count(), "worker {index} of {}", self.count());
        self.pool.thread(index).post(task);
    }

    /// The environment that layers get.
    pub fn env(&self) -> Arc<dyn Env> {
        Arc::new(SystemEnv::new(self.pool.clone()))
    }

    pub(crate) fn pool(&self) -> &Arc<ThreadPool> {
        &self.pool
    }

    /// Ends the threads and waits for them. Requests that the kernel has in flight are finished, all other tasks dropped.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        (0..self.pool.thread_count()).for_each(|index| self.pool.thread(index).stop());
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                fatal("a worker thread ended with a panic");
            }
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.end();
    }
}

fn thread_main(
    pool: &ThreadPool,
    index: usize,
    recipe: &RuntimeRecipe,
    look: Duration,
    on_failure: &(dyn Fn(Error) + Send + Sync),
    ready: &mpsc::Sender<Result<(), Error>>,
) {
    let _guard = AbortOnPanic;
    pool.buffers.enter();
    let role = pool.role_of(index);
    let worker = role == ThreadRole::Worker;
    match role {
        ThreadRole::Worker => come_first(),
        ThreadRole::Compute => stand_back(),
        ThreadRole::Background | ThreadRole::Front => {}
    }
    let tasks = if worker { TASKS_BETWEEN_POLLS } else { TASKS_BETWEEN_POLLS_BACKGROUND };
    let runtime = match recipe.runtime(tasks) {
        Ok(runtime) => runtime,
        Err(error) => {
            let text =
                format!("the {} driver of a worker could not be set up: {error}", recipe.driver.name());
            let _ = ready.send(Err(Error::new(kind_of(&error), text)));
            return;
        }
    };
    let thread = pool.thread(index);
    thread.enter(&runtime);
    let _ = ready.send(Ok(()));
    let backoff = IdleBackoff::looking(if worker { look } else { Duration::ZERO });
    let failed = |error: &io::Error| {
        let text = format!("the {} driver of a worker fails: {error}", recipe.driver.name());
        on_failure(Error::new(Kind::Io, text));
    };
    thread.serve(runtime, backoff, || !worker || !pool.background_runs(), &failed);
}

/// How long a worker keeps a processor that others wait for. Short, so that it interrupts those with the ordinary slice, 0.7 to 2.8 ms, when it
/// wakes: on Linux from 6.12 on, before which no thread has a slice of its own. Its share of a processor is that of others.
const WORKER_SLICE: Duration = Duration::from_micros(200);

/// The calling thread gets [`WORKER_SLICE`], if it is an ordinary one.
fn come_first() {
    let changed = scheduling().and_then(|mut attributes| {
        if attributes.sched_policy != libc::SCHED_OTHER as u32 {
            return Ok(());
        }
        attributes.sched_runtime = WORKER_SLICE.as_nanos() as u64;
        // SAFETY: the call reads the attributes, which live until it returns, and changes the calling thread only.
        match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &attributes, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    });
    if let Err(error) = changed {
        tracing::debug!("a worker has the slice of other threads: {error}");
    }
}

/// How the calling thread is scheduled. See sched_getattr(2).
fn scheduling() -> io::Result<libc::sched_attr> {
    // SAFETY: it has numbers only, which may be zero.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of_val(&attributes);
    // SAFETY: the call fills no more than `size` bytes of the attributes, which live until it returns.
    match unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &mut attributes, size, 0) } {
        0 => Ok(attributes),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The calling thread no longer interrupts another one when it wakes (`SCHED_BATCH`). Its share of a processor stays: a lower one could not be
/// raised without privileges once a request waits.
fn stand_back() {
    // The kernel's sched_param is one number. musl's function of this name makes no call.
    let ordinary: libc::c_int = 0;
    // SAFETY: the call reads the parameter, which lives until it returns, and changes the calling thread only.
    if unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_BATCH, &raw const ordinary) } != 0
    {
        tracing::debug!("a compute thread stays an ordinary one: {}", io::Error::last_os_error());
    }
}

async fn keep_time(pool: Arc<ThreadPool>) {
    loop {
        pool.clock.tick();
        compio::time::sleep(TICK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Policy, nice value, and slice in nanoseconds of the calling thread.
    fn told() -> (u32, i32, u64) {
        let attributes = scheduling().unwrap();
        (attributes.sched_policy, attributes.sched_nice, attributes.sched_runtime)
    }

    /// What becomes of a thread's scheduling.
    fn changed_by(change: fn()) -> [(u32, i32, u64); 2] {
        let thread = std::thread::spawn(move || {
            let before = told();
            change();
            [before, told()]
        });
        thread.join().unwrap()
    }

    #[test]
    fn a_worker_has_a_short_slice_unless_the_server_has_a_policy_of_its_own() {
        let [(policy, nice, slice), worker] = changed_by(come_first);
        // Before 6.12 a thread has no slice of its own, and none is told.
        let short = policy == libc::SCHED_OTHER as u32 && slice > 0;
        assert_eq!(worker, (policy, nice, if short { WORKER_SLICE.as_nanos() as u64 } else { slice }));
        let [before, batch] = changed_by(|| {
            stand_back();
            come_first();
        });
        assert_eq!(batch, (libc::SCHED_BATCH as u32, before.1, before.2));
    }
}
