//! How a cache follows an origin that has grown.
//!
//! In this order: memory for the index; the superblock, whose padding says how long the origin is, durable; and only then the size that
//! clients see. So a cache that holds a block from behind the old end says of which origin it is, whenever the power goes.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Error, Grow, LocalFuture, mutant};

use super::fitting::blocks_of;
use crate::write_cache::device::{Core, WriteCache};
use crate::write_cache::format::OriginMark;

impl Grow for WriteCache {
    /// Whole blocks of the origin.
    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        let block = self.core.block_bytes();
        Ok(size.map(|bytes| bytes / block * block))
    }

    /// The origin has grown before.
    fn grow(&self, _size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move { core.grow().await })
    }
}

impl Core {
    async fn grow(self: &Arc<Self>) -> Result<(), Error> {
        let (origin, block) = (self.origin.geometry(), self.block_bytes());
        let blocks = blocks_of(&origin, block)?;
        self.index.extend(blocks, &self.budget).map_err(|kind| {
            Error::new(kind, format!("the index of {blocks} blocks of the origin finds no room in --memory"))
        })?;
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
