//! Background reclaim: folios leave before requests run out of memory, so that a request finds a free frame and nobody waits.
//!
//! Reclaim begins where each zone is below its low watermark of free frames, and goes on up to the high one of each. Only clean folios leave. Where too few can, it asks
//! for write-back as a writer that waits would, and goes on once a batch has ended. It never writes itself, but for comparison (`paging_out`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::Ordering;
use spillway_core::{LocalFuture, Place};

use super::cache::Core;

/// The high watermark is this part of all frames, and one at least; the low one half of it.
const SPARE_PART: u64 = 32;

/// Folios that leave before others have their turn.
const TURN: u64 = 32;

impl Core {
    fn high(&self, zone: usize) -> u64 {
        (self.zones.frames_of(zone) / SPARE_PART).max(1)
    }

    /// A frame was taken: has others come free where few are left in each zone.
    pub(super) fn look_at_frames(self: &Arc<Self>) {
        if (0..self.zones.len()).all(|zone| self.zones.free_of(zone) < self.high(zone).div_ceil(2)) {
            self.reclaim_in_background();
        }
    }

    fn reclaim_in_background(self: &Arc<Self>) {
        if self.reclaim.queue() {
            let core = Arc::downgrade(self);
            let task = move || Box::pin(run(core)) as LocalFuture<()>;
            self.env.spawn(Place::Background, Box::new(task));
        }
    }

    /// A batch, or a read of the device below, has ended: folios may leave that could not before.
    pub(super) fn ended(self: &Arc<Self>) {
        self.wake();
        if self.is_short() {
            self.reclaim_in_background();
        }
    }

    /// Whether reclaim finds too few folios that are clean.
    pub(super) fn is_short(&self) -> bool {
        self.short.load(Ordering::SeqCst)
    }

    /// Has folios leave, of each zone below its high watermark; whether more are to.
    fn reclaim_turn(self: &Arc<Self>) -> bool {
        for _ in 0..TURN {
            let low = |zone: &usize| self.zones.free_of(*zone) < self.high(*zone);
            let Some(frame) = (0..self.zones.len()).filter(low).find_map(|zone| self.evict(zone)) else {
                // A zone without clean folios is left alone while another has free frames.
                let short = (0..self.zones.len()).all(|zone| low(&zone));
                self.short.store(short, Ordering::SeqCst);
                if short {
                    self.writeback.kick();
                }
                return false;
            };
            self.give_frame(frame);
        }
        true
    }
}

async fn run(core: Weak<Core>) {
    loop {
        let Some(env) = core.upgrade().map(|core| core.env.clone()) else { return };
        env.sleep(Duration::ZERO).await;
        let Some(core) = core.upgrade() else { return };
        // One that takes a frame queues another run afterwards: it is seen here, or there.
        if !core.reclaim_turn() && !core.reclaim.again() {
            return;
        }
    }
}
