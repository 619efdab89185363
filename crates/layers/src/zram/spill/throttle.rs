//! Writers pause while pages leave too slowly: a look at how full memory is, now and then while there is room, and for each write between
//! the end of the free run and the limit.
//!
//! A write is stored first and pauses before it is answered: it holds nothing that others wait for, and what it pauses for is what it
//! took. Only objects that have become more count; who writes over what is in memory takes nothing.

use std::time::Duration;

use spillway_policy::compaction::taken_in_use;
use spillway_policy::throttle::Thresholds;
use spillway_policy::watermarks::Goal;

use crate::decisions::Decision;
use crate::writeback::Source;
use crate::zram::device::backing::Backing;
use crate::zram::device::{Core, Count};

/// Where nobody has to pause although memory is short, this part of what is left is written between two looks.
const LOOKS_LEAST: u64 = 64;

impl Core {
    /// Counts bytes by which a request has made memory fuller; whether it has to [`Core::throttle`]. Three loads while there is much room.
    pub(crate) fn grew(&self, bytes: u64) -> bool {
        bytes > 0 && self.pressure.grew(bytes, self.budget.used())
    }

    /// Pauses for these bytes, where memory becomes short and some can leave.
    pub(crate) async fn throttle(&self, bytes: u64) {
        let Some(backing) = self.backing.get() else { return self.pressure.end() };
        let paused = |now, pause: Duration| {
            self.count(Count::PausedMicros, pause.as_micros() as u64);
            backing.pressure.paused(now);
            self.decisions.note_wait(Decision("slow writers", "memory is nearly full"), 0, pause, || {
                self.pressed(&backing)
            });
        };
        let any = backing.pauses.wait(bytes, || self.look_at(&backing), paused).await;
        self.count(Count::Pauses, any.into());
    }

    /// Has the engine look, where watermarks say so.
    pub(crate) fn look_at_level(&self) {
        if let Some(backing) = self.backing.get() {
            self.look_at(&backing);
        }
    }

    /// Looks how full memory is, begins to spill where that is due, and sets when to look again; the thresholds and what is held, where
    /// writers have to pause.
    fn look_at(&self, backing: &Backing) -> Option<(Thresholds, u64)> {
        let level = self.level().1;
        let thresholds =
            Thresholds { background: level.at(self.settings.spill_high_watermark.get()), limit: level.limit };
        // What moving objects would free soon is room; what is left alone while clients write is none.
        let loose = self.pool_bytes().saturating_sub(taken_in_use(self.table.holdings().object_bytes));
        let (held, spills) = (level.used.saturating_sub(loose), self.goal() != Goal::Rest);
        if spills && let Some(spiller) = self.spiller.get() {
            spiller.kick();
        }
        if spills && held > thresholds.freerun() {
            backing.pressure.looked(0, 0);
            return Some((thresholds, held));
        }
        let until = if spills || held >= thresholds.background {
            thresholds.freerun()
        } else {
            thresholds.background
        };
        let growth = (until.saturating_sub(held) / 2).max((level.limit - thresholds.freerun()) / LOOKS_LEAST);
        // What is charged cannot be less than what is held: below this, nothing is to be counted.
        let charged = self.budget.used() + until.saturating_sub(level.used) / 2;
        backing.pressure.looked(if level.used < until { charged } else { 0 }, growth);
        None
    }
}
