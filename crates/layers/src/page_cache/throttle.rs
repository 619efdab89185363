//! Writers pause while blocks are dirtied faster than the device below takes them. They run free up to half way from the background limit
//! to the limit of what may be unsaved; from there on all of them together get the measured bandwidth below times the position ratio
//! (`policy::throttle`), so that what is unsaved settles before the limit, and nobody stops there.
//!
//! A write is stored first and pauses before it is answered: it holds nothing that others wait for. What counts are blocks, not folios, and
//! only those that have become dirty: who writes over what is dirty adds nothing.

use std::time::Duration;

use spillway_core::size::human;
use spillway_policy::throttle::Thresholds;

use super::device::Core;
use super::device::counts::{Count, InZone};
use crate::decisions::Decision;

impl Core {
    /// Blocks above which write-back begins.
    pub(super) fn background(&self) -> u64 {
        self.blocks_at(self.settings.dirty_background_ratio.get())
    }

    /// In blocks.
    fn thresholds(&self) -> Thresholds {
        Thresholds { background: self.background(), limit: self.unsaved.limit() }
    }

    /// Whether a writer that has dirtied so many blocks has to [`Core::throttle`].
    pub(super) fn is_throttled(&self, dirtied: u64) -> bool {
        #[cfg(feature = "of-2011")]
        if self.of_2011().throttling {
            return false;
        }
        dirtied > 0 && self.unsaved.used() > self.thresholds().freerun()
    }

    /// Pauses for so many blocks, the last of them in `zone`, where they cannot leave as fast as they come. Where write-back has failed nothing may leave any more, and
    /// pauses would be for nothing.
    pub(super) async fn throttle(&self, dirtied: u64, zone: u8) {
        let block = self.places.block_bytes();
        let look = || {
            let Thresholds { background, limit } = self.thresholds();
            let bytes = Thresholds { background: background * block, limit: limit * block };
            self.failure.check().ok().map(|()| (bytes, self.unsaved.used() * block))
        };
        let paused = |_, pause: Duration| {
            self.counts.add_in(zone, InZone::PausedMicros, pause.as_micros() as u64);
            self.decisions.note_wait(Decision("slow writers", "dirty_ratio"), 0, pause, || self.pressed());
        };
        let any = self.pauses.wait(dirtied * block, look, paused).await;
        self.counts.add(Count::Throttled, any.into());
    }

    /// The figures for which writers pause.
    fn pressed(&self) -> String {
        let block = self.places.block_bytes();
        let [held, limit] = [self.unsaved.used(), self.unsaved.limit()].map(|blocks| human(blocks * block));
        let speed = human(self.meter.bytes_per_second());
        format!(
            "{held} are not written back, of {limit} that may be; the device below takes {speed} a second"
        )
    }
}
