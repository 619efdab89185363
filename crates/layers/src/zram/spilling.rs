//! A device and its spill file: how it is opened and closed, and whose its records are.

use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{BlockDevice, Budget, Error, Geometry, Kind, LocalFuture, Suspend, mutant};

use super::backing::Backing;
use super::cell::SlotIndex;
use super::codec;
use super::config::Config;
use super::device::{Core, Zram};
use super::mark::{Away, Slot};
use super::page::{DISKSIZE_MAX, PAGE};
use crate::about;
use crate::file::File;
use crate::spill::{Location, Owner, Placed, Settings, Store};
use crate::surroundings::{BackingDevice, Surroundings};
use crate::writeback::Writeback;

impl Owner for Core {
    fn names(&self, slot: u32, at: Location) -> bool {
        self.table.away(SlotIndex(slot)).is_some_and(|away| lies_at(away, at))
    }

    fn moved(&self, slot: u32, from: Location, to: Placed) -> bool {
        self.exchange_away(slot, from, |away| Slot::Spilled(Away { placed: to, ..away }))
    }

    fn lost(&self, slot: u32, at: Location) -> bool {
        self.exchange_away(slot, at, |_| Slot::Lost)
    }
}

/// Whether a page lies there, and nowhere else since.
fn lies_at(away: Away, at: Location) -> bool {
    away.placed.at == at || mutant::on("zram: move an old record over a newer one")
}

impl Core {
    /// Has a slot that names the record at `at` hold something else; true if it did. The caller sees to it that the record stays.
    fn exchange_away(&self, slot: u32, at: Location, new: impl FnOnce(Away) -> Slot) -> bool {
        let index = SlotIndex(slot);
        let named = self.table.away(index).filter(|away| lies_at(*away, at));
        named.is_some_and(|away| self.table.exchange(index, Slot::Spilled(away), new(away)))
    }

    /// The spill file; [`Kind::NoDevice`] where there is none.
    pub(super) fn backing(&self) -> Result<&Arc<Backing>, Error> {
        self.backing
            .get()
            .ok_or_else(|| Error::new(Kind::NoDevice, "the device has no spill file: start it with --spill"))
    }
}

impl Zram {
    /// Opens the spill file, before anybody uses the device; returns what is worth knowing about it.
    pub(super) async fn open_spill(
        &self,
        config: &Config,
        backing: &BackingDevice,
        around: &Surroundings,
    ) -> Result<Vec<String>, Error> {
        let (file, mut notes) = File::open(backing, around).map_err(|error| about("spill", &error))?;
        let depth = config.writeback_depth;
        let usual = Settings::new(around.name.as_str(), DISKSIZE_MAX / PAGE as u64);
        let settings = Settings {
            segment_shift: config.segment_shift.unwrap_or(usual.segment_shift),
            codecs: codec::NAMES.map(str::to_owned).to_vec(),
            force: config.force,
            batches: depth,
            ..usual
        };
        fit(&file, config.spill_size, &settings, &around.budget)
            .await
            .map_err(|error| about("spill", &error))?;
        let opened = Store::open(file, &settings, around.env.clone(), &around.budget).await;
        let (store, given_up) = opened.map_err(|error| about("spill", &error))?;
        notes.extend(given_up);
        let backing = Backing::new(store, backing.path.clone(), depth, around.env.clone());
        let (core, meter) = (Arc::downgrade(&self.core), backing.meter.clone());
        let spiller = Writeback::new(core, around.env.clone(), meter);
        let set = self.core.backing.set(Arc::new(backing)).is_ok() && self.core.spiller.set(spiller).is_ok();
        assert!(set, "a device is opened once");
        Ok(notes)
    }
}

/// Gives a spill file the size that was `asked` for, if any was, once it is sure that it may be taken.
async fn fit(file: &Arc<File>, asked: u64, settings: &Settings, budget: &Arc<Budget>) -> Result<(), Error> {
    let Geometry { size, block_size, .. } = file.geometry();
    let whole = asked / block_size.bytes() * block_size.bytes();
    if asked > 0 && whole < size {
        return Err(Error::invalid(format!(
            "it has {}, and spill_size is {}: a spill file does not shrink; leave spill_size out, or remove the file",
            human(size),
            human(asked)
        )));
    }
    if whole > size {
        Store::examine(file.clone(), settings, budget).await?;
        file.lengthen(whole).await?;
    }
    Ok(())
}

impl Suspend for Zram {
    /// Closes the spill file, so that it says which pages it holds.
    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            let Some(backing) = core.backing.get() else { return Ok(()) };
            backing.ending.store(true, Ordering::Relaxed);
            let _turn = backing.turn.hold().await;
            backing.rest().await;
            backing.store.stop(&*core).await
        })
    }
}
