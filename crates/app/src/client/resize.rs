//! `spillway resize`: a device becomes larger, and so do the loop devices over its file.

use anyhow::{Context, Result};
use spillway_export::control::Operation;
use spillway_io::fuse::ShownFile;

use super::attach::file_of;
use super::connection::change;
use crate::cli::ResizeOptions;
use crate::runtime_folder::RuntimeFolder;

/// See the head of this file.
pub(crate) fn resize(folder: &RuntimeFolder, options: &ResizeOptions) -> Result<()> {
    let ResizeOptions { device, size } = options;
    change(folder, device, &Operation::Resize { device: device.clone(), size: *size })?;
    follow(folder, device)
}

/// Has loop devices over the file of a device take its size.
fn follow(folder: &RuntimeFolder, name: &str) -> Result<()> {
    let Ok(file) = file_of(folder, name) else { return Ok(()) };
    // Where its mount is gone, no loop device follows.
    let Ok(shown) = ShownFile::at(&file, name, folder.owner()?) else { return Ok(()) };
    let followed =
        shown.loop_devices().and_then(|devices| devices.iter().try_for_each(|device| shown.resize(device)));
    followed.with_context(|| {
        format!(
            "{name} is larger, but not the loop device over it, which takes root: sudo spillway resize {name}"
        )
    })
}
