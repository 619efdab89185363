//! A loop device over a file, with direct I/O, so that the kernel does not cache the file a second time. As root.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::ext4::{finish, noted, printed};

/// Detached when it is dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
}

impl LoopDevice {
    /// One that is free.
    pub(crate) fn over(file: &Path) -> Result<Self> {
        let mut command = Command::new("losetup");
        let shown = printed(noted(command.args(["--find", "--show", "--direct-io=on"]).arg(file))?)?;
        Ok(Self { path: shown.trim().into() })
    }

    /// The one at `path`, where no other program expects one.
    pub(crate) fn at(path: PathBuf, file: &Path) -> Result<Self> {
        finish(Command::new("losetup").arg("--direct-io=on").args([&path, file]))?;
        Ok(Self { path })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if let Err(why) = finish(Command::new("losetup").arg("--detach").arg(&self.path)) {
            eprintln!("warning: {} is left behind: {why:#}", self.path.display());
        }
    }
}
