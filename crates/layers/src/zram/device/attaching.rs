//! How a device opens spill files, and the one that waits for it to have a size.
//!
//! A file that `backing_dev` names is opened, locked and looked at, and waits. Nothing is written to it before the device has a size: so one
//! that was there is as it was if it is taken back. One that is made then gets the length that goes with that size.

use std::path::PathBuf;
use std::sync::Arc;

use spillway_core::sync::{AtomicBool, Mutex, Ordering, Permit, Semaphore};
use spillway_core::{BlockDevice, Error, Geometry, Kind};

use crate::file::File;
use crate::open_context::OpenContext;
use crate::spill::{self, Store};
use crate::zram::codec;
use crate::zram::config::{MADE_BYTES, Settings, default_spill_size, spill_device};
use crate::zram::page::{DISKSIZE_MAX, PAGE};
use crate::zram::slots::picked::KEPT_BYTES;

/// What a file that `backing_dev` names is refused with, which has no word for force.
const REMEDY: &str = "backing_dev takes nothing by force: name another path, remove the file, or clear the block device with 'blkdiscard \
                      --zeroout'; --spill with --force takes it when a server starts";

/// What a device opens spill files with.
pub(crate) struct Attaching {
    context: OpenContext,
    /// Held by who attaches a file, or lets go of one, and by who gives the device its size: that is for the file which is there then.
    pub(crate) turn: Semaphore,
    waiting: Mutex<Option<ClaimedFile>>,
    /// The device ends: what is opened from now on is let go at once.
    ended: AtomicBool,
}

/// A file that is open and locked, and may be taken for a spill file.
#[derive(Clone)]
pub(crate) struct ClaimedFile {
    pub(crate) path: PathBuf,
    file: Arc<File>,
    made: bool,
}

impl Attaching {
    pub(crate) fn new(context: &OpenContext) -> Self {
        Self {
            context: context.clone(),
            turn: Semaphore::new(1),
            waiting: Mutex::default(),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) fn context(&self) -> &OpenContext {
        &self.context
    }

    /// What a spill file is opened with, by force or not; `None` where that is not for its user to say.
    pub(crate) fn settings(&self, own: &Settings, force: Option<bool>) -> spill::Settings {
        let usual = spill::Settings::new(self.context.name.as_str(), DISKSIZE_MAX / PAGE as u64);
        spill::Settings {
            segment_shift: own.segment_shift.unwrap_or(usual.segment_shift),
            codecs: codec::NAMES.map(str::to_owned).to_vec(),
            force: force.unwrap_or(false),
            retake: force.is_some() && own.spill_retake,
            remedy: force.is_none().then_some(REMEDY),
            batches: own.writeback_depth,
            kept: KEPT_BYTES,
            works: self.context.works.clone(),
            ..usual
        }
    }

    /// From now on no file is taken into use. One that was before is there for the caller to end.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    pub(crate) fn waiting(&self) -> Option<ClaimedFile> {
        self.waiting.lock().clone()
    }

    /// Has another file wait, or none.
    pub(crate) fn wait(&self, waiting: Option<ClaimedFile>) {
        *self.waiting.lock() = waiting;
    }

    /// The turn, where nobody has it and no file waits.
    pub(crate) fn try_turn(&self) -> Option<Permit<'_>> {
        self.turn.try_hold().filter(|_| self.waiting().is_none())
    }

    /// Opens the file at `path`, or makes one, and looks whether it may be taken. Errors are those of opening and [`Store::examine`].
    pub(crate) async fn claim(&self, path: PathBuf, own: &Settings) -> Result<ClaimedFile, Error> {
        if !path.is_absolute() {
            let text = "it is looked for by the server, which knows no folder of yours: give the whole path";
            return Err(Error::new(Kind::NotFound, format!("{}: {text}", path.display())));
        }
        let open = async |create| File::open(&spill_device(path.clone(), create), &self.context).await;
        let ((file, notes), made) = match open(None).await {
            Err(error) if error.kind == Kind::NotFound => (open(Some(MADE_BYTES)).await?, true),
            found => (found?, false),
        };
        let settings = self.settings(own, None);
        Store::examine(file.clone(), &settings, &self.context.budget).await?;
        if !made {
            Store::fits(file.clone(), &settings)?;
        }
        notes.iter().for_each(|note| tracing::info!("{}: {note}", self.context.name));
        Ok(ClaimedFile { path, file, made })
    }
}

impl ClaimedFile {
    /// The file, and how long it may become for a device of `disksize` bytes.
    pub(crate) fn fitted(&self, disksize: u64) -> (Arc<File>, u64) {
        let Geometry { size, block_size, .. } = self.file.geometry();
        let wanted = default_spill_size(disksize) / block_size.bytes() * block_size.bytes();
        (self.file.clone(), if self.made { wanted.max(size) } else { size })
    }
}
