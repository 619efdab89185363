//! Zeroes and discards: they replace the versions of a range that were there before, which leave as if they had been written back, once the
//! origin holds what replaces them.

use std::sync::Arc;

use spillway_core::{ByteRange, Geometry, IoBuf, Kind, Op, Reply, Request};

use super::bypass::{Busy, BypassShare};
use super::device::Core;
use super::device::counts::Count;
use super::index::block::{Epoch, OriginBlock};
use super::index::victims::InRange;
use super::writeback::Batch;
use crate::slice::Slice;

/// Versions that are replaced at a time.
const REPLACED_MAX: usize = 65536;

/// Between cached blocks that stay, so much at least is discarded at a time: less is not worth a call.
const GAP_BYTES: u64 = 64 << 10;

/// Entries that may wait to be cleared before more are replaced: a flush that follows waits until they are clear.
const STALE_MAX: u32 = 4 * REPLACED_MAX as u32;

impl Core {
    /// Discards where the origin does. Cached blocks are dropped where the origin zeroes them at no cost. Elsewhere they stay: the
    /// origin holds older contents, which a discard must not show, and writing zeroes there would take room instead of
    /// freeing it.
    pub(super) async fn discard(self: &Arc<Self>, request: Request) -> Reply {
        let Geometry { discards, fast_zeroes, .. } = self.origin.geometry();
        if !discards {
            return request.answer(Ok(()));
        }
        self.counts.add(Count::Discards, self.blocks(request.range).1);
        let replaced = if fast_zeroes { self.replace_range(&request).await } else { Err(Kind::NotSupported) };
        let result = match replaced {
            Err(Kind::NotSupported) => self.discard_gaps(request.range).await,
            replaced => replaced,
        };
        self.end_replacing(request, result).await
    }

    /// Discards what the cache does not hold of a range.
    async fn discard_gaps(self: &Arc<Self>, range: ByteRange) -> Result<(), Kind> {
        let ((origin, len), block) = (self.blocks(range), self.block_bytes());
        // What is written from now on is not written back before the discard is done, which might destroy it there.
        let _busy = Busy::new(self.clone(), origin, len);
        let mut at = 0;
        while at < len {
            let (held, count) = self.gap(origin.plus(at), len - at).await;
            let gap = ByteRange::new(range.offset + u64::from(at) * block, u64::from(count) * block);
            self.failure.check()?;
            if !held && (gap.len >= GAP_BYTES || gap == range) {
                self.origin.submit(Request::bare(Op::Discard, gap)).await.result?;
                self.bypass.count_end();
            }
            at += count;
            self.give_way().await;
        }
        assert_eq!(at, len, "all of the range was looked at");
        Ok(())
    }

    /// Whether the first of `len` blocks is here, and all that follow and are like it where it is not.
    async fn gap(&self, origin: OriginBlock, len: u32) -> (bool, u32) {
        let (held, mut count) = self.index.presence(origin, len);
        while !held && count < len {
            let (next_held, next) = self.index.presence(origin.plus(count), len - count);
            if next_held {
                break;
            }
            count += next;
            self.give_way().await;
        }
        (held, count)
    }

    /// Zeroes or discards on the origin; the versions of the range that were there before give way.
    pub(super) async fn replace(self: &Arc<Self>, request: Request) -> Reply {
        let result = self.replace_range(&request).await;
        self.end_replacing(request, result).await
    }

    async fn end_replacing(self: &Arc<Self>, request: Request, result: Result<(), Kind>) -> Reply {
        let durable = request.flags.fua || self.settings.acks_committed();
        // What is newer than the request may hide something older in the cache until it is committed: a flush does both.
        let result = match (result, durable) {
            (Ok(()), true) => self.flush().await,
            (result, _) => result,
        };
        request.answer(result)
    }

    async fn replace_range(self: &Arc<Self>, request: &Request) -> Result<(), Kind> {
        let (origin, len) = self.blocks(request.range);
        // From now on nothing of the range is written back any more; what is in flight is waited for.
        let _busy = Busy::new(self.clone(), origin, len);
        if self.index.may_be_uncommitted(origin, len, self.journal.committed()) {
            self.commit_all().await?;
        }
        let before = self.journal.committed();
        let (writes, mut at) = (self.writes_zeroes(request), 0);
        while at < len {
            self.until_few_leave().await?;
            let (first, rest) = (origin.plus(at), len - at);
            let share = if writes { Some(self.share_of(rest).await?) } else { None };
            let most = share.as_ref().map_or(rest, |(_, count)| *count);
            let (batch, count) = self.take_replaced(first, most, before).await?;
            self.replace_part(request, first, count, batch, share.map(|(share, _)| share)).await?;
            at += count;
        }
        assert_eq!(at, len, "all of the range is replaced");
        self.until_few_are_stale().await
    }

    /// Whether the origin writes data for this request, which its next flush then waits for.
    fn writes_zeroes(&self, request: &Request) -> bool {
        request.op == Op::WriteZeroes && (request.flags.no_hole || !self.origin.geometry().fast_zeroes)
    }

    /// Versions of the first of `len` blocks that are to be replaced together, and how many blocks these are.
    async fn take_replaced(
        self: &Arc<Self>,
        origin: OriginBlock,
        len: u32,
        before: Epoch,
    ) -> Result<(Batch, u32), Kind> {
        let (mut batch, mut count, mut slice) = (Batch::new(self.clone(), Vec::new()), 0, Slice::new());
        while count < len && batch.len() < REPLACED_MAX && (count == 0 || self.few_leave()) {
            let look = || match self.index.take_range(origin.plus(count), len - count, before) {
                InRange::WritingBack if count == 0 => None,
                found => Some(found),
            };
            match self.failure.or(self.changes.until(look)).await? {
                InRange::Taken(victims, looked) => {
                    batch.add(victims);
                    count += looked;
                    slice.count(looked);
                    if count < len {
                        slice.renew_if_over(&*self.env).await;
                    }
                }
                InRange::WritingBack => break,
            }
        }
        assert!(count <= len && batch.len() <= count as usize, "{} versions in {count} blocks", batch.len());
        Ok((batch, count))
    }

    /// Waits until more may be replaced: others do so at the same time.
    async fn until_few_leave(self: &Arc<Self>) -> Result<(), Kind> {
        let few = || self.few_leave().then_some(());
        self.failure.or(self.changes.until(few)).await
    }

    /// Whether few entries are to be cleared, with those of versions that are being replaced or written back.
    fn few_leave(&self) -> bool {
        // In the order in which a version moves on: none is missed.
        let leaving = self.index.writing_back();
        leaving + self.journal.stale() <= STALE_MAX
    }

    async fn until_few_are_stale(self: &Arc<Self>) -> Result<(), Kind> {
        let few = || (self.journal.stale() <= STALE_MAX).then_some(());
        self.failure.or(self.changes.until(few)).await
    }

    async fn replace_part(
        self: &Arc<Self>,
        request: &Request,
        origin: OriginBlock,
        count: u32,
        batch: Batch,
        mut share: Option<BypassShare>,
    ) -> Result<(), Kind> {
        assert!(count > 0, "a part has blocks");
        let block = self.block_bytes();
        let range = ByteRange::new(u64::from(origin.0) * block, u64::from(count) * block);
        let mut part = Request { op: request.op, range, flags: request.flags, buf: IoBuf::default() };
        part.flags.fua = false;
        self.failure.check()?;
        if part.op == Op::Discard && batch.len() > 0 {
            // A discard may leave what was there; here that would be something older than what the cache holds.
            part.op = Op::WriteZeroes;
            part.flags.free = true;
        }
        share.iter_mut().for_each(|share| share.narrow(range.len));
        let writing = share.as_ref().map(|_| self.meter.write(range.len));
        self.origin.submit(part).await.result?;
        if let Some(writing) = writing {
            writing.landed();
        }
        drop(share);
        // Before what may fail: a client that reads the zeroes and then flushes has them flushed.
        self.bypass.count_end();
        if batch.len() > 0 {
            self.flush_origin().await?;
            batch.end_replaced().await;
        }
        Ok(())
    }
}
