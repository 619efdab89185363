//! Which pages leave memory, and when: a clock over the slots, between two watermarks.
//!
//! The hand goes round the slots in their order. A page that was accessed since the hand last passed gets a second chance, one that was
//! not leaves: recency without a list, which accesses would have to change. A page that does not compress pays a whole page of
//! memory for each access that it saves, and gets no second chance after a second.

use std::time::Duration;

/// Seconds after its last access from which a page that does not compress leaves at once.
pub const HUGE_AGE: u32 = 1;

/// Laps of the hand without a victim after which it rests: the first may have taken the second chance of all.
pub const LAPS_MAX: u32 = 2;

/// How long it rests then.
pub const REST: Duration = Duration::from_millis(10);

/// Bytes that leave together at least where a writer waits: so many pages that its turn comes soon, and so few that warm ones stay.
pub const LEAST_BYTES: u64 = 64 << 10;

/// What the hand finds in a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageState {
    /// Accessed since the hand last passed.
    pub referenced: bool,
    /// Marked as not accessed for long.
    pub idle: bool,
    /// It does not compress.
    pub huge: bool,
    /// Seconds since the last access.
    pub age: u32,
}

/// What the hand does with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It leaves.
    Leave,
    /// It stays until the hand comes again.
    Stay,
}

/// What becomes of a page.
pub fn verdict(page: PageState) -> Verdict {
    let cold = page.idle || !page.referenced || page.huge && page.age >= HUGE_AGE;
    if cold { Verdict::Leave } else { Verdict::Stay }
}

/// How full memory is, by one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Bytes charged.
    pub used: u64,
    /// Of these: bytes that moving objects together would free.
    pub reusable: u64,
    /// Bytes that may be charged.
    pub limit: u64,
}

impl Level {
    /// Bytes charged that no moving of objects would free.
    pub fn held(&self) -> u64 {
        self.used.saturating_sub(self.reusable)
    }

    /// So much percent of the limit, in bytes.
    pub fn at(&self, percent: u64) -> u64 {
        u64::try_from(u128::from(self.limit) * u128::from(percent) / 100).unwrap_or(u64::MAX)
    }

    /// Bytes that more can be held before pages leave at `high` percent.
    pub fn below(&self, high: u64) -> u64 {
        self.at(high).saturating_sub(self.held())
    }

    /// Bytes that have to leave down to `low` percent; at least [`LEAST_BYTES`] where a writer waits.
    pub fn excess(&self, low: u64, waited_for: bool) -> u64 {
        let excess = self.held().saturating_sub(self.at(low));
        if waited_for { excess.max(LEAST_BYTES) } else { excess }
    }

    /// Percent of the limit that what is held takes, rounded down.
    pub fn percent(&self) -> u64 {
        u64::try_from(u128::from(self.held()) * 100 / u128::from(self.limit.max(1))).unwrap_or(u64::MAX)
    }
}

/// Whether pages leave at a level of `percent`, if they did `before`: from the high watermark on, down to the low one.
pub fn leaves(percent: u64, before: bool, high: u64, low: u64) -> bool {
    percent >= high.max(1) || before && percent > low.min(high)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WARM: PageState = PageState { referenced: true, idle: false, huge: false, age: 100 };

    #[test]
    fn a_page_stays_if_it_was_accessed_and_earns_it() {
        assert_eq!(verdict(WARM), Verdict::Stay);
        assert_eq!(verdict(PageState { huge: true, age: 0, ..WARM }), Verdict::Stay);
        for cold in [
            PageState { referenced: false, ..WARM },
            PageState { idle: true, ..WARM },
            PageState { huge: true, age: HUGE_AGE, ..WARM },
        ] {
            assert_eq!(verdict(cold), Verdict::Leave, "{cold:?}");
        }
    }

    #[test]
    fn what_can_be_won_back_is_not_held() {
        let level = |used, reusable, limit| Level { used, reusable, limit }.percent();
        assert_eq!([level(90, 0, 100), level(90, 20, 100), level(5, 9, 100)], [90, 70, 0]);
        assert_eq!(level(u64::MAX, 0, u64::MAX), 100);
        assert_eq!(level(5, 0, 0), 500, "a limit of nothing is exceeded");
    }

    #[test]
    fn what_leaves_is_what_exceeds_the_low_watermark_and_something_for_who_waits() {
        let level = Level { used: 1000 << 10, reusable: 100 << 10, limit: 1000 << 10 };
        assert_eq!([level.excess(80, false), level.excess(80, true)], [100 << 10; 2]);
        assert_eq!([level.excess(95, false), level.excess(95, true)], [0, LEAST_BYTES]);
        assert_eq!([level.below(95), level.below(90), level.below(80)], [50 << 10, 0, 0]);
    }

    #[test]
    fn between_the_watermarks_it_goes_on_and_does_not_begin() {
        let leaves = |percent, before| leaves(percent, before, 90, 80);
        assert_eq!(
            [79, 80, 81, 89, 90].map(|percent| leaves(percent, false)),
            [false, false, false, false, true]
        );
        assert_eq!(
            [79, 80, 81, 89, 90].map(|percent| leaves(percent, true)),
            [false, false, true, true, true]
        );
        assert!(!super::leaves(0, false, 0, 0), "nothing leaves an empty device");
        assert!(
            super::leaves(50, false, 40, 60) && !super::leaves(39, true, 40, 60),
            "low above high is high"
        );
    }
}
