//! Memory that a shard is short of: writers that found none for a folio, and what reclaim found.

use spillway_core::sync::{AtomicBool, Ordering, Room};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Pressure {
    /// For writers. While any waits here reads take no memory, for they can do without.
    pub(crate) room: Room,
    /// Reclaim finds too few clean folios.
    short: AtomicBool,
}

impl Pressure {
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Ordering::SeqCst)
    }

    /// Notes whether it is short; whether it was.
    pub(crate) fn set_short(&self, short: bool) -> bool {
        self.short.swap(short, Ordering::SeqCst)
    }

    /// Whether folios have to become clean so that they can leave.
    pub(crate) fn is_wanting(&self) -> bool {
        self.is_short() || self.room.is_waited_for()
    }
}
