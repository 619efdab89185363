//! How a cache follows an origin that has grown.
//!
//! In this order: memory for the index; the superblock, whose padding says how long the origin is, durable; and only then the size that
//! clients see. So a cache that holds a block from behind the old end says of which origin it is, whenever the power goes.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Error, Geometry, Grow, LocalFuture, mutant};

use super::fitting::blocks_of;
use crate::write_cache::device::{Core, WriteCache};
use crate::write_cache::format::OriginMark;

impl Grow for WriteCache {
    /// Whole blocks of the origin. Before it becomes that large there is memory for them, and a cache device that can say so.
    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        let sound = self.core.journal.failure.check();
        sound.map_err(|kind| Error::new(kind, "its cache device has failed"))?;
        let has_room = |size| self.core.make_room(&Geometry { size, ..self.core.origin.geometry() });
        Ok(size.map(has_room).transpose()?.map(|blocks| blocks * self.core.block_bytes()))
    }

    /// The origin has grown before.
    fn grow(&self, _size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move { core.grow().await })
    }
}

impl Core {
    /// Blocks of such an origin, once the index has memory for them.
    fn make_room(&self, origin: &Geometry) -> Result<u64, Error> {
        let blocks = blocks_of(origin, self.block_bytes())?;
        self.index.extend(blocks, &self.budget).map_err(|kind| {
            Error::new(kind, format!("the index of {blocks} blocks of the origin finds no room in --memory"))
        })?;
        Ok(blocks)
    }

    async fn grow(self: &Arc<Self>) -> Result<(), Error> {
        let (origin, block) = (self.origin.geometry(), self.block_bytes());
        let blocks = self.make_room(&origin)?;
        if mutant::on("write_cache: show the new size before the superblock has it") {
            self.size.fetch_max(blocks * block, Ordering::AcqRel);
        }
        self.follow(OriginMark::of(&origin)).await?;
        self.size.fetch_max(blocks * block, Ordering::AcqRel);
        Ok(())
    }

    /// Makes a superblock durable that says of which origin the cache is. What another program keeps in its place stays.
    async fn follow(self: &Arc<Self>, mark: OriginMark) -> Result<(), Error> {
        {
            let mut padding = self.padding.lock();
            if OriginMark::decode(&padding).is_some() {
                *padding = mark.encode();
            }
        }
        // A commit that is under way may have encoded the old one: the next that begins writes the new one.
        let written = self.commit_to(self.journal.epoch().0 + 1).await;
        written.map_err(|kind| Error::new(kind, "the superblock of the cache cannot be written"))
    }
}
