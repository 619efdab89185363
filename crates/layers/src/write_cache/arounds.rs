//! What went around the cache and is not durable yet.

use spillway_core::mutant;
use spillway_core::sync::AtomicU64;

/// Requests that went around the cache: how many have ended, and how many of these a flush has covered.
pub(super) struct Arounds {
    pub(super) ended: AtomicU64,
    pub(super) durable: AtomicU64,
}

impl Arounds {
    /// One that no flush has covered: a server that was killed may have acknowledged some.
    pub(super) fn after_another_server() -> Self {
        let forgets = mutant::on("write_cache: forget what the former process wrote around");
        Self { ended: AtomicU64::new(u64::from(!forgets)), durable: AtomicU64::new(0) }
    }
}
