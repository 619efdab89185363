//! Units of virtual time: nanoseconds.

pub(super) const SECOND: u64 = 1_000_000_000;
pub(super) const MILLI: u64 = 1_000_000;
