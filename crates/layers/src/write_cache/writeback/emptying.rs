//! Emptying the cache, in bounded time: nothing new enters, then nothing that is there changes.

use std::sync::Arc;

use spillway_core::{Error, Kind, Place, WorkKind, task};

use crate::write_cache::device::Core;
use crate::write_cache::device::drain::DrainState;
use crate::writeback::Source;

impl Core {
    /// Whether cached blocks must not be written any more, so that they get fewer.
    pub(crate) fn is_closed(&self) -> bool {
        self.drain.is_closed(self.laps.ended())
    }

    /// Starts to empty the cache; with `stays_clean` nothing new enters afterwards. The error is that of a cache that has failed.
    pub(crate) fn drain(self: &Arc<Self>, stays_clean: bool) -> Result<(), Error> {
        self.failure
            .check()
            .map_err(|kind| Error::new(kind, "the cache has failed: restart its server, then drain it"))?;
        if stays_clean {
            self.settings.cleaner.set(true);
        }
        if self.drain.begin(self.laps.ended(), stays_clean) {
            let core = self.clone();
            self.env.spawn(Place::Background, task(move || core.empty()));
        }
        Ok(())
    }

    /// Waits for the end of a drain.
    pub(crate) async fn drained(&self) -> Result<(), Error> {
        let ended = || Some(self.drain.state()).filter(|state| !matches!(state, DrainState::Running { .. }));
        match self.changes.until(ended).await {
            DrainState::Failed(kind) => {
                Err(Error::new(kind, "the cache could not be written back to the origin"))
            }
            _ => Ok(()),
        }
    }

    async fn empty(self: Arc<Self>) {
        let core = self.clone();
        let _work = self.works.drain(WorkKind::Drain, move || core.left());
        while !self.drain.end(self.write_back_everything().await) {}
        self.changes.wake_all();
    }

    async fn write_back_everything(self: &Arc<Self>) -> Result<(), Kind> {
        self.flush().await?;
        self.failure.or(self.writeback.drain()).await??;
        self.settle_bypassed().await
    }

    /// Blocks of the origin that the cache holds, entries that are not clear yet, and writes that may add some: nothing is left only
    /// if all are none.
    pub(crate) fn blocks_left(&self) -> u64 {
        // In the order in which a block moves on: none is missed.
        let writers = self.journal.writers();
        let held = u64::from(self.index.held());
        writers + held + u64::from(self.journal.stale())
    }
}
