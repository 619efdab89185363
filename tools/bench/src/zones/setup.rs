//! What a run of the model is given, and what comes of it.

use spillway_policy::zones::Scope;

use super::file_system::FileSystem;
use super::memory::ZONES;
use super::stick::Speed;

/// What one run is given.
#[derive(Clone, Copy)]
pub(super) struct Setup {
    pub(super) file_system: FileSystem,
    pub(super) scope: Scope,
    pub(super) speed: Speed,
    pub(super) seed: u64,
}

/// What was at the end of a second.
#[derive(Clone, Copy, Default)]
pub(super) struct Sample {
    /// Dirty pages and those being written back, by zone.
    pub(super) unsaved: [u64; ZONES],
    /// Time for which the writer paused in that second, in nanoseconds.
    pub(super) paused: u64,
}

/// What was measured in one run.
#[derive(Clone, Default)]
pub(super) struct Measured {
    pub(super) seconds: f64,
    pub(super) reclaim_writes: u64,
    pub(super) activated: u64,
    pub(super) seeks: u64,
    pub(super) samples: Vec<Sample>,
}

/// What reclaim found.
#[derive(Default)]
pub(super) struct Found {
    pub(super) freed: usize,
    pub(super) written: usize,
    /// There is no room for more writes.
    pub(super) is_blocked: bool,
}
