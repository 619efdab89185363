//! The block devices that `attach` makes of a device: how they are found, and how they end.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use spillway_export::control::DeviceRow;
use spillway_io::fuse::{LoopDevice, MountPoint, ShownFile, backing_file};
use spillway_io::nbd_device::NbdDevice;

use super::row::shown_file;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::RuntimeFolder;
use crate::server::device::occupants;

/// How long the kernel may take to write back and to let go of a block device, and the pause between two looks.
const QUIET_PATIENCE: Duration = Duration::from_secs(60);
pub(super) const QUIET_PAUSE: Duration = Duration::from_millis(20);

/// A block device that shows what a device of a server holds.
pub(super) enum AttachedDevice {
    /// Over the file that the server shows.
    Loop(LoopDevice),
    /// Of the kernel's NBD client.
    Nbd(NbdDevice),
}

/// The block devices that a device of a server is attached as. [`spillway_core::Kind::Invalid`] where the server shows a file that is not its own.
pub(super) fn attached(folder: &RuntimeFolder, row: &DeviceRow) -> Result<Vec<AttachedDevice>> {
    let mut found = of_nbd(folder, &row.name);
    if let Some(file) = shown_file(row) {
        match ShownFile::at(&file, &row.name, folder.owner()?) {
            Ok(shown) => found.extend(shown.loop_devices()?.into_iter().map(AttachedDevice::Loop)),
            // Its mount is gone: what is attached by NBD can be detached all the same.
            Err(_) if !found.is_empty() && matches!(file.try_exists(), Ok(false)) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(found)
}

/// Those of the kernel's NBD client alone, whether their server is there or not.
pub(super) fn of_nbd(folder: &RuntimeFolder, name: &str) -> Vec<AttachedDevice> {
    NbdDevice::all_of(&folder.backend(name)).into_iter().map(AttachedDevice::Nbd).collect()
}

impl AttachedDevice {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Loop(device) => device.path(),
            Self::Nbd(device) => device.path(),
        }
    }

    /// Where it is mounted, the last mount first.
    pub(super) fn mounts(&self) -> io::Result<Vec<MountPoint>> {
        let number = match self {
            Self::Loop(device) => device.number()?,
            Self::Nbd(device) => device.number()?,
        };
        Ok(MountPoint::all_of(self.path(), number))
    }

    /// Writes back what the kernel keeps of it, and has the server flush.
    pub(super) fn flush(&self) -> io::Result<()> {
        match self {
            Self::Loop(device) => device.flush(),
            Self::Nbd(device) => device.flush(),
        }
    }

    /// Refuses a device that is mounted in another namespace or part of another device; and one that programs have open, if the
    /// kernel would disconnect it under them.
    pub(super) fn expect_unused(&self) -> Result<()> {
        let path = self.path();
        let busy = |words: &str| Failure::new(Exit::Busy, format!("{} is in use: {words}", path.display()));
        // Of a block device that means: by nobody else who has it alone, as file systems and device-mapper have it (open(2)).
        let alone = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        match open(path, alone, Mode::empty()) {
            Err(Errno::BUSY) => {
                let words = "mounted by its partitions or in another namespace, or part of another device; end that first";
                return Err(busy(words).into());
            }
            opened => drop(opened.with_context(|| path.display().to_string())?),
        }
        // A loop device waits for them.
        if let Self::Nbd(_) = self {
            let users = occupants::below(path);
            if !users.is_empty() {
                return Err(busy(&format!("{}; end that first", occupants::in_words(&users))).into());
            }
        }
        Ok(())
    }

    /// Has everything fail that waits for a server.
    pub(super) fn cut_off(&self) -> io::Result<()> {
        match self {
            Self::Loop(_) => Ok(()),
            Self::Nbd(device) => device.disconnect(),
        }
    }

    /// Waits until nothing is in flight.
    pub(super) fn quiesce(&self) -> Result<()> {
        wait_until(self.path(), "has requests in flight", || is_idle(self.path()))
    }

    /// Ends it, and waits until it has.
    pub(super) fn give_up(self) -> Result<()> {
        let path = self.path().to_owned();
        let about = || format!("{} cannot be detached", path.display());
        let otherwise = "is in use by another program";
        match self {
            Self::Loop(device) => {
                let file = backing_file(&path);
                device.give_up().with_context(about)?;
                wait_until(&path, otherwise, || backing_file(&path) != file)
            }
            Self::Nbd(device) => {
                device.disconnect().with_context(about)?;
                wait_until(&path, otherwise, || !device.is_there())
            }
        }
    }
}

/// A block device that is given up again unless it is kept.
pub(super) struct DetachGuard(Option<AttachedDevice>);

impl DetachGuard {
    pub(super) fn new(device: AttachedDevice) -> Self {
        Self(Some(device))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.as_ref().expect("it is kept last").path()
    }

    /// Keeps it.
    pub(super) fn into_device(mut self) -> AttachedDevice {
        self.0.take().expect("it is kept once")
    }

    /// Keeps it; where it is.
    pub(super) fn keep(self) -> PathBuf {
        self.into_device().path().to_owned()
    }
}

impl Drop for DetachGuard {
    fn drop(&mut self) {
        if let Some(device) = self.0.take() {
            // Why it is given up is worth more words than that it cannot be.
            let _ = device.give_up();
        }
    }
}

/// Nothing is in flight.
fn is_idle(device: &Path) -> bool {
    let name = device.file_name().unwrap_or_default();
    let counts = fs::read_to_string(Path::new("/sys/block").join(name).join("inflight"));
    counts.is_ok_and(|counts| counts.split_whitespace().all(|count| count == "0"))
}

fn wait_until(device: &Path, otherwise: &str, holds: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + QUIET_PATIENCE;
    while !holds() {
        if Instant::now() > deadline {
            let users = occupants::in_words(&occupants::below(device));
            let who = if users.is_empty() { users } else { format!(" ({users})") };
            return Err(Failure::new(Exit::Busy, format!("{} {otherwise}{who}", device.display())).into());
        }
        sleep(QUIET_PAUSE);
    }
    Ok(())
}
