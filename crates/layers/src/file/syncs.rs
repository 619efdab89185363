//! The calls to which the system reports a lost writeback: syncs and durable writes.
//!
//! Linux reports once for each open file (errseq, see fsync(2)), to whichever of these calls looks first, and from then on
//! reads may show what was there before. So the report of one call may be about the data of another:
//!
//! - One sync runs at a time. Flushes that are asked for meanwhile share the next one.
//! - A success counts only once every call has ended that had begun before: what it was told is remembered by then.
//! - The first failure is remembered for good. So is that of a call whose end nobody sees.
//!
//! Needs: whoever holds one of these futures polls it when woken, or drops it. Locks: the state is a leaf.

use std::future::Future;

use spillway_core::sync::{AtomicU32, Mutex, Ordering, WaitList};
use spillway_core::{Kind, mutant};

#[derive(Default)]
pub(super) struct Syncs {
    state: Mutex<State>,
    /// Errno of the first failure, 0 for none.
    errno: AtomicU32,
    /// A call or a round has ended.
    ends: WaitList,
}

#[derive(Default)]
struct State {
    /// Flushes asked for, and how many of these a sync that succeeded or failed has covered.
    asked: u64,
    covered: u64,
    /// A sync runs.
    syncing: bool,
    /// Number of the next call, and of those that have not ended.
    next: u64,
    open: Vec<u64>,
}

impl Syncs {
    /// The first failure, if there was one.
    pub(super) fn verdict(&self) -> Result<(), Kind> {
        match self.errno.load(Ordering::Acquire) {
            0 => Ok(()),
            errno => Err(Kind::of_errno(errno as i32)),
        }
    }

    /// Something may be lost: no flush succeeds any more.
    pub(super) fn fail(&self, kind: Kind) {
        if mutant::on("file: forget that a flush failed") {
            return;
        }
        let errno = kind.errno() as u32;
        if self.errno.compare_exchange(0, errno, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            tracing::error!(
                "the system could not write back ({}): data may be lost, all further flushes fail",
                kind.errno_name()
            );
        }
    }

    /// A flush: the first to ask makes the call, those that ask while it runs share the next.
    pub(super) async fn flush(&self, sync: impl Future<Output = Result<(), Kind>>) -> Result<(), Kind> {
        let ticket = {
            let mut state = self.state.lock();
            state.asked += 1;
            state.asked
        };
        let Some(round) = self.ends.until(|| self.turn(ticket)).await else { return self.verdict() };
        let call = self.begin();
        let result = sync.await;
        call.end(result);
        self.earlier_ended().await;
        round.end();
        if mutant::on("file: forget that a flush failed") { result } else { self.verdict() }
    }

    /// `Some(None)` once a sync has covered this flush, a round if it is its turn to call.
    fn turn(&self, ticket: u64) -> Option<Option<Round<'_>>> {
        let mut state = self.state.lock();
        if state.covered >= ticket {
            return Some(None);
        }
        if state.syncing {
            return None;
        }
        state.syncing = true;
        Some(Some(Round { syncs: self, covers: state.asked, done: false }))
    }

    /// A call begins that may be told of a lost writeback.
    pub(super) fn begin(&self) -> Call<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.open.push(number);
        Call { syncs: self, number, result: Err(Kind::Io) }
    }

    /// Waits until every call has ended that has begun so far.
    pub(super) async fn earlier_ended(&self) {
        if mutant::on("file: trust a sync beside a durable write") {
            return;
        }
        let next = self.state.lock().next;
        let ended = || self.state.lock().open.iter().all(|&number| number >= next);
        self.ends.until(|| ended().then_some(())).await;
    }
}

/// The one sync that runs. Dropped before its end, it has covered nothing, and the next flush in line calls.
struct Round<'a> {
    syncs: &'a Syncs,
    covers: u64,
    done: bool,
}

impl Round<'_> {
    fn end(mut self) {
        self.done = true;
    }
}

impl Drop for Round<'_> {
    fn drop(&mut self) {
        let mut state = self.syncs.state.lock();
        state.syncing = false;
        if mutant::on("file: share a sync that had begun") {
            state.covered = state.asked;
        } else if self.done {
            state.covered = self.covers;
        }
        drop(state);
        self.syncs.ends.wake_all();
    }
}

/// A call that runs. Dropped before its end it counts as failed: it may have taken the report with it.
pub(super) struct Call<'a> {
    syncs: &'a Syncs,
    number: u64,
    result: Result<(), Kind>,
}

impl Call<'_> {
    pub(super) fn end(mut self, result: Result<(), Kind>) {
        self.result = result;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        if let Err(kind) = self.result {
            self.syncs.fail(kind);
        }
        let mut state = self.syncs.state.lock();
        state.open.retain(|&number| number != self.number);
        drop(state);
        self.syncs.ends.wake_all();
    }
}
