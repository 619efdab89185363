//! `spillway detach`: unmounts, flushes and ends the block devices of a device, also where its server is gone.

use std::io::ErrorKind;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use spillway_export::control::DeviceRow;
use spillway_io::fuse::MountPoint;
use spillway_io::is_listening;

use super::block_device::{AttachedDevice, QUIET_PAUSE, attached, of_nbd};
use super::row::expect_root;
use super::swap;
use crate::cli::DetachOptions;
use crate::client::listing::{no_device, row_of};
use crate::client::program::run;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::{RuntimeFolder, check_name};
use crate::server::device::occupants;

/// How long programs may take to end, or to give up a file, once the requests have failed that they waited for.
const LETTING_GO_PATIENCE: Duration = Duration::from_secs(10);

/// See the head of this file.
pub(crate) fn detach(folder: &RuntimeFolder, options: &DetachOptions) -> Result<()> {
    let name = &options.device;
    check_name(name)?;
    folder.expect_ours()?;
    let row = row_of(folder, name);
    let missing = |text| Failure::new(Exit::Missing, text);
    let devices = match &row {
        Some(row) => {
            expect_root("detach")?;
            attached(folder, row)?
        }
        None => folder.everywhere().flat_map(|folder| of_nbd(folder, name)).collect(),
    };
    if devices.is_empty() {
        let is_there = row.is_some();
        return Err(missing(if is_there {
            format!("{name} is not attached")
        } else {
            no_device(name, folder)
        })
        .into());
    }
    expect_root("detach")?;
    let mut flushed = Ok(());
    for device in devices {
        flushed = flushed.and(match lost(folder, row.as_ref(), options, &device)? {
            None => end(device)?,
            Some(why) => {
                expect_given_up(&device, options, why)?;
                abandon(device)?;
                Err(anyhow!(why))
            }
        });
    }
    flushed.with_context(|| {
        format!("{name} is detached, but could not be flushed: what was written to it may be lost")
    })
}

/// Why requests of a block device reach no server, if they do not.
fn lost(
    folder: &RuntimeFolder,
    row: Option<&DeviceRow>,
    options: &DetachOptions,
    device: &AttachedDevice,
) -> Result<Option<&'static str>> {
    let name = &options.device;
    match (device, row) {
        (AttachedDevice::Loop(_), _) => Ok(None),
        (AttachedDevice::Nbd(_), Some(row)) => {
            Ok((row.clients == 0).then_some("its server was started again"))
        }
        (AttachedDevice::Nbd(_), None) => {
            let is_silent = folder.everywhere().any(|folder| is_listening(&folder.control_socket(name)));
            if is_silent && options.force {
                let text = format!(
                    "{name}: its server does not answer: end it by SIGKILL, then detach with --force"
                );
                return Err(Failure::new(Exit::Busy, text).into());
            }
            // It may go on.
            Ok((!is_silent).then_some("its server is gone"))
        }
    }
}

/// Refuses to give up what may wait in the kernel, unless that is wanted.
fn expect_given_up(device: &AttachedDevice, options: &DetachOptions, why: &str) -> Result<()> {
    if options.force {
        return Ok(());
    }
    let (name, device) = (&options.device, occupants::device_in_words(device.path()));
    let remedy = format!(
        "if a server has the content of before, spillway attach {name} --reconnect, and detach again; --force detaches \
         now, and what no server has stored is lost"
    );
    Err(Failure::new(Exit::Busy, format!("{device}: {why}: {remedy}")).into())
}

/// Ends a block device; how its flush went.
fn end(device: AttachedDevice) -> Result<Result<()>> {
    // The kernel tells nobody else of what it could not write of files that are closed.
    let written = device.mounts()?.iter().map(MountPoint::write_back).fold(Ok(()), Result::and);
    leave(&device, Duration::ZERO).map_err(|error| match &written {
        Ok(()) => error,
        Err(why) => error.context(format!("what was written to it may be lost ({why})")),
    })?;
    device.expect_unused()?;
    run(Command::new("blockdev").arg("--flushbufs").arg(device.path()))?;
    // The device hands it on to the server.
    let flushed = device.flush();
    device.quiesce()?;
    device.give_up()?;
    Ok(written.and(flushed).map_err(Into::into))
}

/// Ends a block device whose requests reach no server: they fail first, or all else would wait for them.
fn abandon(device: AttachedDevice) -> Result<()> {
    assert!(matches!(device, AttachedDevice::Nbd(_)), "a loop device has its server");
    device.cut_off()?;
    let about = || format!("{} is disconnected already", device.path().display());
    leave(&device, LETTING_GO_PATIENCE).with_context(about)?;
    device.give_up()
}

/// Has the kernel use it no longer, once programs have let go of its file system, which may take as long as `patience`.
fn leave(device: &AttachedDevice, patience: Duration) -> Result<()> {
    swap::stop(device.path())?;
    let deadline = Instant::now() + patience;
    for mount in device.mounts()? {
        while let Err(error) = mount.unmount() {
            if error.kind() != ErrorKind::ResourceBusy || Instant::now() > deadline {
                return Err(in_use(mount.place(), &error).into());
            }
            sleep(QUIET_PAUSE);
        }
    }
    Ok(())
}

fn in_use(place: &std::path::Path, error: &std::io::Error) -> Failure {
    let users = occupants::in_words(&occupants::below(place));
    let place = place.display();
    let who = match users.as_str() {
        "" => format!("fuser -vm {place} shows who uses it"),
        users => format!("in use ({users}); end that first"),
    };
    Failure::new(Exit::Busy, format!("{place} cannot be unmounted ({error}): {who}"))
}
