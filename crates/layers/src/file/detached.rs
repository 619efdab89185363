//! Ranges whose requests were dropped while the system had them.
//!
//! Costs one load while there are none, which is nearly always.

use std::sync::Arc;

use spillway_core::ByteRange;
use spillway_core::sync::{AtomicUsize, Mutex, Ordering, WaitList};

use super::Backing;

#[derive(Default)]
pub(super) struct Detached {
    count: AtomicUsize,
    ranges: Mutex<Vec<ByteRange>>,
    ends: WaitList,
}

impl Detached {
    /// Lists `range` until the result is dropped.
    pub(super) fn list(backing: &Arc<Backing>, range: ByteRange) -> Listed {
        let detached = &backing.detached;
        detached.ranges.lock().push(range);
        detached.count.fetch_add(1, Ordering::Release);
        Listed { backing: backing.clone(), range }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Waits until nothing listed overlaps `range`.
    pub(super) async fn clear_of(&self, range: ByteRange) {
        let clear = || !self.ranges.lock().iter().any(|listed| listed.overlaps(range));
        self.ends.until(|| clear().then_some(())).await;
    }
}

pub(super) struct Listed {
    backing: Arc<Backing>,
    range: ByteRange,
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
