//! The spill file of a device: how it is attached, which pages leave for it and when, how they come back, and how all of them are kept.

pub(super) mod clean;
pub(super) mod gathered;
pub(super) mod keeping;
pub(super) mod recall;
pub(super) mod spiller;
pub(super) mod spilling;
pub(super) mod throttle;
pub(super) mod timers;
pub(super) mod writeback;
