//! E3: the page cache. What it writes back for what was written, beside modes in which a whole folio, or one of 64 chunks of it, becomes
//! dirty with a block, and a database; what a hit costs; who leaves; memory; and the whole server over NBD beside its peers.

mod bytes;
mod database;
mod eviction;
mod hits;
mod instructions;
mod memory;
mod nbd;
mod store;

use anyhow::{Result, bail};

use crate::report::Rounds;

pub(crate) use instructions::read_hits;

const PARTS: [&str; 8] =
    ["bytes", "sectors", "database", "hits", "instructions", "eviction", "memory", "nbd"];

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
            "database" => database::compare(rounds)?,
            "hits" => hits::compare(rounds)?,
            "instructions" => instructions::compare(rounds)?,
            "eviction" => eviction::compare(rounds),
            "memory" => memory::compare(rounds)?,
            _ => nbd::compare(rounds)?,
        }
    }
    Ok(())
}
