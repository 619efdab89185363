//! What a run of the model is given, and what comes of it.

use super::file_system::FileSystem;
use super::memory::ZONES;
use super::stick::Speed;

/// What the dirty limit is a limit of.
#[derive(Clone, Copy)]
pub(super) enum Scope {
    /// Each zone has its share.
    Zone,
    /// All memory together, whichever zone it is in: the kernel's until 3.2.
    Global,
}

impl Scope {
    /// How many percent of a zone may be unsaved, where the limit of all memory is `percent`.
    pub(super) fn of_zone(self, percent: u64) -> u64 {
        match self {
            Self::Zone => percent,
            Self::Global => 100,
        }
    }
}

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
