//! E3: the page cache. What it writes back for what was written, beside modes in which a whole folio, or one of 64 chunks of it, becomes
//! dirty with a block; what a hit costs; who leaves; memory.

mod bytes;
mod eviction;
mod hits;
mod memory;
mod store;

use anyhow::{Result, bail};

use crate::report::Rounds;

const PARTS: [&str; 5] = ["bytes", "sectors", "hits", "eviction", "memory"];

/// The parts that `wanted` names; all of them by default.
pub(crate) fn run(count: usize, wanted: Option<&str>) -> Result<()> {
    let rounds = Rounds::new(count, "folio");
    if let Some(wanted) = wanted.filter(|wanted| !PARTS.contains(wanted)) {
        bail!("there is no part {wanted:?}; there are: {}", PARTS.join(", "));
    }
    for part in PARTS.into_iter().filter(|part| wanted.is_none_or(|wanted| wanted == *part)) {
        let rounds = rounds.part(part);
        match part {
            "bytes" => bytes::overwrites(rounds)?,
            "sectors" => bytes::sectors(rounds)?,
            "hits" => hits::compare(rounds)?,
            "eviction" => eviction::compare(rounds),
            _ => memory::compare(rounds)?,
        }
    }
    Ok(())
}
