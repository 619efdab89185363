//! Blocks of the cache while a request reads them.

use std::sync::Arc;

use spillway_core::mutant;

use super::device::Core;
use super::index::LOOKS;
use super::index::stretch::{BlockLocation, Stretch};

/// Where the blocks of a range are read; those on the cache device are pinned until it is dropped.
pub(super) struct PinnedRead {
    pub(super) core: Arc<Core>,
    pub(super) stretches: Vec<Stretch>,
}

impl PinnedRead {
    /// Blocks that lie on the cache device.
    pub(super) fn hits(&self) -> u32 {
        let cached = |stretch: &&Stretch| stretch.location != BlockLocation::Origin;
        self.stretches.iter().filter(cached).map(|stretch| stretch.len).sum()
    }

    /// Unpins up to [`LOOKS`] blocks, the last ones first; whether more are left.
    fn release(&mut self) -> bool {
        while self.stretches.pop_if(|stretch| stretch.location == BlockLocation::Origin).is_some() {}
        if self.stretches.is_empty() {
            return false;
        }
        let (mut left, mut freed) = (LOOKS as u32, false);
        while left > 0
            && let Some(Stretch { location, len }) = self.stretches.last_mut()
        {
            let count = left.min(*len);
            *len -= count;
            left -= count;
            if let BlockLocation::Cache(block) = *location {
                self.core.index.unpin(block.plus(*len), count, |block| {
                    self.core.space.free(block);
                    freed = true;
                });
            }
            self.stretches.pop_if(|stretch| stretch.len == 0);
        }
        if freed && !mutant::on("write_cache: the last reader of a block wakes nobody") {
            self.core.changes.wake_all();
        }
        !self.stretches.is_empty()
    }

    /// Unpins all of it in slices.
    pub(super) async fn end(mut self) {
        while self.release() {
            self.core.give_way().await;
        }
    }
}

impl Drop for PinnedRead {
    fn drop(&mut self) {
        // An unpinning that failed is a defect that must be told with its own words, not by an abort.
        while !std::thread::panicking() && self.release() {}
    }
}
