//! What a device is made of.

use std::sync::Arc;

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicU64, Mutex, Ordering};
use spillway_core::{Budget, Env};

use super::compactor::Compactor;
use super::decoders::Decoders;
use super::pages::Pages;
use super::pool::Pool;
use super::streams::{STREAMS_MAX, Streams};
use super::table::Table;

/// How a device begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Bytes, rounded up to a page; 0 leaves the device without a size until `disksize` is written.
    pub disksize: u64,
    /// Name of the codec; empty for the default, lz4.
    pub comp_algorithm: String,
    /// As the attribute of this name, such as `level=3`.
    pub algorithm_params: Option<String>,
    /// How many writers may compress at once; 0 for [`Config::default_streams`]' answer.
    pub max_comp_streams: usize,
    /// Most bytes of pool and table, rounded up to a page; 0 for no limit but the budget's.
    pub mem_limit: u64,
}

impl Config {
    /// The number of streams where none is given: one for each core.
    pub fn default_streams() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from).min(STREAMS_MAX)
    }
}

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
}

pub(super) const COUNTS: usize = Count::HugePagesSince as usize + 1;

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
    pub(super) compactor: Compactor,
    pub(super) counters: Counters<COUNTS>,
    /// Serialises what changes the device's state: disksize, reset, algorithm.
    pub(super) setup: Mutex<()>,
}

impl Core {
    pub(super) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    pub(super) fn count(&self, what: Count, by: u64) {
        self.counters.add(what as usize, by);
    }

    pub(super) fn counted(&self, what: Count) -> u64 {
        self.counters.sum(what as usize)
    }

    /// Seconds for the access time of a slot: 24 bits, 194 days.
    pub(super) fn seconds(&self) -> u32 {
        self.env.coarse_now().as_secs() as u32 & 0xff_ffff
    }
}
