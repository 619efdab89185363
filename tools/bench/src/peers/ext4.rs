//! An ext4 file system on a block device, mounted until it is dropped. As root.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::measure::results;

/// Nothing is left to be initialised while a measurement runs.
const AT_ONCE: &str = "lazy_itable_init=0,lazy_journal_init=0";

/// See the head of this file.
pub(crate) struct Ext4 {
    pub(crate) place: PathBuf,
}

impl Ext4 {
    /// A new one, mounted at `place`.
    pub(crate) fn make(device: &Path, place: PathBuf) -> Result<Self> {
        Self::with(device, place, AT_ONCE)
    }

    /// A new one on a device whose blocks stay written.
    pub(crate) fn make_without_discards(device: &Path, place: PathBuf) -> Result<Self> {
        Self::with(device, place, &format!("{AT_ONCE},nodiscard"))
    }

    fn with(device: &Path, place: PathBuf, options: &str) -> Result<Self> {
        let mut command = Command::new("mkfs.ext4");
        finish(noted(command.args(["-q", "-F", "-E", options]).arg(device))?)?;
        Self::mount(device, place)
    }

    /// The one that is on the device.
    pub(crate) fn mount(device: &Path, place: PathBuf) -> Result<Self> {
        fs::create_dir_all(&place)?;
        finish(Command::new("mount").args(["-t", "ext4"]).args([device, &place]))?;
        Ok(Self { place })
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        if let Err(why) = finish(Command::new("umount").arg(&self.place)) {
            eprintln!("warning: {why:#}");
            let _ = Command::new("umount").arg("--lazy").arg(&self.place).status();
        }
    }
}

/// Notes a command for the report.
pub(crate) fn noted(command: &mut Command) -> Result<&mut Command> {
    results::command(command)?;
    Ok(command)
}

/// Runs a command that has to succeed.
pub(crate) fn finish(command: &mut Command) -> Result<()> {
    printed(command).map(drop)
}

/// The output of a command that has to succeed.
pub(crate) fn printed(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("{command:?} cannot be started: install it"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into())
}
