//! Threads beside the server's own, for work that may take long.
//!
//! A thread is had before its work is given out of hand, so that where the system refuses one, what was to be done is still there to be
//! refused or done otherwise.

use std::sync::mpsc::{self, Sender};

use spillway_core::{Error, Kind};
use spillway_io::thread::{STACK_BYTES, Thread};

type Job = Box<dyn FnOnce() + Send>;

/// What is under way.
#[derive(Default)]
pub(crate) struct Beside(Vec<Thread>);

impl Beside {
    /// A thread that waits for its work; [`Kind::Busy`] where the system has no more.
    pub(crate) fn thread(&mut self) -> Result<Idle, Error> {
        self.thread_of(STACK_BYTES)
    }

    fn thread_of(&mut self, stack_bytes: usize) -> Result<Idle, Error> {
        self.0.retain(|thread| !thread.is_finished());
        let (idle, work) = mpsc::channel::<Job>();
        let thread = Thread::spawn(stack_bytes, move || work.into_iter().for_each(|work| work()));
        let thread = thread.map_err(|why| {
            let text =
                format!("no thread can be started ({why}): raise the limit of processes, or try again");
            Error::new(Kind::Busy, text)
        })?;
        self.0.push(thread);
        Ok(Idle(idle))
    }

    /// Waits until everything is done.
    pub(crate) fn join(&mut self) {
        self.0.drain(..).for_each(Thread::join);
    }
}

/// A thread that waits for work, and ends without any where this is dropped.
pub(crate) struct Idle(Sender<Job>);

impl Idle {
    /// Has it do `work`.
    pub(crate) fn run(self, work: impl FnOnce() + Send + 'static) {
        self.0.send(Box::new(work)).expect("the thread waits for it");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_under_way_is_waited_for_and_who_has_nothing_to_do_ends() {
        let mut beside = Beside::default();
        let (done, all) = mpsc::channel();
        beside.thread().unwrap().run(move || done.send(()).unwrap());
        drop(beside.thread().unwrap());
        beside.join();
        assert_eq!(all.try_recv(), Ok(()));
    }

    #[test]
    fn a_system_without_room_for_a_thread_is_a_refusal() {
        let mut beside = Beside::default();
        let refused = beside.thread_of(1 << 62);
        assert_eq!(refused.err().map(|error| error.kind), Some(Kind::Busy));
        beside.join();
    }
}
