//! How long a spill file is that becomes longer as it is filled, up to the size that it may have. It is never shortened.

use std::sync::Arc;

use spillway_core::sync::{AtomicU64, Ordering, Semaphore};
use spillway_core::{BlockDevice, Kind};

use crate::file::File;

/// A file that becomes longer.
pub(super) struct Length {
    file: Arc<File>,
    bytes_max: u64,
    /// Bytes that it is to have, in the background.
    wanted: AtomicU64,
    /// Held by who lengthens it.
    turn: Semaphore,
}

impl Length {
    /// That of `file`, which may become `bytes_max` long.
    pub(super) fn new(file: Arc<File>, bytes_max: u64) -> Self {
        Self { file, bytes_max, wanted: AtomicU64::new(0), turn: Semaphore::new(1) }
    }

    pub(super) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    fn bytes(&self) -> u64 {
        self.file.geometry().size
    }

    /// Whether it is to become longer, so that it has `bytes`, or all that it may.
    pub(super) fn is_short_of(&self, bytes: u64) -> bool {
        self.bytes() < bytes.min(self.bytes_max)
    }

    /// Has the background make it that long.
    pub(super) fn want(&self, bytes: u64) {
        self.wanted.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// Makes it as long as it was wanted last. Where that fails, who comes to need it tries again.
    pub(super) async fn catch_up(&self, step: u64) {
        let _turn = self.turn.hold().await;
        let wanted = self.wanted.swap(0, Ordering::Relaxed);
        let _ = self.lengthen(wanted, step).await;
    }

    /// Makes it at least `bytes` long, in steps of `step`. [`Kind::NoSpace`] where its host refuses.
    pub(super) async fn reach(&self, bytes: u64, step: u64) -> Result<(), Kind> {
        let _turn = self.turn.hold().await;
        self.lengthen(bytes, step).await
    }

    /// The caller has the turn.
    async fn lengthen(&self, bytes: u64, step: u64) -> Result<(), Kind> {
        if !self.is_short_of(bytes) {
            return Ok(());
        }
        let next = bytes.next_multiple_of(step).min(self.bytes_max);
        assert!(next > self.bytes(), "{next} bytes are more than there are");
        self.file.lengthen(next).await.map_err(|error| {
            tracing::debug!("the spill file is not as long as it may be: {error}");
            Kind::NoSpace
        })
    }

    /// Waits until nobody makes it longer; what was wanted is not any more.
    pub(super) async fn rest(&self) {
        let _turn = self.turn.hold().await;
        self.wanted.store(0, Ordering::Relaxed);
    }
}
