//! Time passes in epochs: one begins with each flush, and with each part of `dirty_expire` while something is dirty. What became dirty
//! in an epoch that began too long ago is written back.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::{Ordering, Work};
use spillway_core::{LocalFuture, Place, mutant};
use spillway_policy::dirty_regions::Stamp;

use super::cache::Core;

/// Ages are looked at this often in `dirty_expire`, and blocks are too old from 15 of 16 parts of it on.
const PARTS: u32 = 16;

/// Longest time between two looks: a setting that changes meanwhile is seen after that.
const EVERY_MAX: Duration = Duration::from_secs(1);

impl Core {
    /// Has ages looked at for as long as something is unsaved; it has just become so.
    pub(super) fn age(self: &Arc<Self>) {
        if self.age_timer.queue() {
            let core = Arc::downgrade(self);
            let task = move || Box::pin(run(core)) as LocalFuture<()>;
            self.env.spawn(Place::Background, Box::new(task));
        }
    }

    /// Begins an epoch; returns its number. What became dirty before is of an earlier one.
    pub(super) fn begin_epoch(&self) -> Stamp {
        // With the lock: epochs are noted in their order.
        let mut ages = self.ages.lock();
        let number = self.epoch.fetch_add(1, Ordering::AcqRel) + 1;
        ages.note(self.env.coarse_now(), number);
        Stamp(number)
    }

    fn look_at_ages(&self) {
        self.begin_epoch();
        let old = self.settings.dirty_expire() * (PARTS - 1) / PARTS;
        let time = self.env.coarse_now().checked_sub(old);
        if time.is_some_and(|time| self.ages.lock().expire_until(time)) {
            self.writeback.kick();
        }
    }
}

/// Whether the timer goes on after it has found nothing unsaved: something has become so since.
fn goes_on(timer: &Work) -> bool {
    if mutant::on("page_cache: end the timer of ages whatever has become dirty since the look") {
        timer.end();
        return false;
    }
    timer.again()
}

async fn run(core: Weak<Core>) {
    loop {
        let Some((env, every)) = core.upgrade().map(|core| {
            let every = core.settings.dirty_expire() / PARTS;
            (core.env.clone(), every.clamp(Duration::from_millis(1), EVERY_MAX))
        }) else {
            return;
        };
        env.sleep(every).await;
        let Some(core) = core.upgrade() else { return };
        core.look_at_ages();
        // A write that makes something dirty queues another run afterwards: it is seen here, or there.
        if core.unsaved.used() == 0 && !goes_on(&core.age_timer) {
            return;
        }
    }
}
