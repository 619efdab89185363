//! Requests that were dropped while the system had them.
//!
//! They finish on their own, and later requests that overlap them wait for that. What they hold is charged to the limit on
//! buffers, for their clients are no longer there to be charged; and while there are [`LEFT_MAX`] of them nothing begins, so
//! that a client that comes again and again does not leave more and more behind.
//!
//! Costs one load while there are none, which is nearly always.

use spillway_core::ByteRange;
use spillway_core::buffer::Reserve;
use spillway_core::sync::{HeldRange, RangeSet};

/// Dropped requests of a file from which on no other begins. More come only from what had begun before.
pub(super) const LEFT_MAX: usize = 1024;

/// What a dropped request is reckoned to take besides its buffers: its futures and its task.
pub(super) const LEFT_BYTES: u64 = 2 << 10;

/// Their ranges; clones are handles to the same.
#[derive(Clone)]
pub(super) struct Detached(RangeSet);

impl Default for Detached {
    fn default() -> Self {
        Self(RangeSet::new(LEFT_MAX))
    }
}

impl Detached {
    /// Holds `range` and charges `bytes` until the result is dropped.
    pub(super) fn hold(&self, range: ByteRange, bytes: u64) -> (HeldRange, Reserve) {
        assert!(bytes >= LEFT_BYTES, "{bytes} bytes for a request, its futures and its task");
        (self.0.hold(range), Reserve::force(bytes))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Waits until few are left, and none that overlaps `range`.
    pub(super) async fn clear_of(self, range: ByteRange) {
        self.0.clear_of(range).await;
    }
}
