//! What a stop of the machine does to what a device may show.

use spillway_core::SECTOR;

use super::{Loss, Model};
use crate::model::sector::Sector;

impl Model {
    /// Bytes that were acknowledged when the machine stopped for the last time, and were gone when they were read since.
    pub fn lost_bytes(&self) -> u64 {
        self.lost * SECTOR
    }

    /// The machine has stopped, and with it all that was in flight.
    pub fn crash(&mut self, loss: Loss) {
        let known = |(&number, sector): (&u64, &Sector)| Some((number, sector.acknowledged()?));
        (self.acknowledged, self.lost) = (self.touched.iter().filter_map(known).collect(), 0);
        let time = self.tick();
        self.writes.clear();
        self.reads.clear();
        self.flushes.clear();
        self.flush_failed = None;
        self.haunted.clear();
        let before = std::mem::replace(&mut self.stopped, time);
        self.touched.values_mut().for_each(|sector| sector.restart(loss, time, before));
    }
}
