//! A job of which one run is under way at a time.

use super::primitives::{AtomicU32, Ordering, fence};
use crate::mutant;

const IDLE: u32 = 0;
const RUNNING: u32 = 1;
/// Queued since the run began.
const AGAIN: u32 = 2;

/// What a [`Work::call`] finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Called {
    /// Nothing was under way.
    Idle,
    /// A run was, which was not queued again until now.
    Running,
    /// The same, queued again before.
    Queued,
}

/// A single-flight job: queued while it runs, it runs once more.
///
/// Publish what is wanted, then queue it. A run looks at what is published after it has begun, and when
/// it ends, whether it was queued meanwhile. So whatever was published before a call of [`Work::queue`] is seen by a run that
/// begins later, or by the one that was about to begin.
#[derive(Default)]
pub struct Work(AtomicU32);

impl Work {
    /// Queues a run. True where none is under way: the caller starts it.
    #[must_use]
    pub fn queue(&self) -> bool {
        self.call() == Called::Idle
    }

    /// Queues a run; says what was under way. Where that is idle the caller starts it.
    #[must_use]
    pub fn call(&self) -> Called {
        // Between what was published and the look: a run that is to follow sees it, if this sees that it is to follow.
        fence(Ordering::SeqCst);
        if self.0.load(Ordering::Relaxed) == AGAIN {
            return Called::Queued;
        }
        let next = |state| Some(if state == IDLE { RUNNING } else { AGAIN });
        match self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next) {
            Ok(IDLE) => Called::Idle,
            Ok(RUNNING) => Called::Running,
            _ => Called::Queued,
        }
    }

    /// A run looks at what is published: what was queued before is seen by that.
    pub fn look(&self) {
        let before = self.0.compare_exchange(AGAIN, RUNNING, Ordering::AcqRel, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        assert_ne!(before, Err(IDLE), "a run that looks has begun");
    }

    /// Whether the run that is under way was queued again since it began or looked.
    pub fn is_queued(&self) -> bool {
        self.0.load(Ordering::Acquire) == AGAIN
    }

    /// Ends a run. True where it was queued meanwhile: then the next one has begun, by the caller.
    #[must_use]
    pub fn again(&self) -> bool {
        let next = |state| Some(if state == AGAIN { RUNNING } else { IDLE });
        let before = self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
        fence(Ordering::SeqCst);
        assert_ne!(before, Ok(IDLE), "a run that ends has begun");
        if mutant::on("work: forget what was queued during a run") {
            self.end();
            return false;
        }
        before == Ok(AGAIN)
    }

    /// Ends a run, whatever was queued meanwhile: the caller looks for that itself, afterwards.
    pub fn end(&self) {
        let before = self.0.swap(IDLE, Ordering::Release);
        fence(Ordering::SeqCst);
        assert_ne!(before, IDLE, "a run that ends has begun");
    }

    /// Whether no run is under way.
    pub fn is_idle(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Acquire) == IDLE
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::models::{every_order, finds};
    use shuttle::thread;
    use std::sync::Arc;

    #[derive(Default)]
    struct Job {
        work: Work,
        wanted: [AtomicU32; 3],
        done: [AtomicU32; 3],
        runs: AtomicU32,
    }

    impl Job {
        /// Runs in a thread of its own, as long as it is queued.
        fn start(self: &Arc<Self>) -> thread::JoinHandle<()> {
            let job = self.clone();
            thread::spawn(move || {
                while {
                    assert_eq!(job.runs.fetch_add(1, Ordering::SeqCst), 0, "two runs at once");
                    for (done, wanted) in job.done.iter().zip(&job.wanted) {
                        done.store(wanted.load(Ordering::SeqCst), Ordering::SeqCst);
                    }
                    job.runs.fetch_sub(1, Ordering::SeqCst);
                    job.work.again()
                } {}
            })
        }
    }

    /// Three want something twice each: all of it is done in the end, by one run at a time.
    fn wishes() {
        let job = Arc::new(Job::default());
        let users = [0, 1, 2].map(|user| {
            let job = job.clone();
            thread::spawn(move || {
                let mut runs = Vec::new();
                for wish in 1..=2 {
                    job.wanted[user].store(wish, Ordering::SeqCst);
                    if job.work.queue() {
                        runs.push(job.start());
                    }
                }
                runs.into_iter().for_each(|run| run.join().expect("a run ends"));
            })
        });
        users.into_iter().for_each(|user| user.join().expect("a user ends"));
        assert!(job.work.is_idle());
        assert!(job.done.iter().all(|done| done.load(Ordering::SeqCst) == 2), "something was forgotten");
    }

    #[test]
    fn whatever_is_wanted_is_done_by_one_run_at_a_time() {
        every_order(20_000, wishes);
    }

    #[test]
    fn the_checker_finds_a_job_that_does_not_run_again() {
        finds("work: forget what was queued during a run", whatever_is_wanted_is_done_by_one_run_at_a_time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_while_it_runs_it_runs_once_more() {
        let work = Work::default();
        assert!(work.is_idle() && work.queue() && !work.is_idle());
        assert!(!work.queue() && !work.queue(), "it runs");
        assert!(work.again(), "once for both");
        assert!(!work.again() && work.is_idle());
        assert!(work.queue() && !work.queue());
        work.end();
        assert!(work.is_idle());
    }

    #[test]
    fn what_a_run_has_looked_at_is_queued_no_more() {
        let work = Work::default();
        assert_eq!([(); 3].map(|()| work.call()), [Called::Idle, Called::Running, Called::Queued]);
        assert!(work.is_queued());
        work.look();
        assert!(!work.is_queued() && work.call() == Called::Running && work.again());
        work.look();
        assert!(!work.again() && work.is_idle());
    }
}
