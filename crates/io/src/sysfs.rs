//! What the kernel shows of block devices in sysfs, and the numbers that it has for them.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{major, makedev, minor};

/// The folder of a block device, by its path.
pub(crate) fn in_sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// A link to the folder of the block device of that number. The folder of a partition lies in that of its disk.
pub(crate) fn link_of(device: u64) -> PathBuf {
    Path::new("/sys/dev/block").join(numbers(device))
}

/// The number of a device, as the kernel's lists have it.
pub(crate) fn numbers(device: u64) -> String {
    format!("{}:{}", major(device), minor(device))
}

/// The number of the device that has this folder.
pub(crate) fn device_number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The number that a file holds.
pub(crate) fn number_in(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}
