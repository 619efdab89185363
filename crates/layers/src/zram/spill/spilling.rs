//! A device and its spill file: how it is opened, changed and closed, and whose its records are.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::Ordering;
use spillway_core::{BlockDevice, Error, Geometry, Kind, LocalFuture, Suspend, mutant};

use crate::about;
use crate::file::File;
use crate::open_context::BackingDevice;
use crate::spill::format::Record;
use crate::spill::{Keep, Location, Owner, Spilled, Store};
use crate::zram::config::Config;
use crate::zram::device::attaching::{Attaching, ClaimedFile};
use crate::zram::device::backing::Backing;
use crate::zram::device::{Core, Zram};
use crate::zram::page::PAGE;
use crate::zram::pool::cell::SlotIndex;
use crate::zram::slots::mark::{Away, Slot};

/// The attribute that names a spill file while the server runs.
const NAME: &str = "backing_dev";

impl Owner for Core {
    fn names(&self, slot: u32, at: Location) -> bool {
        self.table.away(SlotIndex(slot)).is_some_and(|away| lies_at(away, at))
    }

    fn moved(&self, from: Location, to: Spilled) -> bool {
        let Spilled { at, record: Record { slot, crc, .. } } = to;
        let moved = || self.exchange_away(slot, from, |away| Slot::Spilled(Away { at, crc, ..away }));
        // It may have been brought back, and left again.
        moved() || self.needs(slot, from) && moved()
    }

    fn lost(&self, slot: u32, at: Location) -> bool {
        let lost = || self.exchange_away(slot, at, |_| Slot::Lost);
        lost() || self.needs(slot, at) && lost()
    }

    fn needs(&self, slot: u32, at: Location) -> bool {
        self.needs_record(SlotIndex(slot), at)
    }
}

/// Whether a page lies there, and nowhere else since.
pub(crate) fn lies_at(away: Away, at: Location) -> bool {
    away.at == at || mutant::on("zram: move an old record over a newer one")
}

impl Core {
    /// Has a slot that names the record at `at` hold something else; true if it did. The caller sees to it that the record stays.
    fn exchange_away(&self, slot: u32, at: Location, new: impl FnOnce(Away) -> Slot) -> bool {
        let index = SlotIndex(slot);
        let named = self.table.away(index).filter(|away| lies_at(*away, at));
        named.is_some_and(|away| self.table.exchange(index, Slot::Spilled(away), new(away), |mark| mark))
    }

    /// The spill file; [`Kind::NoDevice`] where there is none.
    pub(crate) fn backing(&self) -> Result<Arc<Backing>, Error> {
        let text = "the device has no spill file: start it with --spill, or set backing_dev before disksize";
        self.backing.get().ok_or_else(|| Error::new(Kind::NoDevice, text))
    }
}

impl Core {
    /// The path of the spill file, in use or not yet.
    pub(crate) fn backing_path(&self) -> Option<PathBuf> {
        let waiting = self.attaching.get().and_then(Attaching::waiting).map(|waiting| waiting.path);
        waiting.or_else(|| self.backing.get().map(|backing| backing.path.clone()))
    }

    /// Has the file at `path` be the spill file from the next size on, instead of any other. [`Kind::Busy`] where the device has a size;
    /// errors of opening, after which everything is as before.
    pub(crate) async fn attach(&self, path: String) -> Result<(), Error> {
        let attaching = self.attaching.get().ok_or_else(|| {
            Error::new(
                Kind::NotSupported,
                "this device was not given a way to open files: it has no spill file",
            )
        })?;
        let _turn = attaching.turn.hold().await;
        if !mutant::on("zram: attach a spill file to a device that has a size") {
            drop(self.lock_blank(NAME)?);
        }
        let path = PathBuf::from(path);
        if self.backing_path().is_some_and(|present| present == path) {
            return Ok(());
        }
        let claimed = attaching.claim(path, &self.settings).await.map_err(|error| about(NAME, &error))?;
        self.let_go().await;
        attaching.wait(Some(claimed));
        Ok(())
    }

    /// Gives the device its size once no file is being attached, with the one that waits. Where that cannot be opened it goes on waiting.
    pub(crate) async fn resize_with_file(&self, disksize: u64) -> Result<(), Error> {
        let attaching = self.attaching.get().expect("files are attached to it");
        let _turn = attaching.turn.hold().await;
        if let Some(waiting) = attaching.waiting() {
            self.open_waiting(attaching, waiting, disksize).await?;
        }
        self.resize(disksize)
    }

    async fn open_waiting(
        &self,
        attaching: &Attaching,
        waiting: ClaimedFile,
        disksize: u64,
    ) -> Result<(), Error> {
        let (file, size) = waiting.fitted(disksize);
        let opened = self.open_store(attaching, (file, size), waiting.path, None).await;
        let given_up = opened.map_err(|error| about(NAME, &error))?;
        given_up.iter().for_each(|note| tracing::info!("{}: {note}", attaching.context().name));
        attaching.wait(None);
        if attaching.has_ended() {
            self.let_go().await;
            return Err(Error::new(Kind::ShuttingDown, "the device ends"));
        }
        Ok(())
    }

    /// Lets go of a spill file that the device was not opened with, in a reset.
    pub(crate) async fn detach(&self) {
        let Some(attaching) = self.attaching.get() else { return };
        let _turn = attaching.turn.hold().await;
        attaching.wait(None);
        if self.backing.get().is_some_and(|backing| !backing.stays) {
            self.let_go().await;
        }
    }

    /// Lets go of the spill file that is in use. No slot names a record of it, and none will.
    async fn let_go(&self) {
        let Some(backing) = self.backing.get() else { return };
        if !mutant::on("zram: let go of a spill file that says it is in use")
            && let Err(error) = backing.end(self, None).await
        {
            tracing::warn!("{}: {error}", backing.path.display());
        }
        // What was written since the last look is owed in the next file too.
        drop(self.daily(&backing));
        self.backing.put(None);
        self.pressure.end();
    }

    /// Has `file` be the spill file, which may become so long. It is empty then, or has what it kept. Returns what became of that, for people.
    async fn open_store(
        &self,
        attaching: &Attaching,
        (file, size): (Arc<File>, u64),
        path: PathBuf,
        force: Option<bool>,
    ) -> Result<Option<String>, Error> {
        // Only a file of the configuration can be forced.
        let stays = force.is_some();
        let (context, mut settings) = (attaching.context(), attaching.settings(&self.settings, force));
        if stays && self.settings.keeps() != Keep::Never {
            settings = self.keeping(settings);
        }
        let env = context.env.clone();
        self.table.copies.begin(self.size() / PAGE as u64).map_err(no_room)?;
        let mut kept = |spilled| self.take_kept(spilled);
        let opened = Store::open_growing(file, size, &settings, env, &context.budget, &mut kept).await;
        let (store, given_up) = opened?;
        self.pressure.begin();
        let (env, of_all) = (context.env.clone(), (&self.meter, &self.pressure));
        self.backing.put(Some(Arc::new(Backing::new(store, path, stays, env, of_all))));
        Ok(given_up)
    }
}

impl Zram {
    /// Opens the spill file of the configuration, before anybody uses the device; returns what is worth knowing about it.
    pub(crate) async fn open_spill(
        &self,
        config: &Config,
        backing: &BackingDevice,
    ) -> Result<Vec<String>, Error> {
        let attaching = self.core.attaching.get().expect("the device is opened");
        let opened = File::open(backing, attaching.context()).await;
        let (file, mut notes) = opened.map_err(|error| about("spill", &error))?;
        let size = size(&file, config).map_err(|error| about("spill", &error))?;
        let (path, force) = (backing.path.clone(), Some(config.force));
        let opened = self.core.open_store(attaching, (file, size), path, force).await;
        notes.extend(opened.map_err(|error| about("spill", &error))?);
        notes.extend(self.core.short_of_keeping(config.disksize, size));
        Ok(notes)
    }
}

fn no_room(kind: Kind) -> Error {
    Error::new(
        kind,
        "a spill file takes a bit for each MiB of the device, and --memory has less left: give more",
    )
}

/// How long a spill file may become: as the configuration says, or as it is by now, if that is longer or cannot change.
fn size(file: &File, config: &Config) -> Result<u64, Error> {
    let Geometry { size, block_size, .. } = file.geometry();
    let whole = |bytes: u64| bytes / block_size.bytes() * block_size.bytes();
    let asked = config.spill_size;
    if asked > 0 && whole(asked) < size {
        return Err(Error::invalid(format!(
            "it has {}, and spill_size is {}: a spill file does not shrink; leave spill_size out, or remove the file",
            human(size),
            human(asked)
        )));
    }
    let wanted = whole(config.spill_bytes()?);
    if wanted <= size {
        return Ok(size);
    }
    if file.becomes_longer() {
        return Ok(wanted);
    }
    if asked > 0 {
        let words = format!("it has {}, and cannot become longer: leave spill_size out", human(size));
        return Err(Error::invalid(words));
    }
    Ok(size)
}

impl Suspend for Zram {
    fn wind_down(&self) {
        self.core.ending.store(true, Ordering::Relaxed);
    }

    /// Closes the spill file, so that it says which pages it holds; all of them where it is to keep them.
    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            core.attaching.get().inspect(|attaching| attaching.end());
            match core.backing.get() {
                Some(backing) if core.keeps(&backing) => core.keep(&backing).await,
                Some(backing) => backing.end(&*core, None).await,
                None => Ok(()),
            }
        })
    }
}
