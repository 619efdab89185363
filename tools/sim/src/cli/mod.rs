//! The program: its options, jobs that can be named by them, all processors at work on jobs, and the hunt for deliberate defects.

pub(crate) mod hunt;
pub(crate) mod job;
pub(crate) mod options;
pub(crate) mod race;
