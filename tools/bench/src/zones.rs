//! E5: dirty limits for each zone of memory, beside one limit for all of it.

mod file;
mod file_system;
mod memory;
mod model;
mod setup;
mod stick;
mod store;
mod time;
mod watch;
mod world;

use anyhow::Result;

use crate::rounds::Rounds;

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    match rounds.part {
        Some("model") => model::run(rounds),
        _ => store::run(rounds),
    }
}
