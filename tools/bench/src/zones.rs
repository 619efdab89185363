//! E5: dirty limits for each zone of memory, beside one limit for all of it.

mod file;
mod file_system;
mod memory;
mod model;
mod setup;
mod stick;
mod store;
mod svg;
mod time;
mod watch;
mod world;

use std::path::Path;

use anyhow::{Result, bail};

use crate::report::Rounds;

/// Where the pictures go, seen from the root of the repository.
const PICTURES: &str = "docs/pictures";

/// The part that `wanted` names; both by default.
pub(crate) fn run(count: usize, wanted: Option<&str>) -> Result<()> {
    let rounds = Rounds::new(count, "zones");
    match wanted {
        None => model::run(rounds.part("model"), Path::new(PICTURES))
            .and_then(|()| store::run(rounds.part("store"), Path::new(PICTURES))),
        Some("model") => model::run(rounds.part("model"), Path::new(PICTURES)),
        Some("store") => store::run(rounds.part("store"), Path::new(PICTURES)),
        Some(other) => bail!("there is no part {other:?}; there are: model, store"),
    }
}
