//! A device that several hosts have one after the other: each keeps something of its own, and all share what is below.
//!
//! Each host has a model, and what they share has one. These are the steps from one to the other.

use std::collections::BTreeSet;

use spillway_core::SECTOR;

use super::sector::Version;
use super::{Loss, Model, Violation};
use crate::payload::{self, SectorValue};

impl Model {
    /// All that was written has arrived where no crash takes it from.
    pub fn settle_durable(&mut self) {
        for sector in self.touched.values_mut() {
            sector.crash.clone_from(&sector.now);
        }
    }

    /// Another host comes now, and finds `bytes`. The [`Violation`] names the first sector that may not hold them.
    pub fn change_hands(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        assert_eq!(bytes.len() as u64, self.sectors() * SECTOR, "they are all that there is");
        self.crash(Loss::All);
        let number = self.begin_read(0, self.sectors());
        self.end_read(number, Some(bytes))
    }

    /// What may be found in `sectors` is also what `upper` may show there, which keeps something that has not arrived here.
    pub fn admit(&mut self, upper: &Self, sectors: &BTreeSet<u64>) {
        for &sector in sectors {
            self.add_old(sector, &upper.values_of(sector));
        }
    }

    /// A host comes back with what it keeps in `sectors`, over `below`, which held `before` when the host last had it. What the host had not
    /// brought there counts, of the rest what is there now.
    pub fn lie_over(&mut self, below: &Self, before: &[u8], sectors: &BTreeSet<u64>) {
        let (own, time) = (self.clone(), self.time);
        *self = below.clone();
        self.time = self.time.max(time);
        for &sector in sectors {
            let had = &before[(sector * SECTOR) as usize..][..SECTOR as usize];
            let kept = own.values_of(sector);
            if !kept.iter().any(|&value| payload::holds(value, sector, had)) {
                let touched = self.touch(sector);
                (touched.now, touched.crash) = (Vec::new(), Vec::new());
            }
            self.add_old(sector, &kept);
        }
        self.values.extend(own.values);
    }

    fn values_of(&self, sector: u64) -> Vec<SectorValue> {
        self.allowed(sector).values
    }

    /// Any of `values` may be in `sector`, since before anything that is to come.
    fn add_old(&mut self, sector: u64, values: &[SectorValue]) {
        let time = self.tick();
        for &value in values {
            self.touch(sector).add(&Version::old(value, time));
        }
    }
}
