//! Buffers beside those of requests, charged when the cache is built.

use std::sync::Arc;

use spillway_core::{Budget, Error, Workspace};

/// Buffers beside those of requests.
pub(super) struct Workspaces {
    /// For copies to the origin, each in one buffer.
    pub(super) copies: Workspace,
    /// For pieces of reads and writes, and for metadata.
    pub(super) pieces: Workspace,
}

impl Workspaces {
    /// Charged to `budget`, from which their sizes follow: 6 MiB of a small one, 20 MiB of a large one.
    pub(super) fn new(budget: &Arc<Budget>) -> Result<Self, Error> {
        let share = |part: u64, least: u64, most: u64| (budget.limit() / part).clamp(least, most) as usize;
        let (copies, pieces) = (share(64, 4 << 20, 16 << 20), share(256, 2 << 20, 4 << 20));
        Ok(Self {
            copies: Workspace::new("copies of a write cache to its origin", budget, copies)?,
            pieces: Workspace::new("pieces and metadata of a write cache", budget, pieces)?,
        })
    }

    /// Bytes of both.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> u64 {
        (self.copies.bytes() + self.pieces.bytes()) as u64
    }
}
