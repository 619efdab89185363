//! How regions and times are named.

/// A region, by its place on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RegionNumber(pub u64);

/// When something became dirty: a number that grows with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(pub u64);

impl Stamp {
    /// Later than anything.
    pub const MAX: Self = Self(u64::MAX);
}
