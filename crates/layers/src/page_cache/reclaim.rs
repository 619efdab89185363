//! Background reclaim: folios leave before requests run out of memory, so that a request finds a free frame and nobody waits.
//!
//! Reclaim begins where each zone is below its low watermark of free frames, and goes on up to the high one of each (`policy::zones`). Only clean folios leave. Where too few can, it asks
//! for write-back as a writer that waits would, and goes on once a batch has ended. It never writes itself, but for comparison (`paging_out`).

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::Ordering;
use spillway_core::{LocalFuture, Place};

use super::cache::Core;

impl Core {
    /// A frame was taken: has others come free where few are left in each zone.
    pub(super) fn look_at_frames(self: &Arc<Self>) {
        let is_low = |zone| self.zones.free_of(zone) < self.zones.watermarks(zone).low;
        if (0..self.zones.len()).all(is_low) {
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

    /// Has folios leave, some of each zone below its high watermark, the one that is asked first last; whether more are to.
    fn reclaim_turn(self: &Arc<Self>) -> bool {
        let wants = |zone: usize| self.zones.free_of(zone) < self.zones.watermarks(zone).high;
        let mut any = false;
        for zone in (0..self.zones.len()).rev() {
            for _ in 0..self.zones.watermarks(zone).pass {
                let Some(frame) = wants(zone).then(|| self.evict(zone)).flatten() else { break };
                self.give_frame(frame);
                any = true;
            }
        }
        if !any {
            // A zone without clean folios is left alone while another has free frames.
            let short = (0..self.zones.len()).all(wants);
            self.short.store(short, Ordering::SeqCst);
            if short {
                self.writeback.kick();
            }
        }
        any
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
