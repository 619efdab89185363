//! The end: everything that is dirty is tried once more, whatever failed before, and what is lost is named.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Error, Kind};

use super::cache::Core;

impl Core {
    /// Makes durable what is dirty, whatever failed before: an error of write-back lost nothing, since what it was about stayed dirty. What
    /// can be written is, also where something cannot.
    pub(super) async fn save_all(self: &Arc<Self>) -> Result<(), Kind> {
        let written = self.writeback.drain().await;
        let durable = self.flush_below().await;
        // A flush below that failed may have lost what was written before it: no later one makes up for that.
        written.and(durable).and(self.sync_failure.check())
    }

    /// Ends the cache: memory is gone afterwards. What fails is tried twice, and the error says what is lost.
    pub(super) async fn end(self: &Arc<Self>) -> Result<(), Error> {
        let saved = match self.save_all().await {
            Ok(()) => Ok(()),
            Err(_) => self.save_all().await,
        };
        self.ended.store(saved.is_ok(), Ordering::Release);
        saved.map_err(|kind| Error::new(kind, self.loss(kind)))
    }

    fn loss(&self, kind: Kind) -> String {
        let (blocks, errno) = (self.dirty.load(Ordering::Relaxed), kind.errno_name());
        if blocks == 0 {
            return format!(
                "a flush below the page cache failed ({errno}): what it has written back may be lost"
            );
        }
        let bytes = blocks * self.places.block_bytes();
        format!(
            "{bytes} bytes of the page cache ({blocks} blocks) cannot be written back ({errno}): they are lost"
        )
    }
}
