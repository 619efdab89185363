//! The streams among clients' reads and writes, and what is on its way when it is read ahead.

use spillway_core::Workspace;
use spillway_core::sync::Mutex;
use spillway_policy::readahead::Readahead;

use super::readahead::Bounds;

/// See the head of this file. The locks are leaves.
pub(super) struct Streams {
    pub(super) found: Mutex<Readahead>,
    /// Of writes that bring folios in: what they will write decides how large these are.
    pub(super) written: Mutex<Readahead>,
    /// For what is on its way from the device below.
    pub(super) buffers: Workspace,
    /// Of what is read ahead.
    pub(super) bounds: Bounds,
}

impl Streams {
    pub(super) fn new(buffers: Workspace) -> Self {
        let bounds = Bounds::new(buffers.bytes() as u64);
        Self { found: Mutex::default(), written: Mutex::default(), buffers, bounds }
    }
}
