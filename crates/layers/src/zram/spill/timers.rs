//! What the clock says about spilling by itself: pages that are old enough leave without any pressure, and what is written in a day is
//! limited.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::{MutexGuard, Ordering};
use spillway_core::{Place, task};

use super::writeback::{self, Why};
use crate::spill::Count;
use crate::zram::control::scan::{PageFilter, SlotScan};
use crate::zram::device::Core;
use crate::zram::device::backing::Backing;
use crate::zram::device::pressure::DailyWrites;
use crate::zram::page::PAGE;

/// Old pages are looked for this often while they become old, at least once a minute and at most once a second.
const LOOKS_AN_AGE: u64 = 8;

/// What is waited for where the day's bytes are used up: what one I/O writes.
const NEXT_BYTES: u64 = 1 << 20;

impl Core {
    /// Whether pages may leave by themselves, as far as anything but memory says so.
    pub(crate) fn may_spill(&self, backing: &Backing) -> bool {
        let may = !backing.is_ending() && self.size() > 0 && self.may_write();
        let room = !backing.store.has_failed() && backing.pressure.may_have_room(self.env.coarse_now());
        may && room && self.may_spend(backing)
    }

    /// Whether the day's bytes allow more than what is on its way.
    pub(crate) fn may_spend(&self, backing: &Backing) -> bool {
        let left = self.daily(backing).allowance.left(self.env.coarse_now());
        left > backing.pressure.leaving.load(Ordering::Relaxed)
    }

    /// Time until one I/O more may be written.
    pub(crate) fn spends_in(&self, backing: &Backing) -> Duration {
        self.daily(backing).allowance.wait(self.env.coarse_now(), NEXT_BYTES)
    }

    /// The day's bytes, with everything counted that was written so far.
    pub(super) fn daily<'a>(&self, backing: &'a Backing) -> MutexGuard<'a, DailyWrites> {
        let (now, written) = (self.env.coarse_now(), backing.store.count(Count::BytesWritten));
        let mut daily = backing.pressure.daily.lock();
        let more = written.saturating_sub(daily.written);
        daily.allowance.spend(now, more);
        daily.allowance.limit(now, self.settings.spill_daily_bytes.get());
        daily.written = written;
        daily
    }

    /// Has old pages leave, where it is time to look for them.
    pub(crate) fn spill_old_pages(self: &Arc<Self>) {
        let Some(backing) = self.backing.get() else { return };
        let (age, now) = (self.settings.spill_age.get(), self.env.coarse_now());
        if age == 0 || now < backing.pressure.old_at() || !self.may_spill(&backing) {
            return;
        }
        if !backing.pressure.begin_old(now + Duration::from_secs((age / LOOKS_AN_AGE).clamp(1, 60))) {
            return;
        }
        let (core, resets, slots) = (self.clone(), self.resets(), self.size() / PAGE as u64);
        let scans = vec![SlotScan { pages: PageFilter::All, slots: 0..slots }];
        let run = move || async move {
            let outcome = writeback::run(core.clone(), resets, scans, Why::Age(age)).await;
            if let Err(error) = outcome {
                tracing::debug!("not all old pages could leave: {error}");
            }
            core.pressure.end_old();
        };
        self.env.spawn(Place::Background, task(run));
    }
}
