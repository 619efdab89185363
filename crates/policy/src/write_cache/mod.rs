//! Which blocks a write cache takes, commits and frees.

pub mod commits;
pub mod free_runs;
pub mod islands;
pub mod lap;
pub mod merge;
pub mod quarantine;
pub mod window;
