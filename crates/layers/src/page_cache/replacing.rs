//! Zeroes and discards: passed to the device below, with nothing of the range dirty or on its way anywhere meanwhile.
//!
//! The range is held. Writes there wait, and reads there keep nothing; each of them looks for held ranges with the lock
//! of the shard, which is taken here after the range is held. Then what is dirty is written back: so a device that does not carry it
//! out, or fails, has what the cache had. In the end the cache forgets the range.

use std::sync::Arc;
use std::time::Duration;

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

impl Outside {
    /// The cache forgets the range, a shard at a time.
    async fn forget(mut self) {
        for (turn, shard) in self.core.places.shards_of(self.range).enumerate() {
            self.core.give_way(turn).await;
            self.core.forget(shard, self.range);
        }
        self.still = false;
    }
}

/// One that is withdrawn forgets at once.
impl Drop for Outside {
    fn drop(&mut self) {
        if self.still {
            let shards = self.core.places.shards_of(self.range);
            shards.for_each(|shard| self.core.forget(shard, self.range));
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
        let reply = self.below.submit(request).await;
        outside.forget().await;
        reply
    }

    /// Others have their turn before every shard but the first: each may have many folios.
    async fn give_way(&self, turn: usize) {
        if turn > 0 {
            self.env.sleep(Duration::ZERO).await;
        }
    }

    /// Waits until nothing of a held range is dirty or on its way. A shard that is still stays so.
    async fn settle(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        for (turn, shard) in self.places.shards_of(range).enumerate() {
            self.give_way(turn).await;
            loop {
                let seen = self.changes.current();
                match self.left(shard, range) {
                    Left::Nothing => break,
                    Left::Unsaved => self.save(range).await?,
                    Left::Fills => self.changes.reached(seen + 1).await,
                }
            }
        }
        Ok(())
    }

    fn left(&self, shard: usize, range: ByteRange) -> Left {
        let (shard, mut left) = (self.shards[shard].read(), Left::Nothing);
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
        left
    }

    fn forget(&self, shard: usize, range: ByteRange) {
        if !mutant::on("page_cache: keep what was discarded") {
            self.shards[shard].write().forget(range);
        }
    }
}
