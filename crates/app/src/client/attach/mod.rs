//! `spillway attach`: the steps that need root, in order, and undone in order.
//!
//! A device becomes a block device, which may get a file system and be mounted: by the kernel's NBD client where the kernel has that, or by a
//! loop device over the file that its server shows. The server is asked to give the device to the block device alone; it does so until the
//! connection or the file is closed, so that nothing is left of that after a crash.

mod block_device;
mod detach;
mod file_system;
mod link;
mod reconnect;
mod row;
mod swap;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use spillway_export::control::DeviceRow;
use spillway_io::fuse::ShownFile;
use spillway_io::nbd_device::NbdDevice;

use super::connection::print;
use super::listing::{expect_row, row_of};
use super::program::run;
use super::progress::beside;
use crate::cli::{AttachOptions, Via};
use crate::exit::{Exit, Failure};
use crate::runtime_folder::RuntimeFolder;
use block_device::{AttachedDevice, DetachGuard, attached};
use file_system::make_file_system;
use link::KernelLink;
use row::{expect_root, file_of, hold, shown_file};

pub(crate) use detach::detach;

/// How long requests wait for a server that has ended, unless another time is given.
const TIMEOUT: Duration = Duration::from_secs(300);

/// How a block device is made.
enum Way {
    Nbd { uri: String },
    Loop(ShownFile),
}

/// `spillway attach`.
pub(crate) fn attach(folder: &RuntimeFolder, options: &AttachOptions) -> Result<()> {
    let name = &options.device;
    if options.reconnect {
        let path = reconnect::reconnect(folder, name, options.timeout, options.shared)?;
        return print(&format!("{}\n", path.display()));
    }
    let row = expect_row(folder, name)?;
    let way = Way::choose(folder, &row, options.via)?;
    if options.swap {
        way.expect_nbd()?;
        swap::expect_safe(folder, &row)?;
    }
    if let Some(device) = attached(folder, &row)?.first() {
        let device = device.path().display();
        let text = format!("{name} is attached as {device}: spillway detach {name} first");
        return Err(Failure::new(Exit::Busy, text).into());
    }
    if let Some(place) = options.mountpoint.as_ref().filter(|place| !place.is_dir()) {
        return Err(Failure::usage(format!("{} is no folder: make it first", place.display())).into());
    }
    let device = DetachGuard::new(way.attach(folder, options)?);
    if let Some(kind) = &options.mkfs {
        let own = [(folder.clone(), name.clone())];
        beside(&own, || make_file_system(kind, device.path(), options.force))?;
    }
    if options.swap {
        swap::start(device.path(), options.force)?;
    }
    if let Some(place) = &options.mountpoint {
        // Another user writes to what is below, and could put a device or a program of root's there.
        let is_foreign = folder.user() != rustix::process::geteuid().as_raw();
        let guards: &[&str] = if is_foreign { &["-o", "nosuid,nodev"] } else { &[] };
        run(Command::new("mount").args(guards).arg("--").arg(device.path()).arg(place))?;
    }
    print(&format!("{}\n", device.keep().display()))
}

impl Way {
    /// The way that is asked for; else by NBD where that is possible, or by a loop device.
    fn choose(folder: &RuntimeFolder, row: &DeviceRow, via: Option<Via>) -> Result<Self> {
        let nbd = || link::uri_of(row).map(|uri| Way::Nbd { uri });
        let by_loop = || {
            let file = file_of(row)?;
            expect_root("attach")?;
            let shown = ShownFile::at(&file, &row.name, folder.owner()?)?;
            anyhow::Ok(Way::Loop(shown))
        };
        let way = match via {
            Some(Via::Nbd) => nbd()?,
            Some(Via::Loop) => by_loop()?,
            None => match nbd() {
                Ok(way) => way,
                Err(why) if row.disksize > 0 && file_of(row).is_err() => return Err(either(row, &why)),
                Err(_) => by_loop()?,
            },
        };
        expect_root("attach")?;
        Ok(way)
    }

    /// For swap: the kernel allocates memory for each request to a file of FUSE.
    fn expect_nbd(&self) -> Result<()> {
        let words = "swap on a loop device over FUSE may hang this host: the kernel allocates memory for each of its requests; load the \
                     kernel's NBD client: modprobe nbd";
        anyhow::ensure!(matches!(self, Way::Nbd { .. }), words);
        Ok(())
    }

    fn attach(&self, folder: &RuntimeFolder, options: &AttachOptions) -> Result<AttachedDevice> {
        let name = &options.device;
        match self {
            Way::Nbd { uri } => {
                let link = KernelLink::open(folder, uri)?;
                hold(folder, options, None)?;
                let timeout = options.timeout.unwrap_or(TIMEOUT);
                let made = NbdDevice::connect(&folder.backend(name), link.transmitting(Some(timeout)));
                let made =
                    made.context("the kernel's NBD client cannot be connected; --via loop goes without it")?;
                Ok(AttachedDevice::Nbd(made))
            }
            Way::Loop(shown) => {
                let (opener, device) = shown.attach().with_context(|| {
                    format!("no loop device can be set up over the file of {name}; modprobe loop makes some")
                })?;
                let device = DetachGuard::new(AttachedDevice::Loop(device));
                hold(folder, options, Some(opener))?;
                Ok(device.into_device())
            }
        }
    }
}

fn either(row: &DeviceRow, why: &anyhow::Error) -> anyhow::Error {
    let name = &row.name;
    anyhow::anyhow!(
        "{name} cannot be attached: start its server with --mount DIR, for a loop device; by NBD: {why:#}"
    )
}

/// The size of loop devices over the file of a device, and of devices of the kernel's NBD client, follows that of the device.
pub(super) fn resize_attached(folder: &RuntimeFolder, name: &str) -> Result<()> {
    let Some(mut row) = row_of(folder, name) else { return Ok(()) };
    loop {
        for device in NbdDevice::all_of(&folder.backend(name)) {
            device.resize(row.disksize).with_context(|| smaller_still(name, device.path()))?;
        }
        // Another one may have followed between the look and the change, which would make the block device smaller again.
        match row_of(folder, name) {
            Some(now) if now.disksize != row.disksize => row = now,
            _ => break,
        }
    }
    let Some(file) = shown_file(&row) else { return Ok(()) };
    // Where its mount is gone, no loop device follows.
    let Ok(shown) = ShownFile::at(&file, name, folder.owner()?) else { return Ok(()) };
    let followed =
        shown.loop_devices().and_then(|devices| devices.iter().try_for_each(|device| shown.resize(device)));
    followed.with_context(|| smaller_still(name, Path::new("the loop device over it")))
}

fn smaller_still(name: &str, device: &Path) -> String {
    format!("{name} is larger, but not {}, which takes root: sudo spillway resize {name}", device.display())
}
