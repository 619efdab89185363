//! Requests that were dropped while the system had them.
//!
//! They finish on their own, and later requests that overlap them wait for that. What they hold is charged to the limit on
//! buffers, for their clients are no longer there to be charged; and while there are [`LEFT_MAX`] of them nothing begins, so
//! that a client that comes again and again does not leave more and more behind.
//!
//! Costs one load while there are none, which is nearly always.

use std::sync::Arc;

use spillway_core::ByteRange;
use spillway_core::buffer::Reserve;
use spillway_core::sync::{AtomicUsize, Mutex, Ordering, WaitList};

use super::Backing;

/// Dropped requests of a file from which on no other begins. More come only from what had begun before.
pub(super) const LEFT_MAX: usize = 1024;

/// What a dropped request is reckoned to take besides its buffers: its futures and its task.
pub(super) const LEFT_BYTES: u64 = 2 << 10;

#[derive(Default)]
pub(super) struct Detached {
    count: AtomicUsize,
    ranges: Mutex<Vec<ByteRange>>,
    ends: WaitList,
}

impl Detached {
    /// Lists `range` and charges `bytes` until the result is dropped.
    pub(super) fn list(backing: &Arc<Backing>, range: ByteRange, bytes: u64) -> Listed {
        let detached = &backing.detached;
        detached.ranges.lock().push(range);
        detached.count.fetch_add(1, Ordering::Release);
        Listed { backing: backing.clone(), range, _reserve: Reserve::force(bytes) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until few are left, and none that overlaps `range`.
    pub(super) async fn clear_of(&self, range: ByteRange) {
        let clear = || {
            let ranges = self.ranges.lock();
            ranges.len() < LEFT_MAX && !ranges.iter().any(|listed| listed.overlaps(range))
        };
        self.ends.until(|| clear().then_some(())).await;
    }
}

pub(super) struct Listed {
    backing: Arc<Backing>,
    range: ByteRange,
    _reserve: Reserve,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let detached = &self.backing.detached;
        let mut ranges = detached.ranges.lock();
        let at = ranges.iter().position(|listed| *listed == self.range).expect("listed once, removed once");
        ranges.swap_remove(at);
        drop(ranges);
        detached.count.fetch_sub(1, Ordering::Release);
        detached.ends.wake_all();
    }
}
