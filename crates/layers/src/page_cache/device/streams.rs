//! The streams among clients' reads and writes, and what is on its way when it is read ahead.

use spillway_core::sync::Mutex;
use spillway_core::{BlockSize, Workspace};
use spillway_policy::readahead::{Readahead, WINDOWS_MAX};

/// Pieces of a window that are on their way at once, at most: enough to keep a fast device busy with small ones.
pub(crate) const PIECES_MAX: u64 = 32;

/// Bytes that the task of a window takes, and as many a piece that is on its way, beside its buffer and what the device below takes for it.
pub(crate) const TASK_BYTES: u64 = 768;

/// How much may be under way at once where there are so many bytes for buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Windows: more than buffers would only wait for these.
    pub(crate) windows: u64,
    /// Pieces that have a buffer.
    pub(crate) pieces: u64,
}

impl Bounds {
    pub(crate) fn new(buffers: u64) -> Self {
        let count = buffers / BlockSize::PAGE.bytes();
        let windows = count.clamp(1, WINDOWS_MAX as u64);
        Self { windows, pieces: count.min(windows * PIECES_MAX) }
    }

    /// Bytes beside the buffers.
    pub(crate) fn bytes(self) -> u64 {
        (self.windows + self.pieces) * TASK_BYTES
    }
}

/// See the head of this file. The locks are leaves.
pub(crate) struct AccessStreams {
    pub(crate) found: Mutex<Readahead>,
    /// Of writes that bring folios in: what they will write decides how large these are.
    pub(crate) written: Mutex<Readahead>,
    /// For what is on its way from the device below.
    pub(crate) buffers: Workspace,
    /// Of what is read ahead.
    pub(crate) bounds: Bounds,
}

impl AccessStreams {
    pub(crate) fn new(buffers: Workspace) -> Self {
        let bounds = Bounds::new(buffers.bytes() as u64);
        Self { found: Mutex::default(), written: Mutex::default(), buffers, bounds }
    }
}
