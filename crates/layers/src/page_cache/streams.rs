//! The streams among clients' reads, and what is on its way when it is read ahead of them.

use spillway_core::Workspace;
use spillway_core::sync::Mutex;
use spillway_policy::readahead::Readahead;

/// See the head of this file. The lock is a leaf.
pub(super) struct Streams {
    pub(super) found: Mutex<Readahead>,
    /// For what is on its way from the device below.
    pub(super) buffers: Workspace,
}

impl Streams {
    pub(super) fn new(buffers: Workspace) -> Self {
        Self { found: Mutex::default(), buffers }
    }
}
