//! What is run, and how to run it again.

use std::cell::Cell;
use std::fmt;

use spillway_simulate::search::campaign::{self, Broken, Tally};
use spillway_simulate::stacks::row::Row;

/// A piece of work that can be named on the command line.
#[derive(Clone, Copy)]
pub(crate) enum Job {
    Seed(u64),
    Sequence(u32, u64),
    Failure(u64),
}

thread_local! {
    static CURRENT: Cell<Option<Task>> = const { Cell::new(None) };
}

/// What this thread runs, or ran last, as it is asked for again.
pub(crate) fn current() -> String {
    let words = |(row, job): Task| format!("cargo xtask sim --stack {} {job}", row.name);
    CURRENT.get().map(words).unwrap_or_default()
}

impl Job {
    pub(crate) fn run(self, row: &'static Row) -> Result<Tally, Box<Broken>> {
        CURRENT.set(Some((row, self)));
        match self {
            Job::Seed(seed) => campaign::seed(row, seed),
            Job::Sequence(len, index) => campaign::sequence(row, len, index),
            Job::Failure(index) => campaign::every_failure(row, index),
        }
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Job::Seed(seed) => write!(f, "--seed {seed}"),
            Job::Sequence(len, index) => write!(f, "--sequence {len}:{index}"),
            Job::Failure(index) => write!(f, "--failure {index}"),
        }
    }
}

/// Work on a stack.
pub(crate) type Task = (&'static Row, Job);
