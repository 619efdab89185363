//! Requests that bypass the cache, and what makes them durable.
//!
//! A write bypasses the cache only where that has no version of its blocks. Zeroes and discards of a range replace the versions that
//! were there before: these leave as if they had been written back, once the origin holds what replaces them.
//!
//! What bypasses the cache holds its range first, and looks for versions then; a lap takes a version under the lock of its region and
//! looks for held ranges there. So one of the two sees the other, and never are both on their way to the same block of the origin: which
//! of them survives would be undefined.
//!
//! An entry on the device may outlive its block's stay for a moment, until it is cleared. What bypassed the cache is durable only
//! after that, and after a flush of the origin.

use std::sync::Arc;

use spillway_core::sync::{HeldRange, Ordering};
use spillway_core::{ByteRange, Geometry, IoBuf, Kind, Op, Place, Reply, Request, mutant};

use super::block::{Epoch, OriginBlock};
use super::cache::Core;
use super::counts::Count;
use super::index::LOOKS;
use super::victims::InRange;
use super::writeback::Batch;

/// Versions that are replaced at a time.
const REPLACED_MAX: usize = 65536;

/// Between cached blocks that stay, so much at least is discarded at a time: less is not worth a call.
const GAP_BYTES: u64 = 64 << 10;

/// Entries that may wait to be cleared before more are replaced: a flush that follows waits until they are clear.
const STALE_MAX: u32 = 4 * REPLACED_MAX as u32;

/// Blocks of the origin that are changed beside the cache; nothing else may write them there meanwhile.
pub(super) struct Busy {
    core: Arc<Core>,
    origin: OriginBlock,
    len: u32,
    range: Option<HeldRange>,
}

impl Busy {
    pub(super) fn new(core: Arc<Core>, origin: OriginBlock, len: u32) -> Self {
        assert!(len > 0, "a range has blocks");
        let range = Some(core.bypass.ranges.hold(ByteRange::new(origin.0.into(), len.into())));
        Self { core, origin, len, range }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.range = None;
        self.core.wake();
        self.core.write_back_if_due();
    }
}

/// Bytes that bypass the cache, until a flush covers them.
struct Share {
    core: Arc<Core>,
    bytes: u64,
}

impl Share {
    /// Leaves others what is above `bytes`.
    fn narrow(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        let less = self.bytes - bytes;
        if less > 0 {
            self.bytes = bytes;
            self.core.bypass.window.lock().narrow(less);
            self.core.room.wake_all();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.core.bypass.window.lock().end(self.core.env.coarse_now(), self.bytes);
            self.core.room.wake_all();
        }
    }
}

/// A place in the line of those who want to bypass the cache; without a ticket as long as that was not wanted, or at once to be had.
pub(super) struct InLine<'a> {
    core: &'a Arc<Core>,
    ticket: Option<u64>,
    waits: bool,
}

impl<'a> InLine<'a> {
    pub(super) fn new(core: &'a Arc<Core>) -> Self {
        Self { core, ticket: None, waits: false }
    }

    /// Asks again, unless [`InLine::enter`] does: who wants something else does not stand in others' way.
    pub(super) fn look<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> T {
        self.waits = false;
        let found = look(self);
        if !self.waits {
            self.leave();
        }
        found
    }

    /// The blocks of `count` that may bypass the cache together now.
    fn enter(&mut self, count: u32) -> Option<(Share, u32)> {
        let (block, ahead) = (self.core.block_bytes(), self.core.meter.ahead());
        // Longer writes go in parts, so that they find room beside others.
        let count = u64::from(count).min(ahead / 2 / block).max(1);
        let goes = self.core.bypass.window.lock().enter(&mut self.ticket, count * block, ahead);
        self.waits = !goes;
        goes.then(|| (Share { core: self.core.clone(), bytes: count * block }, count as u32))
    }

    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let ahead = self.core.meter.ahead();
        let next_goes = self.core.bypass.window.lock().leave_line(ticket, ahead);
        if next_goes {
            self.core.room.wake_all();
        }
    }
}

impl Drop for InLine<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A write that may bypass the cache.
pub(super) struct BypassWrite {
    share: Share,
    busy: Busy,
}

/// What came of the wish to bypass the cache.
pub(super) enum Entered {
    Yes(BypassWrite),
    /// It is not their turn.
    Waits,
    /// The first of the blocks has a version meanwhile.
    Held,
}

impl BypassWrite {
    /// The first of `len` blocks from `origin` on, as soon as it is their turn.
    pub(super) fn enter(place: &mut InLine<'_>, origin: OriginBlock, len: u32) -> Entered {
        let Some((mut share, len)) = place.enter(len) else { return Entered::Waits };
        let core = place.core;
        let busy = Busy::new(core.clone(), origin, len);
        // Versions that came before the range was held are seen here, later ones stay until it is not.
        let (held, count) = core.index.presence(origin, len);
        if held {
            share.narrow(0);
            return Entered::Held;
        }
        if count == len {
            return Entered::Yes(Self { share, busy });
        }
        share.narrow(u64::from(count) * core.block_bytes());
        let fewer = Busy::new(core.clone(), origin, count);
        drop(busy);
        Entered::Yes(Self { share, busy: fewer })
    }

    pub(super) fn len(&self) -> u32 {
        self.busy.len
    }

    /// Writes its blocks.
    pub(super) async fn write(self, bytes: IoBuf) -> (Result<(), Kind>, IoBuf) {
        let core = &self.busy.core;
        assert_eq!(bytes.len() as u64, self.share.bytes, "a share for each byte");
        core.counts.add(Count::Bypassed, self.len());
        let writing = core.meter.write(self.share.bytes);
        let at = u64::from(self.busy.origin.0) * core.block_bytes();
        let reply = core.origin.submit(Request::write(at, bytes)).await;
        drop(writing);
        core.bypass.count_end();
        (reply.result, reply.buf)
    }
}

impl Core {
    /// Makes what bypassed the cache before durable.
    pub(super) async fn settle_bypassed(self: &Arc<Self>) -> Result<(), Kind> {
        let ended = self.bypass.ended.load(Ordering::Acquire);
        if self.bypass.durable.load(Ordering::Acquire) >= ended {
            return Ok(());
        }
        let generation = self.journal.clearing_all();
        self.run_committer();
        if !mutant::on("write_cache: flush what bypassed it before old entries are clear") {
            self.failure.or(self.journal.cleared.reached(generation)).await?;
        }
        self.flush_origin().await?;
        self.bypass.durable.fetch_max(ended, Ordering::AcqRel);
        Ok(())
    }

    /// Makes durable what the origin has answered; who asks meanwhile shares the next flush.
    pub(super) async fn flush_origin(&self) -> Result<(), Kind> {
        self.bypass.flushes.through(self.call_flush()).await
    }

    /// Flushes the origin; writes that wait for that may bypass the cache then.
    async fn call_flush(&self) -> Result<(), Kind> {
        let covers = self.bypass.window.lock().begin_flush();
        let flush = async { self.origin.submit(Request::flush()).await.result };
        let flushed = self.meter.flush(flush).await;
        // What a failed flush covered may be lost. Said before anybody else asks the origin, which may tell of it only once.
        flushed.inspect_err(|&kind| self.fail("flushing the origin", kind))?;
        self.bypass.window.lock().end_flush(covers);
        self.room.wake_all();
        Ok(())
    }

    /// Flushes the origin for who waits to bypass the cache, if nobody does.
    pub(super) fn flush_for_waiters(self: &Arc<Self>) {
        if self.bypass.window.lock().unflushed() == 0 || !self.bypass.flushing.queue() {
            return;
        }
        let core = self.clone();
        let flush = async move || {
            // A failure sticks, and waiters see it.
            let _ = core.flush_origin().await;
            core.bypass.flushing.end();
            // Those who asked meanwhile ask again.
            core.room.wake_all();
        };
        self.env.spawn(Place::Background, Box::new(move || Box::pin(async move { flush().await })));
    }

    /// Makes a write durable: what went to the cache, and what bypassed it.
    pub(super) async fn settle(self: &Arc<Self>, epoch: Option<Epoch>, bypassed: bool) -> Result<(), Kind> {
        if let Some(epoch) = epoch {
            self.commit_to(epoch.0 + 1).await?;
        }
        if bypassed { self.settle_bypassed().await } else { Ok(()) }
    }

    /// Discards where the origin does. Cached blocks are dropped where the origin can zero them at no cost. Elsewhere they stay: the
    /// origin holds older contents, which a discard must not show, and writing zeroes there would take room instead of
    /// freeing it.
    pub(super) async fn discard(self: &Arc<Self>, request: Request) -> Reply {
        let Geometry { discards, fast_zeroes, .. } = self.origin.geometry();
        if !discards {
            return request.answer(Ok(()));
        }
        self.counts.add(Count::Discards, self.blocks(request.range).1);
        if fast_zeroes {
            return self.replace(request).await;
        }
        let result = self.discard_gaps(request.range).await;
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
            let (first, rest) = (origin.plus(at), len - at);
            let share = if writes { Some(self.share_of(rest).await?) } else { None };
            let most = share.as_ref().map_or(rest, |(_, count)| *count);
            let (batch, count) = self.take_replaced(first, most, before).await?;
            self.replace_part(request, first, count, batch, share.map(|(share, _)| share)).await?;
            self.until_few_are_stale().await?;
            at += count;
        }
        assert_eq!(at, len, "all of the range is replaced");
        Ok(())
    }

    /// Whether the origin writes data for this request, which its next flush then waits for.
    fn writes_zeroes(&self, request: &Request) -> bool {
        request.op == Op::WriteZeroes && (request.flags.no_hole || !self.origin.geometry().fast_zeroes)
    }

    /// Waits until some of `count` blocks may bypass the cache.
    async fn share_of(self: &Arc<Self>, count: u32) -> Result<(Share, u32), Kind> {
        let mut place = InLine::new(self);
        let look = || {
            let share = match self.failure.check() {
                Err(kind) => Some(Err(kind)),
                Ok(()) => place.look(|place| place.enter(count)).map(Ok),
            };
            if share.is_none() {
                self.flush_for_waiters();
            }
            share
        };
        self.room.until(look).await
    }

    /// Versions of the first of `len` blocks that are to be replaced together, and how many blocks these are.
    async fn take_replaced(
        self: &Arc<Self>,
        origin: OriginBlock,
        len: u32,
        before: Epoch,
    ) -> Result<(Batch, u32), Kind> {
        let (mut batch, mut count, mut looks) = (Batch::new(self.clone(), Vec::new()), 0, 0);
        while count < len && batch.len() < REPLACED_MAX {
            let seen = self.changes.current();
            match self.index.take_range(origin.plus(count), len - count, before) {
                InRange::Taken(victims, looked) => {
                    batch.add(victims);
                    count += looked;
                    looks += looked as usize;
                    if looks >= LOOKS && count < len {
                        looks = 0;
                        self.give_way().await;
                    }
                }
                InRange::WritingBack if count > 0 => break,
                InRange::WritingBack => self.changed_since(seen).await?,
            }
        }
        assert!(count <= len && batch.len() <= count as usize, "{} versions in {count} blocks", batch.len());
        Ok((batch, count))
    }

    async fn until_few_are_stale(self: &Arc<Self>) -> Result<(), Kind> {
        loop {
            let seen = self.changes.current();
            if self.journal.stale() <= STALE_MAX {
                return Ok(());
            }
            self.changed_since(seen).await?;
        }
    }

    async fn replace_part(
        self: &Arc<Self>,
        request: &Request,
        origin: OriginBlock,
        count: u32,
        batch: Batch,
        mut share: Option<Share>,
    ) -> Result<(), Kind> {
        assert!(count > 0, "a part has blocks");
        let block = self.block_bytes();
        let range = ByteRange::new(u64::from(origin.0) * block, u64::from(count) * block);
        let mut part = Request { op: request.op, range, flags: request.flags, buf: IoBuf::default() };
        part.flags.fua = false;
        self.failure.check()?;
        if part.op == Op::Discard && !batch.is_empty() {
            // A discard may leave what was there; here that would be something older than what the cache holds.
            part.op = Op::WriteZeroes;
        }
        share.iter_mut().for_each(|share| share.narrow(range.len));
        let writing = share.as_ref().map(|_| self.meter.write(range.len));
        self.origin.submit(part).await.result?;
        drop((writing, share));
        if !batch.is_empty() {
            self.flush_origin().await?;
            batch.end_durable().await;
        }
        self.bypass.count_end();
        Ok(())
    }

    /// Waits until something has changed since `changes` was `seen`.
    pub(super) async fn changed_since(&self, seen: u64) -> Result<(), Kind> {
        self.failure.or(self.changes.reached(seen + 1)).await
    }
}
