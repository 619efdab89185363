//! Loop devices over files in the mount of another user. FUSE closes it to root, and the kernel asks for the size of the file in the name of who
//! sets the loop device up. So root opens the device, and this program, run as the owner of the mount, opens the file and sets it up: the device
//! is its standard input.

use std::fs::{self, File, OpenOptions};
use std::io::stdin;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use spillway_io::fuse::{free_loop_device, resize_loop_device, set_up_loop_device};

use super::program::finish;
use crate::cli::LoopOptions;
use crate::runtime_folder::RuntimeFolder;

/// Sets a loop device up over `file` as whom `folder` belongs to; which process opened it comes first.
pub(super) fn set_up(file: &Path, folder: &RuntimeFolder) -> Result<(u32, PathBuf)> {
    let (device, path) = free_loop_device().context("there is no loop device")?;
    as_owner(folder, device, &["loop-device"], file).map(|opener| (opener, path))
}

/// Has a loop device take the size of its `file`, as whom `folder` belongs to.
pub(super) fn resize(device: &Path, file: &Path, folder: &RuntimeFolder) -> Result<()> {
    let opened = OpenOptions::new().read(true).write(true).open(device);
    let opened = opened.with_context(|| format!("{} cannot be opened", device.display()))?;
    as_owner(folder, opened, &["loop-device", "--resize"], file).map(drop)
}

fn as_owner(folder: &RuntimeFolder, device: File, arguments: &[&str], file: &Path) -> Result<u32> {
    let (uid, gid) = folder.owner()?;
    let mut command = Command::new("/proc/self/exe");
    command.args(arguments).arg(file).uid(uid).gid(gid).stdin(device);
    let (process, said) = finish(&mut command).context("as another user")?;
    ensure!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr).trim());
    Ok(process)
}

/// `spillway loop-device`: the other side of this file.
pub(crate) fn loop_device(options: &LoopOptions) -> Result<()> {
    let LoopOptions { file, resize } = options;
    let cannot = || file.display().to_string();
    if *resize {
        // Older kernels know the size that they were told last.
        fs::metadata(file).with_context(cannot)?;
        return resize_loop_device(stdin()).context("the loop device keeps its size");
    }
    let opened = OpenOptions::new().read(true).write(true).open(file).with_context(cannot)?;
    set_up_loop_device(stdin(), opened).context("the loop device cannot be set up")
}
