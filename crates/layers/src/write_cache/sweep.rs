//! Which versions are copied to the origin next: a lap over the origin's blocks in their order, again and again, so that the origin
//! gets sorted and long writes.
//!
//! A lap takes what was committed before it began. A block that is written over and over is left to the next lap, and no version
//! waits longer than a lap and a half.

use super::block::Victim;

/// Where a lap is.
pub(super) struct Sweep {
    pub(super) at: u32,
    /// Versions of earlier epochs are taken.
    pub(super) before: u64,
    /// The least that was asked for in the lap: what it passed before the limit rose may be left.
    pub(super) asked_before: u64,
    /// Nothing was taken since the lap began.
    pub(super) idle: bool,
    /// A version of these epochs was passed over, since it could not leave.
    pub(super) skipped: bool,
    /// Laps that were begun.
    pub(super) laps: u64,
}

impl Sweep {
    /// Before the first lap over what was committed before `seq_count`.
    pub(super) fn from(seq_count: u64) -> Self {
        Self { at: 0, before: seq_count, asked_before: u64::MAX, idle: true, skipped: false, laps: 0 }
    }
}

/// What was found.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Versions of consecutive blocks, marked and pinned.
    Victims(Vec<Victim>),
    /// Nothing yet: ask again.
    Later,
    /// Nothing in a whole lap, but for versions that cannot leave yet where some were `skipped`.
    Nothing { skipped: bool },
}
