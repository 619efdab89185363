//! `spillway resize`: a device becomes larger, and so do the loop devices over its file.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result};
use spillway_export::control::Operation;
use spillway_io::fuse::loop_devices_below;

use super::attach::file_of;
use super::connection::change;
use super::lending;
use super::program::run;
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
    for device in loop_devices_below(&file) {
        let resized = if folder.is_ours() {
            // They ask the kernel, which asks the server only here.
            fs::metadata(&file).with_context(|| file.display().to_string())?;
            run(Command::new("losetup").arg("--set-capacity").arg(&device)).map(drop)
        } else {
            lending::resize(&device, &file, folder)
        };
        resized.with_context(|| {
            let device = device.display();
            format!(
                "{name} is larger, but not {device} over it, which takes root: sudo spillway resize {name}"
            )
        })?;
    }
    Ok(())
}
