//! Drains and the end: everything that is dirty is tried once more, whatever failed before, and what is left or lost is named.

use std::pin::pin;
use std::sync::Arc;

use futures_util::future::{Either, select};
use spillway_core::sync::Ordering;
use spillway_core::{Error, Kind, WorkKind};

use crate::page_cache::device::Core;
use crate::writeback::Source;

impl Core {
    /// Makes durable what is dirty, whatever failed before: an error of write-back lost nothing, since what it was about stayed dirty. What
    /// can be written is, also where something cannot. What clients dirty meanwhile is not waited for.
    pub(crate) async fn save_all(self: &Arc<Self>) -> Result<(), Kind> {
        let epoch = self.want_older();
        let written = match select(pin!(self.writeback.drain()), pin!(self.until_written(epoch))).await {
            Either::Left((Err(kind), _)) if self.has_older(epoch) => Err(kind),
            _ => Ok(()),
        };
        let durable = self.flush_below().await;
        // A flush below that failed may have lost what was written before it: no later one makes up for that.
        written.and(durable).and(self.sync_failure.check())
    }

    /// Has the device below get everything, durably, and fails after one lap in which something could not be written.
    pub(crate) async fn drain(self: &Arc<Self>) -> Result<(), Error> {
        let saved = self.emptied().await;
        saved.map_err(|kind| Error::new(kind, self.shortfall(kind, "they stay in memory")))
    }

    /// Ends the cache: memory is gone afterwards. What fails is tried twice, and the error says what is lost.
    pub(crate) async fn end(self: &Arc<Self>) -> Result<(), Error> {
        let saved = match self.emptied().await {
            Ok(()) => Ok(()),
            Err(_) => self.emptied().await,
        };
        self.ended.store(saved.is_ok(), Ordering::Release);
        saved.map_err(|kind| Error::new(kind, self.shortfall(kind, "they are lost")))
    }

    /// The same as [`Core::save_all`], as long work.
    async fn emptied(self: &Arc<Self>) -> Result<(), Kind> {
        let core = self.clone();
        let _work = self.works.drain(WorkKind::Drain, move || core.left());
        self.save_all().await
    }

    /// What the device below has not, and what becomes of it.
    fn shortfall(&self, kind: Kind, fate: &str) -> String {
        let (blocks, errno) = (self.zones.dirty(), kind.errno_name());
        if blocks == 0 {
            return format!(
                "a flush below the page cache failed ({errno}): what it has written back may be lost"
            );
        }
        let bytes = blocks * self.places.block_bytes();
        format!("{bytes} bytes of the page cache ({blocks} blocks) cannot be written back ({errno}): {fate}")
    }
}
