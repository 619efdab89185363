//! Flushes: all that was dirty when one began is written back, then the device below is flushed.
//!
//! A flush ends whatever clients write meanwhile: it begins an epoch, and waits for what became dirty before that.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{Kind, Request, mutant};
use spillway_policy::dirty_regions::{RegionNumber, Stamp};

use super::device::Core;
use super::device::counts::Count;

impl Core {
    /// Makes durable what was acknowledged before. Fails from the first failure on, unless the end has made up for it.
    pub(super) async fn flush(self: &Arc<Self>) -> Result<(), Kind> {
        self.counts.add(Count::Flushes, 1);
        if self.ended.load(Ordering::Acquire) {
            return self.save_all().await;
        }
        self.failure.check()?;
        let all = async {
            if !mutant::on("page_cache: flush only the device below") {
                self.write_back_older().await?;
            }
            self.sync().await
        };
        // Another may have failed since this one was carried out: once one has, none succeeds.
        self.flushes.through(all).await.and(self.failure.check())
    }

    /// Waits until the device below has what became dirty before.
    async fn write_back_older(self: &Arc<Self>) -> Result<(), Kind> {
        let epoch = self.want_older();
        self.failure.or_passing(self.until_written(epoch)).await
    }

    /// Begins an epoch, as each look at ages does; returns its number. What became dirty before is of an earlier one.
    pub(super) fn begin_epoch(&self) -> Stamp {
        // With the lock: epochs are noted in their order.
        let mut ages = self.aging.ages.lock();
        let number = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        ages.note(self.env.coarse_now(), number);
        Stamp(number)
    }

    /// Begins an epoch, before which nothing is to stay dirty.
    pub(super) fn want_older(&self) -> Stamp {
        let epoch = self.begin_epoch();
        self.wanted.fetch_max(epoch.0, Ordering::AcqRel);
        epoch
    }

    /// Waits until the device below has what became dirty before `epoch`.
    pub(super) async fn until_written(&self, epoch: Stamp) {
        let written = || {
            let written = !self.has_older(epoch);
            if !written {
                self.writeback.kick();
            }
            written.then_some(())
        };
        self.changes.until(written).await;
    }

    pub(super) fn has_older(&self, epoch: Stamp) -> bool {
        self.shards.iter().any(|shard| {
            let shard = shard.read();
            if mutant::on("page_cache: flush without waiting for what is on its way") {
                return shard.dirty.next(RegionNumber(0), epoch).is_some();
            }
            shard.dirty.oldest().is_some_and(|oldest| oldest < epoch)
        })
    }

    /// Flushes the device below: what has landed there is durable afterwards. Fails from the first failure on.
    pub(super) async fn sync(&self) -> Result<(), Kind> {
        self.failure.check()?;
        self.flush_below().await
    }

    /// The same, whatever failed before.
    pub(super) async fn flush_below(&self) -> Result<(), Kind> {
        let flush = async {
            if mutant::on("page_cache: write back without a flush below") {
                return Ok(());
            }
            let flush = async { self.below.submit(Request::flush()).await.result };
            self.meter.flush(flush).await.inspect_err(|kind| {
                self.sync_failure.set(*kind);
                self.fail("a flush below", *kind);
            })
        };
        self.syncs.through(flush).await
    }
}
