//! Buffers beside those of requests, charged when the cache is opened.

use std::sync::Arc;

use spillway_core::{Budget, Error, Workspace};

/// Buffers beside those of requests.
pub(crate) struct Workspaces {
    /// For write-back, a buffer for each run of blocks.
    pub(crate) batches: Workspace,
    /// For pieces of reads of which the origin has some: they wait for it.
    pub(crate) pieces: Workspace,
    /// For metadata, and pieces on the cache device: a commit waits for nobody who waits for the origin.
    pub(crate) local: Workspace,
}

impl Workspaces {
    /// Charged to `budget`, from which their sizes follow: 6 MiB of a small one, 20 MiB of a large one.
    pub(crate) fn new(budget: &Arc<Budget>) -> Result<Self, Error> {
        let share = |part: u64, least: u64, most: u64| (budget.limit() / part).clamp(least, most) as usize;
        let (batches, pieces) = (share(64, 4 << 20, 16 << 20), share(256, 2 << 20, 4 << 20));
        Ok(Self {
            batches: Workspace::new("batches that a write cache writes back", budget, batches)?,
            pieces: Workspace::new("pieces that a write cache reads", budget, pieces / 2)?,
            local: Workspace::new("pieces and metadata of a write cache", budget, pieces / 2)?,
        })
    }
}
