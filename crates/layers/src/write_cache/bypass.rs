//! Requests that bypass the cache, and what makes them durable.
//!
//! A write bypasses the cache only where that has no version of its blocks; zeroes and discards replace what it has ([`super::discard`]).
//!
//! What bypasses the cache holds its range first, and looks for versions then; a lap takes a version under the lock of its region and
//! looks for held ranges there. So one of the two sees the other, and never are both on their way to the same block of the origin: which
//! of them survives would be undefined.
//!
//! An entry on the device may outlive its block's stay for a moment, until it is cleared. What bypassed the cache is durable only
//! after that, and after a flush of the origin.

use std::sync::Arc;

use spillway_core::sync::{HeldRange, Ordering};
use spillway_core::{ByteRange, IoBuf, Kind, Place, Request, mutant, task};

use super::committer::Committer;
use super::device::counts::Count;
use super::device::{Core, Wants};
use super::index::block::OriginBlock;

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
        self.core.changes.wake_all();
        // What was in its way may leave now, whether or not the cache is still full enough for write-back to begin.
        if self.core.bypass.was_passed_over() {
            self.core.writeback.kick();
        }
    }
}

/// Bytes that bypass the cache, until a flush covers them.
pub(super) struct BypassShare {
    core: Arc<Core>,
    bytes: u64,
}

impl BypassShare {
    /// Leaves others what is above `bytes`.
    pub(super) fn narrow(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} of {} bytes", self.bytes);
        let less = self.bytes - bytes;
        if less > 0 {
            self.bytes = bytes;
            self.core.bypass.window.lock().narrow(less);
            self.core.changes.wake_all();
        }
    }
}

impl Drop for BypassShare {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.core.bypass.window.lock().end(self.core.env.coarse_now(), self.bytes);
            self.core.changes.wake_all();
        }
    }
}

/// A write that may bypass the cache.
pub(super) struct BypassWrite {
    share: BypassShare,
    busy: Busy,
}

/// What came of the wish to bypass the cache.
pub(super) enum Entered {
    Yes(BypassWrite),
    /// There is no room.
    Waits,
    /// The first of the blocks has a version meanwhile.
    Held,
}

impl BypassWrite {
    /// The first of `len` blocks from `origin` on, where there is room for some.
    pub(super) fn enter(core: &Arc<Core>, origin: OriginBlock, len: u32) -> Entered {
        let Some((mut share, len)) = core.take_share(len) else { return Entered::Waits };
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
        if reply.result.is_ok() {
            writing.landed();
        }
        // One that has reached nobody is no reason to ask for a flush there: it was not acknowledged.
        if reply.result != Err(Kind::Unreachable) {
            core.bypass.count_end();
        }
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
        self.run_committer(Committer::Here);
        if !mutant::on("write_cache: flush what bypassed it before old entries are clear") {
            self.failure.or(self.journal.cleared.reached(generation)).await?;
        }
        match self.flush_origin().await {
            Ok(()) => self.bypass.durable.fetch_max(ended, Ordering::AcqRel),
            // A flush that was under way before has covered the same.
            Err(Kind::Unreachable) if self.bypass.durable.load(Ordering::Acquire) >= ended => ended,
            Err(kind) => return Err(kind),
        };
        Ok(())
    }

    /// Makes durable what the origin has answered; who asks meanwhile shares the next flush.
    pub(super) async fn flush_origin(&self) -> Result<(), Kind> {
        self.bypass.flushes.through(self.call_flush()).await
    }

    /// Flushes the origin; writes that wait for that may bypass the cache then.
    async fn call_flush(&self) -> Result<(), Kind> {
        let covers = self.bypass.window.lock().begin_flush();
        let flushed = self.meter.flush(self.origin.flush()).await;
        // What a failed flush covered may be lost. Said before anybody else asks the origin, which may tell of it only once.
        flushed.inspect_err(|&kind| self.fail("flushing the origin", kind))?;
        self.bypass.window.lock().end_flush(covers);
        self.changes.wake_all();
        Ok(())
    }

    /// Flushes the origin for who waits to bypass the cache, if nobody does.
    pub(super) fn flush_for_waiters(self: &Arc<Self>) {
        if self.bypass.window.lock().unflushed() == 0 || !self.bypass.flushing.queue() {
            return;
        }
        let core = self.clone();
        let flush = async move || {
            // Waiters see a failure.
            let _ = core.flush_origin().await;
            core.bypass.flushing.end();
            // Those who asked meanwhile ask again.
            core.changes.wake_all();
        };
        self.env.spawn(Place::Background, task(flush));
    }

    /// Waits until some of `count` blocks may bypass the cache.
    pub(super) async fn share_of(self: &Arc<Self>, count: u32) -> Result<(BypassShare, u32), Kind> {
        let look = || {
            let share = self.failure.check().map(|()| self.take_share(count)).transpose();
            if share.is_none() {
                self.flush_for_waiters();
            }
            share
        };
        self.failure.or_passing(self.room(Wants::Bypass).until(&self.changes, look)).await?
    }

    /// The blocks of `count` that may bypass the cache together now.
    fn take_share(self: &Arc<Self>, count: u32) -> Option<(BypassShare, u32)> {
        let (block, ahead) = (self.block_bytes(), self.meter.ahead());
        // Longer writes go in parts, so that they find room beside others.
        let count = u64::from(count).min(ahead / 2 / block).max(1);
        let goes = self.bypass.window.lock().admit(count * block, ahead);
        goes.then(|| (BypassShare { core: self.clone(), bytes: count * block }, count as u32))
    }
}
