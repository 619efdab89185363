//! `spillway detach`: unmounts, flushes and ends the block devices of a device, also where its server is gone.

use std::process::Command;

use anyhow::{Context, Result};

use super::block_device::{BlockDevice, attached, of_nbd};
use super::row::expect_root;
use crate::client::listing::{no_device, row_of};
use crate::client::program::run;
use crate::exit::{Exit, Failure};
use crate::runtime_folder::{RuntimeFolder, check_name};
use crate::server::occupants;

/// See the head of this file.
pub(crate) fn detach(folder: &RuntimeFolder, name: &str) -> Result<()> {
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
        flushed = flushed.and(end(device)?);
    }
    flushed.with_context(|| {
        format!("{name} is detached, but could not be flushed: what was written to it may be lost")
    })
}

/// Ends a block device; how its flush went.
fn end(device: BlockDevice) -> Result<std::io::Result<()>> {
    if device.is_swap() {
        run(Command::new("swapoff").arg(device.path()))?;
    }
    for mount in device.mounts()? {
        mount.unmount().map_err(|error| in_use(mount.place(), &error))?;
    }
    device.expect_unused()?;
    run(Command::new("blockdev").arg("--flushbufs").arg(device.path()))?;
    // The device hands it on to the server.
    let flushed = device.flush();
    device.quiesce()?;
    device.give_up()?;
    Ok(flushed)
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
