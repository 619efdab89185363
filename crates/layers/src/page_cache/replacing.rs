//! Zeroes and discards: passed to the device below, with nothing of the range dirty or on its way anywhere meanwhile.
//!
//! The range is held. Writes there wait, and reads there keep nothing; each of them looks for held ranges with the lock
//! of the shard, which is taken here after the range is held. Then what is dirty is written back: so a device that does not carry it
//! out, or fails, has what the cache had. In the end the cache forgets the range.

use std::sync::Arc;

use spillway_core::sync::HeldRange;
use spillway_core::{ByteRange, Kind, Reply, Request, mutant};

use super::cache::Core;

/// A range that is changed beside the cache.
struct Outside {
    core: Arc<Core>,
    range: ByteRange,
    /// Nothing of it is dirty or on its way, until it is let go.
    still: bool,
    _held: HeldRange,
}

impl Drop for Outside {
    fn drop(&mut self) {
        if self.still && !mutant::on("page_cache: keep what was discarded") {
            self.core.forget(self.range);
        }
    }
}

/// What is left to be done before a range is still.
enum Left {
    Nothing,
    /// Something is to be written back, or is on its way.
    Unsaved,
    /// A read of the device below is under way.
    Fills,
}

impl Core {
    pub(super) async fn replace(self: &Arc<Self>, request: Request) -> Reply {
        let _held = self.outside.hold(request.range);
        let mut outside = Outside { core: self.clone(), range: request.range, still: false, _held };
        if let Err(kind) = self.settle(request.range).await {
            return request.answer(Err(kind));
        }
        outside.still = true;
        self.below.submit(request).await
    }

    /// Waits until nothing of a held range is dirty or on its way.
    async fn settle(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        loop {
            let seen = self.changes.current();
            match self.left(range) {
                Left::Nothing => return Ok(()),
                Left::Unsaved => self.save(range).await?,
                Left::Fills => self.changes.reached(seen + 1).await,
            }
        }
    }

    fn left(&self, range: ByteRange) -> Left {
        let mut left = Left::Nothing;
        for shard in &self.shards {
            let shard = shard.read();
            for number in shard.within(range) {
                let folio = shard.get(number).expect("the shard has it");
                let blocks = self.places.part(range, number).blocks;
                if folio.state.unsaved_runs(blocks).next().is_some() {
                    return Left::Unsaved;
                }
                if folio.fills > 0 {
                    left = Left::Fills;
                }
            }
        }
        left
    }

    fn forget(&self, range: ByteRange) {
        for shard in &self.shards {
            shard.write().forget(range);
        }
    }
}
