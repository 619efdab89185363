//! Recompression by itself: pages that were not accessed for `recompress_age`, a bounded number at each look of the background task.

use std::sync::Arc;
use std::time::Duration;

use spillway_core::sync::Ordering;

use super::recompress::{RecompressOrder, RecompressRun};
use super::slices::Caller;
use crate::zram::device::Core;
use crate::zram::work::Slice;

/// Slices of work in a look: at most a fifth of the time between two.
const SLICES_A_LOOK: u32 = 100;

/// Laps over all slots in the time that a page has to be old.
const LAPS_AN_AGE: u64 = 4;

impl Core {
    /// Recompresses some of the pages that are old enough, with the strongest secondary. Ends early where a waiter wants what the
    /// background task does else.
    pub(crate) async fn recompress_aged(self: &Arc<Self>) {
        let (state, age) = (&self.recompressor, self.settings.recompress_age.get());
        let now = self.env.coarse_now().as_millis() as u64;
        let rest = Duration::from_secs(age / LAPS_AN_AGE).max(Duration::from_secs(1)).as_millis() as u64;
        if age == 0 || self.size() == 0 || now < state.lap_ended.load(Ordering::Relaxed) + rest {
            return;
        }
        // A command is at it: this task may not wait, for a pass that the command waits for is its work.
        let Some(_turn) = state.turn.try_hold() else { return };
        let Some(order) = RecompressOrder::aged(self, age as u32) else { return };
        let mut run = RecompressRun::new(self, order);
        let mut slice = Slice::new();
        let mut slices = 0;
        while slices < SLICES_A_LOOK && !self.compactor.is_asked() {
            let Some(range) = self.next_slots(state.hand.load(Ordering::Relaxed)) else {
                state.hand.store(0, Ordering::Relaxed);
                return state.lap_ended.store(now, Ordering::Relaxed);
            };
            match run.take_some(range, &mut slice) {
                Ok(next) => state.hand.store(next, Ordering::Relaxed),
                // No room for what would be smaller, as a rule: there may be some at the next look, for the next page.
                Err((at, _)) => return state.hand.store(at + 1, Ordering::Relaxed),
            }
            if slice.is_over() {
                self.next_slice(Caller::Device).await;
                slice = Slice::new();
                slices += 1;
            }
        }
    }
}
