//! Time passes in epochs: one begins with each flush, and with each part of `dirty_expire` while something is dirty. What became dirty
//! in an epoch that began too long ago is written back.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::Ordering;
use spillway_policy::dirty_regions::Stamp;

use crate::page_cache::device::Core;

/// Ages are looked at this often in `dirty_expire`, and blocks are too old from 15 of 16 parts of it on.
const PARTS: u32 = 16;

/// Longest time between two looks, and of an epoch.
const EVERY_MAX: Duration = Duration::from_secs(1);

impl Core {
    /// Begins an epoch; returns its number. What became dirty before is of an earlier one.
    pub(crate) fn begin_epoch(&self) -> Stamp {
        // With the lock: epochs are noted in their order.
        let mut ages = self.ages.lock();
        let number = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        ages.note(self.env.coarse_now(), number);
        Stamp(number)
    }

    /// Time between two looks at ages.
    pub(crate) fn age_every(&self) -> Duration {
        (self.settings.dirty_expire() / PARTS).clamp(Duration::from_millis(1), EVERY_MAX)
    }

    /// Has what is too old written back; whether something is unsaved that becomes so.
    pub(crate) fn look_at_ages(self: &Arc<Self>) -> bool {
        self.begin_epoch();
        let old = self.settings.dirty_expire() * (PARTS - 1) / PARTS;
        let time = self.env.coarse_now().checked_sub(old);
        if time.is_some_and(|time| self.ages.lock().expire_until(time)) {
            self.writeback.kick();
        }
        self.unsaved.used() > 0
    }
}
