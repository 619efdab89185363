//! The calls to which the system reports a lost writeback: syncs and durable writes.
//!
//! Linux reports once for each open file (errseq, see fsync(2)), to whichever of these calls looks first, and from then on
//! reads may show what was there before. So the report of one call may be about the data of another:
//!
//! - One sync runs at a time. Flushes that are asked for meanwhile share the next one.
//! - A success counts only once every call has ended that had begun before: what it was told is remembered by then.
//! - The first failure is remembered for good. So is that of a call whose end nobody sees. A storage that remembers what is lost does that
//!   itself.
//!
//! Needs: a holder of one of these futures polls it when woken, or drops it. Locks: the list of calls is a leaf.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;

use spillway_core::sync::{GroupFlush, Mutex, StickyError, Watermark};
use spillway_core::{Kind, Storage, mutant};

pub(super) struct Syncs {
    storage: Arc<dyn Storage>,
    flushes: GroupFlush,
    failure: StickyError,
    calls: Mutex<Calls>,
    /// Every call with a number below this one has ended.
    ended: Watermark,
}

/// Calls that may be told of a lost writeback, numbered in the order in which they begin.
#[derive(Default)]
struct Calls {
    next: u64,
    /// Those that have not ended.
    open: BTreeSet<u64>,
}

impl Syncs {
    /// Of calls on that storage.
    pub(super) fn new(storage: &Arc<dyn Storage>) -> Self {
        Self {
            storage: storage.clone(),
            flushes: GroupFlush::default(),
            failure: StickyError::default(),
            calls: Mutex::default(),
            ended: Watermark::default(),
        }
    }

    /// The first failure, if there was one.
    pub(super) fn verdict(&self) -> Result<(), Kind> {
        self.storage.losses().unwrap_or_else(|| self.failure.check())
    }

    /// Something may be lost: no flush succeeds any more.
    pub(super) fn fail(&self, kind: Kind) {
        if self.storage.losses().is_some() || mutant::on("file: forget that a flush failed") {
            return;
        }
        if self.failure.set(kind) {
            tracing::error!(
                "the system could not write back ({}): data may be lost, all further flushes fail",
                kind.errno_name()
            );
        }
    }

    /// A flush: the first to ask makes the call, those that ask while it runs share the next.
    pub(super) async fn flush(&self, sync: impl Future<Output = Result<(), Kind>>) -> Result<(), Kind> {
        let result = self.flushes.through(self.call(sync)).await;
        self.verdict()?;
        result
    }

    async fn call(&self, sync: impl Future<Output = Result<(), Kind>>) -> Result<(), Kind> {
        let call = self.begin();
        let result = sync.await;
        call.end(result);
        self.earlier_ended().await;
        result
    }

    /// A call begins that may be told of a lost writeback.
    pub(super) fn begin(&self) -> SyncCall<'_> {
        let mut calls = self.calls.lock();
        let number = calls.next;
        calls.next += 1;
        assert!(calls.open.insert(number), "call {number} begins once");
        SyncCall { syncs: self, number, result: Err(Kind::Io) }
    }

    /// Waits until every call has ended that has begun so far.
    pub(super) async fn earlier_ended(&self) {
        let next = self.calls.lock().next;
        self.ended.reached(next).await;
    }
}

/// A call that runs. Dropped before its end it counts as failed: it may have taken the report with it.
pub(super) struct SyncCall<'a> {
    syncs: &'a Syncs,
    number: u64,
    result: Result<(), Kind>,
}

impl SyncCall<'_> {
    pub(super) fn end(mut self, result: Result<(), Kind>) {
        self.result = result;
    }
}

impl Drop for SyncCall<'_> {
    fn drop(&mut self) {
        if let Err(kind) = self.result {
            self.syncs.fail(kind);
        }
        let mut calls = self.syncs.calls.lock();
        assert!(calls.open.remove(&self.number), "call {} ends once", self.number);
        let ended = calls.open.first().copied().unwrap_or(calls.next);
        assert!(ended <= calls.next, "{ended} calls have ended of {}", calls.next);
        drop(calls);
        self.syncs.ended.advance(ended);
    }
}
