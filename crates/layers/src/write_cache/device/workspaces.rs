//! Buffers beside those of requests, charged when the cache is opened.

use std::sync::Arc;

use spillway_core::{Budget, Error, Workspace};

/// Buffers beside those of requests.
pub(crate) struct Workspaces {
    /// For write-back, a buffer for each run of blocks.
    pub(crate) batches: Workspace,
    /// For pieces of reads and writes, and for metadata.
    pub(crate) pieces: Workspace,
}

impl Workspaces {
    /// Charged to `budget`, from which their sizes follow: 6 MiB of a small one, 20 MiB of a large one.
    pub(crate) fn new(budget: &Arc<Budget>) -> Result<Self, Error> {
        let share = |part: u64, least: u64, most: u64| (budget.limit() / part).clamp(least, most) as usize;
        let (batches, pieces) = (share(64, 4 << 20, 16 << 20), share(256, 2 << 20, 4 << 20));
        Ok(Self {
            batches: Workspace::new("batches that a write cache writes back", budget, batches)?,
            pieces: Workspace::new("pieces and metadata of a write cache", budget, pieces)?,
        })
    }
}
