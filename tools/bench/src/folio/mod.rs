//! E3: the page cache. What it writes back for what was written, beside modes in which a whole folio, or one of 64 chunks of it, becomes
//! dirty with a block; databases on a real disk, and one on a slow store; what a hit costs; who leaves; memory; and the whole server over NBD beside its peers.

mod bytes;
mod database;
mod databases;
mod eviction;
mod hits;
mod instructions;
mod memory;
mod nbd;
mod sqlite;
mod store;

use anyhow::Result;

use crate::measure::rounds::Rounds;

pub(crate) use instructions::read_hits;

pub(crate) const PARTS: [&str; 9] =
    ["bytes", "sectors", "databases", "database", "hits", "instructions", "eviction", "memory", "nbd"];

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    match rounds.part {
        Some("bytes") => bytes::overwrites(rounds),
        Some("sectors") => bytes::sectors(rounds),
        Some("databases") => databases::compare(rounds),
        Some("database") => database::compare(rounds),
        Some("hits") => hits::compare(rounds),
        Some("instructions") => instructions::compare(rounds),
        Some("eviction") => eviction::compare(rounds),
        Some("memory") => memory::compare(rounds),
        _ => nbd::compare(rounds),
    }
}
