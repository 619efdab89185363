//! `spillway resize`: a device becomes larger, and so do the block devices that it is attached as.

use anyhow::Result;
use spillway_export::control::Operation;

use super::attach::resize_attached;
use super::connection::change;
use super::progress::beside;
use crate::cli::ResizeOptions;
use crate::runtime_folder::RuntimeFolder;

/// See the head of this file.
pub(crate) fn resize(folder: &RuntimeFolder, options: &ResizeOptions) -> Result<()> {
    let ResizeOptions { device, size } = options;
    let resize = Operation::Resize { device: device.clone(), size: *size };
    beside(&[(folder.clone(), device.clone())], || change(folder, device, &resize))?;
    resize_attached(folder, device)
}
