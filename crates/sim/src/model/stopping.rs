//! What a stop of the machine does to what a device may show, and to its size.

use spillway_core::SECTOR;

use super::{Loss, Model, Violation};
use crate::model::sector::{Sector, Version};
use crate::payload::{SectorValue, ZERO};

impl Model {
    /// Sectors of the device.
    pub fn sectors(&self) -> u64 {
        self.size.now
    }

    /// The device is asked to have so many sectors: from now on it may have them.
    pub fn ask_for(&mut self, sectors: u64) {
        self.size.asked = self.size.asked.max(sectors);
    }

    /// A client sees how large the device is: what is new holds zeroes. The [`Violation`] is a size that it cannot have.
    pub fn see_size(&mut self, sectors: u64) -> Result<(), Violation> {
        self.size.see(sectors)
    }

    /// The machine was started again, and the device has so many sectors. The [`Violation`] is a size that it cannot have, or something that
    /// is missed.
    pub fn find_size(&mut self, sectors: u64) -> Result<(), Violation> {
        self.size.find(sectors)?;
        self.acknowledged.split_off(&sectors);
        let gone = self.touched.split_off(&sectors);
        let missed = gone.iter().find(|(_, sector)| sector.now.iter().all(|version| version.value != ZERO));
        match missed {
            Some((sector, _)) => {
                Err(Violation(format!("sector {sector} was written, and the device has {sectors} again")))
            }
            None => Ok(()),
        }
    }

    /// Bytes that were acknowledged when the machine stopped for the last time, and were gone when they were read since.
    pub fn lost_bytes(&self) -> u64 {
        self.lost * SECTOR
    }

    /// Sectors that were found in a state that only a flush that a disk ignored explains.
    pub fn excused(&self) -> u64 {
        self.excused
    }

    /// Counts a sector that holds `found` where nothing but an ignored flush allows it.
    pub(super) fn excuse(&mut self, sector: u64, found: Option<SectorValue>) {
        let Some((value, sector)) = found.zip(self.touched.get(&sector)) else { return };
        let mut these = sector.now.iter().filter(|version| version.value == value).peekable();
        self.excused += u64::from(these.peek().is_some() && these.all(|version| version.excused));
    }

    /// Just after the machine has stopped: a disk had ignored a flush. Each sector holds something that was written to it, however
    /// long ago, and no block has to be whole.
    pub fn allow_ignored_flush(&mut self) {
        let time = self.tick();
        // What was copied below before anybody wrote it may be gone, too.
        for sector in 0..self.filled.0 {
            self.touch(sector);
        }
        for sector in self.touched.values_mut() {
            let known: Vec<SectorValue> = sector.crash.iter().map(|version| version.value).collect();
            let others = self.values.iter().filter(|value| !known.contains(value));
            let old = |&value: &SectorValue| Version { excused: true, ..Version::old(value, time) };
            let others: Vec<Version> = others.map(old).collect();
            for version in &others {
                sector.now.push(version.clone());
                sector.crash.push(version.clone());
            }
            // What was stored wrong may be back as well.
            let spoiled = sector.spoiled;
            sector.both().for_each(|version| {
                version.done = false;
                version.wrong |= spoiled;
            });
        }
    }

    /// The same, of which a flush that has failed may succeed later: what is below was out of reach.
    pub fn with_passing_failures(mut self) -> Self {
        self.sticky_flush = false;
        self
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
