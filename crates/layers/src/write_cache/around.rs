//! Requests that go around the cache, to the origin.
//!
//! A write goes around only where the cache has no version of its blocks. Zeroes and discards of a range replace the versions that
//! were there before: these leave like copies do, once the origin holds what replaces them.
//!
//! An entry on the device may outlive its block's stay for a moment, until it is cleared. What went around is durable only after
//! that, and after a flush of the origin.

use std::sync::Arc;

use spillway_core::sync::Ordering;
use spillway_core::{ByteRange, Geometry, IoBuf, Kind, Op, Place, Reply, Request, mutant};

use super::cache::{Core, Opened};
use super::counts::Count;
use super::index::InRange;
use super::write_back::{Batch, Writing};

/// Versions that are replaced at a time.
const REPLACED_MAX: usize = 65536;

/// Between cached blocks that stay, so much at least is discarded at a time: less is not worth a call.
const GAP_BYTES: u64 = 64 << 10;

/// Entries that may wait to be cleared before more are replaced: a flush that follows waits until they are clear.
const STALE_MAX: u64 = 4 * REPLACED_MAX as u64;

/// Blocks of the origin that are changed around the cache; nothing else may write them there meanwhile.
struct Outside {
    core: Arc<Core>,
    origin: u32,
    len: u32,
}

impl Outside {
    fn new(core: Arc<Core>, opened: &mut Opened, origin: u32, len: u32) -> Self {
        opened.index.begin_outside(origin, len);
        Self { core, origin, len }
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        self.core.with(|opened| opened.index.end_outside(self.origin, self.len));
        self.core.wake();
        self.core.copy_if_due();
    }
}

/// Bytes that go around the cache, until a flush covers them.
struct Share {
    core: Arc<Core>,
    bytes: u64,
}

impl Share {
    /// Leaves others what is above `bytes`.
    fn narrow(&mut self, bytes: u64) {
        let less = self.bytes - bytes;
        if less > 0 {
            self.bytes = bytes;
            self.core.pace.lock().narrow_around(less);
            self.core.room.wake_all();
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.core.pace.lock().end_around(self.core.env.coarse_now(), self.bytes);
        self.core.room.wake_all();
    }
}

/// A place in the line of those who want to go around the cache; without a ticket as long as that was not wanted, or at once to be had.
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

    /// The blocks of `count` that may go around the cache together now.
    fn enter(&mut self, count: u32) -> Option<(Share, u32)> {
        let (block, mut pace) = (self.core.block_bytes(), self.core.pace.lock());
        let count = u64::from(count).min(pace.part_bytes() / block).max(1);
        let goes = pace.enter(&mut self.ticket, count * block);
        self.waits = !goes;
        goes.then(|| (Share { core: self.core.clone(), bytes: count * block }, count as u32))
    }

    fn leave(&mut self) {
        let Some(ticket) = self.ticket.take() else { return };
        let next_goes = self.core.pace.lock().leave_line(ticket);
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

/// A write that may go around the cache.
pub(super) struct Around {
    share: Share,
    outside: Outside,
}

impl Around {
    /// The first of `len` blocks from `origin` on, as soon as it is their turn.
    pub(super) fn enter(place: &mut InLine<'_>, opened: &mut Opened, origin: u32, len: u32) -> Option<Self> {
        let (share, len) = place.enter(len)?;
        Some(Self { share, outside: Outside::new(place.core.clone(), opened, origin, len) })
    }

    pub(super) fn len(&self) -> u32 {
        self.outside.len
    }

    /// Writes its blocks.
    pub(super) async fn write(self, bytes: IoBuf) -> (Result<(), Kind>, IoBuf) {
        let core = &self.outside.core;
        core.counts.add(Count::Around, self.len());
        let writing = Writing::new(core.clone(), self.share.bytes);
        let at = u64::from(self.outside.origin) * core.block_bytes();
        let reply = core.origin.submit(Request::write(at, bytes)).await;
        drop(writing);
        core.arounds.ended.fetch_add(1, Ordering::AcqRel);
        (reply.result, reply.buf)
    }
}

impl Core {
    /// Makes what went around the cache before durable.
    pub(super) async fn settle_arounds(self: &Arc<Self>) -> Result<(), Kind> {
        let ended = self.arounds.ended.load(Ordering::Acquire);
        if self.arounds.durable.load(Ordering::Acquire) >= ended {
            return Ok(());
        }
        let marked = self.with(|opened| opened.index.marked());
        self.keep();
        if !mutant::on("write_cache: flush what went around before old entries are clear") {
            self.failure.or(self.cleared.reached(marked)).await?;
        }
        self.flush_origin().await?;
        self.arounds.durable.fetch_max(ended, Ordering::AcqRel);
        Ok(())
    }

    /// Makes durable what the origin has answered; who asks meanwhile shares the next flush.
    pub(super) async fn flush_origin(&self) -> Result<(), Kind> {
        self.origin_flushes.through(self.call_flush()).await
    }

    /// Flushes the origin; writes around the cache that wait for that may go on.
    async fn call_flush(&self) -> Result<(), Kind> {
        let (covers, begun) = (self.pace.lock().begin_flush(), self.env.now());
        let flushed = self.origin.submit(Request::flush()).await.result;
        // What a failed flush covered may be lost. Said before anybody else asks the origin, which may tell of it only once.
        flushed.inspect_err(|&kind| self.fail("flushing the origin", kind))?;
        self.pace.lock().end_flush(covers, self.env.now() - begun);
        self.room.wake_all();
        Ok(())
    }

    /// Flushes the origin for who waits to write around the cache, if nobody does.
    pub(super) fn flush_for_waiters(self: &Arc<Self>) {
        if self.pace.lock().unflushed() == 0 || !self.origin_flushing.queue() {
            return;
        }
        let core = self.clone();
        let flush = async move || {
            // A failure sticks, and waiters see it.
            let _ = core.flush_origin().await;
            core.origin_flushing.end();
            // Those who asked meanwhile ask again.
            core.room.wake_all();
        };
        self.env.spawn(Place::Background, Box::new(move || Box::pin(async move { flush().await })));
    }

    /// Makes a write durable: what went to the cache, and what went around it.
    pub(super) async fn settle(self: &Arc<Self>, epoch: Option<u64>, around: bool) -> Result<(), Kind> {
        if let Some(epoch) = epoch {
            self.commit_to(epoch + 1).await?;
        }
        if around { self.settle_arounds().await } else { Ok(()) }
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
        let ((mut at, len), block) = (self.blocks(range), self.block_bytes());
        let end = at + len;
        // What is written from now on is not copied before the discard is done, which might destroy it there.
        let _outside = self.with(|opened| Outside::new(self.clone(), opened, at, len));
        while at < end {
            let (held, count) = self.with(|opened| opened.index.presence(at, end - at));
            let gap = ByteRange::new(u64::from(at) * block, u64::from(count) * block);
            self.failure.check()?;
            if !held && (gap.len >= GAP_BYTES || gap == range) {
                self.origin.submit(Request::bare(Op::Discard, gap)).await.result?;
                self.arounds.ended.fetch_add(1, Ordering::AcqRel);
            }
            at += count;
            self.give_way().await;
        }
        Ok(())
    }

    /// Zeroes or discards on the origin; the versions of the range that were there before give way.
    pub(super) async fn replace(self: &Arc<Self>, request: Request) -> Reply {
        let result = self.replace_range(&request).await;
        self.end_replacing(request, result).await
    }

    async fn end_replacing(self: &Arc<Self>, request: Request, result: Result<(), Kind>) -> Reply {
        let durable = request.flags.fua || self.settings.ack_committed;
        // What is newer than the request may hide something older in the cache until it is committed: a flush does both.
        let result = match (result, durable) {
            (Ok(()), true) => self.flush().await,
            (result, _) => result,
        };
        request.answer(result)
    }

    async fn replace_range(self: &Arc<Self>, request: &Request) -> Result<(), Kind> {
        let (mut at, len) = self.blocks(request.range);
        let end = at + len;
        // From now on nothing of the range is copied any more; what is under way is waited for.
        let _outside = self.with(|opened| Outside::new(self.clone(), opened, at, len));
        if self.with(|opened| opened.index.may_be_fresh(at, len)) {
            self.commit_all().await?;
        }
        let before = self.with(|opened| opened.index.committed);
        let writes = self.writes_zeroes(request);
        while at < end {
            let share = if writes { Some(self.share_of(end - at).await?) } else { None };
            let stop = share.as_ref().map_or(end, |(_, count)| at + count);
            let (batch, to) = self.take_replaced(at, stop, before).await?;
            self.replace_part(request, at, to, batch, share.map(|(share, _)| share)).await?;
            self.until_few_are_stale().await?;
            at = to;
        }
        Ok(())
    }

    /// Whether the origin writes data for this request, which its next flush then waits for.
    fn writes_zeroes(&self, request: &Request) -> bool {
        request.op == Op::WriteZeroes && (request.flags.no_hole || !self.origin.geometry().fast_zeroes)
    }

    /// Waits until some of `count` blocks may go around the cache.
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

    /// Versions of blocks from `at` to `end` that are to be replaced together, and the block behind them.
    async fn take_replaced(self: &Arc<Self>, at: u32, end: u32, before: u64) -> Result<(Batch, u32), Kind> {
        let (mut batch, mut to) = (Batch::new(self.clone(), Vec::new()), at);
        while to < end && batch.len() < REPLACED_MAX {
            let seen = self.changes.current();
            match self.with(|opened| opened.index.take_range(to, end - to, before)) {
                InRange::Taken(victims, next) => {
                    batch.add(victims);
                    to = next;
                    if to < end {
                        self.give_way().await;
                    }
                }
                InRange::Copying if to > at => break,
                InRange::Copying => self.changed_since(seen).await?,
            }
        }
        Ok((batch, to))
    }

    async fn until_few_are_stale(self: &Arc<Self>) -> Result<(), Kind> {
        let marked = self.with(|opened| opened.index.marked());
        self.failure.or(self.cleared.reached(marked.saturating_sub(STALE_MAX))).await
    }

    async fn replace_part(
        self: &Arc<Self>,
        request: &Request,
        at: u32,
        to: u32,
        batch: Batch,
        mut share: Option<Share>,
    ) -> Result<(), Kind> {
        let block = self.block_bytes();
        let range = ByteRange::new(u64::from(at) * block, u64::from(to - at) * block);
        let mut part = Request { op: request.op, range, flags: request.flags, buf: IoBuf::default() };
        part.flags.fua = false;
        self.failure.check()?;
        if part.op == Op::Discard && !batch.is_empty() {
            // A discard may leave what was there; here that would be something older than what the cache holds.
            part.op = Op::WriteZeroes;
        }
        share.iter_mut().for_each(|share| share.narrow(range.len));
        let writing = share.as_ref().map(|_| Writing::new(self.clone(), range.len));
        self.origin.submit(part).await.result?;
        drop((writing, share));
        if !batch.is_empty() {
            self.flush_origin().await?;
            batch.end_durable().await;
        }
        self.arounds.ended.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Waits until something has changed since `changes` was `seen`.
    pub(super) async fn changed_since(&self, seen: u64) -> Result<(), Kind> {
        self.failure.or(self.changes.reached(seen + 1)).await
    }
}
