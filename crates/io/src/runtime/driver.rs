//! Which driver carries the I/O, and how its rings are set up.
//!
//! io_uring is asked for with the best flags that the running kernel takes. Where it is refused (old kernels, container
//! profiles, `kernel.io_uring_disabled`), readiness polling with a pool of blocking threads takes over and says why.

use std::fmt;
use std::io;
use std::time::Duration;

use compio::driver::op::OpCodeFlag;
use compio::driver::{AsyncifyPool, DriverType, ProactorBuilder};
use compio::runtime::{Runtime, RuntimeBuilder};
use spillway_core::{Error, Kind};

use crate::runtime::blocking::Blocking;

/// Wakes from other threads that one worker can hold. A task has at most one, so the queue cannot fill up below this many
/// tasks; full, it would make the waking thread spin, and two workers that wake each other would spin for ever.
pub(crate) const WAKES_MAX: usize = 16384;

/// Entries of a submission queue; more only cost an extra system call.
const RING_ENTRIES: u32 = 1024;

/// Threads for calls that can only block, shared by all workers: each call on a file where the driver polls, few where it does not.
pub(crate) const BLOCKING_THREADS_POLL: usize = 64;
pub(crate) const BLOCKING_THREADS_IO_URING: usize = 8;

/// What the caller wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DriverChoice {
    /// io_uring where it works, polling otherwise.
    #[default]
    Auto,
    /// io_uring or an error.
    IoUring,
    /// Readiness polling and blocking threads.
    Poll,
}

/// What the caller got; displays as words for a start line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Completion by io_uring.
    IoUring,
    /// Readiness polling; with the reason if io_uring was wanted and refused.
    Poll(Option<String>),
}

impl Driver {
    /// `io_uring` or `poll`.
    pub fn name(&self) -> &'static str {
        match self {
            Driver::IoUring => "io_uring",
            Driver::Poll(_) => "poll",
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Driver::Poll(Some(reason)) => write!(f, "poll ({reason})"),
            _ => f.write_str(self.name()),
        }
    }
}

/// How the kernel runs completions, best first.
#[derive(Clone, Copy)]
enum TaskRun {
    /// Only when the ring's thread waits (Linux 6.1).
    Deferred,
    /// At the next system call, without interrupting (Linux 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

/// A recipe for runtimes that are all alike.
#[derive(Clone)]
pub(crate) struct RuntimeRecipe {
    pub(crate) driver: Driver,
    proactor: ProactorBuilder,
}

impl RuntimeRecipe {
    /// Finds out what the kernel allows, by trying.
    pub(crate) fn choose(choice: DriverChoice) -> Result<Self, Error> {
        if choice == DriverChoice::Poll {
            return Ok(Self::poll(None));
        }
        match Self::io_uring() {
            Ok(recipe) => Ok(recipe),
            Err(error) if choice == DriverChoice::Auto => Ok(Self::poll(Some(refusal(&error)))),
            Err(error) => Err(Error::new(
                kind_of(&error),
                format!("{}; leave the driver to 'auto' or choose 'poll'", refusal(&error)),
            )),
        }
    }

    fn poll(reason: Option<String>) -> Self {
        Self { driver: Driver::Poll(reason), proactor: proactor(DriverType::Poll) }
    }

    fn io_uring() -> io::Result<Self> {
        let mut last = io::Error::from_raw_os_error(libc::ENOSYS);
        for task_run in [TaskRun::Deferred, TaskRun::Cooperative, TaskRun::Interrupting] {
            let mut proactor = proactor(DriverType::IoUring);
            let gentle = !matches!(task_run, TaskRun::Interrupting);
            proactor.single_issuer(matches!(task_run, TaskRun::Deferred));
            proactor.defer_taskrun(matches!(task_run, TaskRun::Deferred));
            proactor.coop_taskrun(gentle).taskrun_flag(gentle);
            let mut recipe = Self { driver: Driver::IoUring, proactor };
            match recipe.runtime(1) {
                // Asked at first, this would hide why a ring is refused.
                Ok(_) => {
                    recipe.proactor.detect_opcode_support(OPCODES);
                    return recipe.runtime(1).map(|_| recipe);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Makes the threads for calls that can only block, for runtimes of this recipe.
    pub(crate) fn start(&self, blocking: &Blocking) -> Result<(), Error> {
        let wanted = match self.driver {
            Driver::IoUring => BLOCKING_THREADS_IO_URING,
            Driver::Poll(_) => BLOCKING_THREADS_POLL,
        };
        blocking.start(wanted).map_err(|error| {
            Error::new(kind_of(&error), format!("threads for calls that block could not be started: {error}"))
        })
    }

    /// A runtime for the calling thread. It looks for I/O after at most `tasks_between_polls` tasks.
    pub(crate) fn runtime(&self, tasks_between_polls: usize) -> io::Result<Runtime> {
        RuntimeBuilder::new()
            .with_proactor(self.proactor.clone())
            .sync_queue_size(WAKES_MAX)
            .event_interval(tasks_between_polls)
            .build()
    }
}

/// What is asked of a ring. Linux has all of it since 5.6, and so the rest: fallocate.
const OPCODES: OpCodeFlag = OpCodeFlag::Read
    .union(OpCodeFlag::Write)
    .union(OpCodeFlag::Fsync)
    .union(OpCodeFlag::Recv)
    .union(OpCodeFlag::PollAdd)
    .union(OpCodeFlag::AsyncCancel);

fn proactor(driver: DriverType) -> ProactorBuilder {
    let mut builder = ProactorBuilder::new();
    // The runtime's own threads are made at a moment of its choice, and it cannot go on where one is refused: it never needs any, because
    // what blocks has threads of ours.
    let pool = AsyncifyPool::new(0, Duration::ZERO);
    builder.driver_type(driver).capacity(RING_ENTRIES).reuse_thread_pool(pool);
    if driver == DriverType::IoUring {
        builder.cqsize(4 * RING_ENTRIES);
    }
    builder
}

fn refusal(error: &io::Error) -> String {
    let hint = match error.raw_os_error() {
        Some(libc::EPERM) => match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
            Ok(value) if value.trim() != "0" => {
                format!(": the sysctl kernel.io_uring_disabled is {}", value.trim())
            }
            _ => ": a security profile forbids it, as container runtimes do by default".into(),
        },
        Some(libc::ENOSYS) => ": the kernel has no io_uring, or a security profile hides it".into(),
        Some(libc::ENOMEM) => ": the limit of locked memory (ulimit -l) is too low".into(),
        _ => String::new(),
    };
    format!("io_uring was refused{hint} ({error})")
}

/// The kind of a failed system call.
pub(crate) fn kind_of(error: &io::Error) -> Kind {
    error.raw_os_error().map_or(Kind::Io, Kind::of_errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_its_reason() {
        let text = refusal(&io::Error::from_raw_os_error(libc::ENOSYS));
        assert!(text.contains("no io_uring") && text.contains("os error 38"), "{text}");
        assert_eq!(Driver::Poll(Some("why".into())).to_string(), "poll (why)");
    }

    #[test]
    fn polling_can_be_had_everywhere() {
        let recipe = RuntimeRecipe::choose(DriverChoice::Poll).unwrap();
        assert_eq!(recipe.driver, Driver::Poll(None));
        assert_eq!(recipe.runtime(8).unwrap().driver_type(), DriverType::Poll);
    }
}
