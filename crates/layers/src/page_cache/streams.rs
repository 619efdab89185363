//! The streams among clients' reads and writes, and what is on its way when it is read ahead.

use spillway_core::Workspace;
use spillway_core::sync::Mutex;
use spillway_policy::readahead::Readahead;

/// See the head of this file. The locks are leaves.
pub(super) struct Streams {
    pub(super) found: Mutex<Readahead>,
    /// Of writes that bring folios in: what they will write decides how large these are.
    pub(super) written: Mutex<Readahead>,
    /// For what is on its way from the device below.
    pub(super) buffers: Workspace,
}

impl Streams {
    pub(super) fn new(buffers: Workspace) -> Self {
        Self { found: Mutex::default(), written: Mutex::default(), buffers }
    }
}
