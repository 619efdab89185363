//! What happens to the model, and what it answers.

use crate::payload::SectorValue;

/// Names an operation that has begun.
pub type Number = u64;

/// What a write does to a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It holds this value.
    To(SectorValue),
    /// It holds zeroes.
    Zeroed {
        /// It keeps its room.
        no_hole: bool,
    },
    /// It holds zeroes, or what it held.
    Discarded,
}

/// What is said of a sector by one that was asked for extents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Said {
    /// It takes no room.
    pub hole: bool,
    /// It reads as zero.
    pub zero: bool,
}

/// What is lost when a machine stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// All disks lose their power: what is left is durable.
    All,
    /// Some disks lose their power, or a device loses what it was not asked to keep.
    Some,
    /// Only what was in flight: a process was killed, and what it acknowledged is there.
    Nothing,
}

/// How a write or flush ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With success; `durable` for a write with FUA.
    Done {
        /// It had FUA.
        durable: bool,
    },
    /// With an error.
    Failed,
    /// Its answer was dropped.
    Withdrawn,
}

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(pub String);
