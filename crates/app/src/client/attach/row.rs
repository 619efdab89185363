//! What a server says of its device, and what is asked of that server or of the user before it is attached.

use std::path::PathBuf;

use anyhow::{Context, Result};
use spillway_export::control::{DeviceRow, Operation};

use crate::cli::AttachOptions;
use crate::client::connection::change;
use crate::runtime_folder::RuntimeFolder;

/// The file of a device, where its server shows one.
pub(super) fn file_of(row: &DeviceRow) -> Result<PathBuf> {
    shown_file(row).with_context(|| match row.disksize {
        0 => no_size(row),
        _ => format!("{} is not shown as a file: start its server with --mount DIR", row.name),
    })
}

/// The same; none where it shows none.
pub(super) fn shown_file(row: &DeviceRow) -> Option<PathBuf> {
    row.exports.iter().find(|export| export.starts_with('/')).map(PathBuf::from)
}

/// Words for a device that cannot be attached yet.
pub(super) fn no_size(row: &DeviceRow) -> String {
    format!("{0} has no size yet: spillway set {0} disksize 4G", row.name)
}

/// Has the server give the device to the one client that it has now, or to the file that `opener` has opened.
pub(super) fn hold(folder: &RuntimeFolder, options: &AttachOptions, opener: Option<u32>) -> Result<()> {
    if options.shared {
        return Ok(());
    }
    let device = &options.device;
    change(folder, device, &Operation::Hold { device: device.clone(), opener })
        .context("the device cannot be held; --shared attaches it all the same")
}

/// Refuses a user other than root.
pub(super) fn expect_root(what: &str) -> Result<()> {
    let root = rustix::process::geteuid().is_root();
    anyhow::ensure!(root, "{what} needs root: sudo spillway {what} NAME");
    Ok(())
}
