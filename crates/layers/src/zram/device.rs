//! What a device is made of.

use std::sync::{Arc, OnceLock};

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicU64, Mutex, Ordering};
use spillway_core::{Budget, Env};

use super::backing::{Backing, Knobs};
use super::compactor::Compactor;
use super::decoders::Decoders;
use super::mark::SECONDS_MAX;
use super::pages::Pages;
use super::pool::Pool;
use super::streams::Streams;
use super::table::{Named, Table};
use crate::writeback::Writeback;

/// What is counted; the numbers are indices into [`Core::counters`].
#[derive(Clone, Copy, Debug)]
#[repr(usize)]
pub(super) enum Count {
    PagesRead,
    PagesWritten,
    FailedReads,
    FailedWrites,
    NotifyFree,
    PagesCompacted,
    HugePagesSince,
    /// Pages read from the spill file, and written to it.
    BackingReads,
    BackingWrites,
    BroughtBack,
    /// Pauses of writers, and their microseconds.
    Pauses,
    PausedMicros,
}

pub(super) const COUNTS: usize = Count::PausedMicros as usize + 1;

/// A compressed RAM device.
pub struct Zram {
    pub(super) core: Arc<Core>,
}

/// The state that requests, the compactor and the attributes share.
pub(super) struct Core {
    pub(super) env: Arc<dyn Env>,
    /// `mem_limit`'s share of the process's budget: pool and table.
    pub(super) budget: Arc<Budget>,
    /// The process's budget, for what a device takes however little it holds.
    pub(super) fixed: Arc<Budget>,
    pub(super) size: AtomicU64,
    pub(super) pages: Pages,
    pub(super) pool: Pool,
    pub(super) table: Table,
    pub(super) streams: Streams,
    pub(super) decoders: Decoders,
    /// Shared with the background task, which outlives the device by one look.
    pub(super) compactor: Arc<Compactor>,
    pub(super) counters: Counters<COUNTS>,
    pub(super) knobs: Knobs,
    /// Set while the device is opened, before anybody uses it.
    pub(super) backing: OnceLock<Arc<Backing>>,
    /// Spills where memory is short. Set with it.
    pub(super) spiller: OnceLock<Writeback<Core>>,
    /// Whether a reset runs. Held while disksize or the algorithm is set.
    pub(super) resetting: Mutex<bool>,
}

impl Core {
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Asserts that table, pool and budget agree. While no request is at work on another thread.
    pub(super) fn verify(&self) {
        if self.backing.get().is_some_and(|backing| backing.is_at_work()) {
            // What was picked, and what was written and is not named yet, is known to tasks only.
            return;
        }
        let Named { objects, spilled, charged, .. } = self.table.verify();
        let pool_bytes = self.pool.verify(&self.pages, objects.into_iter());
        let taken = self.budget.used() + self.pages.borrowed();
        assert_eq!(taken, charged + pool_bytes + self.pages.warm_bytes(), "bytes charged and in use");
        match self.backing.get() {
            Some(backing) => backing.store.verify(spilled.into_iter()),
            None => assert!(spilled.is_empty(), "nothing is spilled without a spill file"),
        }
    }

    pub(super) fn count(&self, what: Count, by: u64) {
        self.counters.add(what as usize, by);
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counters.sum(what as usize)
    }

    /// Seconds for the access time of a slot: 24 bits, 194 days.
    pub(super) fn seconds(&self) -> u32 {
        (self.env.coarse_now().as_secs() & SECONDS_MAX) as u32
    }
}
