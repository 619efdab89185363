//! Background reclaim: folios leave before requests run out of memory, so that a request finds some free and nobody waits.
//!
//! Reclaim begins where a shard is below the low watermark of free memory in each zone, and goes on up to the high ones (`policy::zones`). Only
//! clean folios leave. Where too few can, it asks for write-back as a writer that waits would, and goes on once a batch has ended. It never
//! writes itself.

use std::sync::{Arc, Weak};
use std::time::Duration;

use spillway_core::sync::RwLock;
use spillway_core::{Place, mutant, task};

use super::device::Core;
use super::device::pressure::Pressure;
use super::folios::Folios;
use crate::slice::Slice;

/// What reclaim found in a shard.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Enough is free.
    Enough,
    /// Folios that could leave, and more may.
    More,
    /// Too few that can leave.
    TooFew,
}

impl Core {
    /// Memory of a shard was taken: has more come free where little is left in each zone.
    pub(super) fn look_at_memory(self: &Arc<Self>, shard: &Folios) {
        if shard.is_low() {
            self.reclaim_in_background();
        }
    }

    fn reclaim_in_background(self: &Arc<Self>) {
        if self.reclaim.queue() {
            let core = Arc::downgrade(self);
            self.env.spawn(Place::Background, task(move || run(core)));
        }
    }

    /// A batch, or a read of the device below, has ended: folios may leave that could not before.
    pub(super) fn ended(self: &Arc<Self>) {
        self.changes.wake_all();
        if self.is_short() {
            self.reclaim_in_background();
        }
    }

    /// Whether reclaim finds too few folios that are clean.
    pub(super) fn is_short(&self) -> bool {
        self.pressure.iter().any(Pressure::is_short)
    }

    /// Has folios of each shard leave; whether more are to.
    async fn reclaim_turn(self: &Arc<Self>) -> bool {
        let (mut found, mut more, mut slice) = (Vec::new(), false, Slice::new());
        for shard in &self.shards {
            slice.renew_if_over(&*self.env).await;
            found.push(self.reclaim_from(shard, &mut slice));
        }
        for (found, pressure) in found.into_iter().zip(&self.pressure) {
            let short = found == Found::TooFew;
            let known =
                pressure.set_short(short) || mutant::on("page_cache: look only once for clean folios");
            // What ended after the look and before that was said has not been told of (`ended`): it is looked for once more.
            more |= found == Found::More || short && !known;
        }
        if self.is_short() {
            self.writeback.kick();
        }
        more
    }

    /// Has folios leave, some of each zone below its high watermark, the one that is asked first last.
    fn reclaim_from(self: &Arc<Self>, shard: &RwLock<Folios>, slice: &mut Slice) -> Found {
        let (zones, mut any) = (0..self.zones.len(), false);
        for zone in zones.clone().rev() {
            any |= self.reclaim_zone(shard, zone, slice);
        }
        if any {
            return Found::More;
        }
        // A zone without clean folios is left alone while another has free memory.
        let shard = shard.read();
        let short = zones.into_iter().all(|zone| shard.is_wanting(zone) || shard.has_none(zone));
        if short { Found::TooFew } else { Found::Enough }
    }

    /// Has folios of a zone leave, one at least and before others have their turn; whether any could.
    fn reclaim_zone(self: &Arc<Self>, shard: &RwLock<Folios>, zone: usize, slice: &mut Slice) -> bool {
        let (pass, mut gone) = (shard.read().watermarks(zone).pass, 0);
        while gone < pass && !(gone > 0 && slice.is_over()) {
            let mut shard = shard.write();
            if !shard.is_wanting(zone) || !self.evict(&mut shard, zone, slice) {
                break;
            }
            gone += 1;
        }
        if gone > 0 {
            self.changes.wake_all();
        }
        gone > 0
    }
}

async fn run(core: Weak<Core>) {
    loop {
        let Some(env) = core.upgrade().map(|core| core.env.clone()) else { return };
        env.sleep(Duration::ZERO).await;
        let Some(core) = core.upgrade() else { return };
        // One that takes a frame queues another run afterwards: it is seen here, or there.
        if !core.reclaim_turn().await && !core.reclaim.again() {
            return;
        }
    }
}
