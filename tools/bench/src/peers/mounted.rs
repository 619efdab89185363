//! Servers whose devices are files of a mount: ours, and peers. As root, which mounts without help.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use spillway_fixture::patiently;

use super::servers::{Folder, binary};
use crate::measure::results;

/// Running until it is dropped. What its devices stand on lies in its folder.
pub(crate) struct Mounted {
    child: Child,
    place: PathBuf,
    pub(crate) folder: Folder,
}

impl Mounted {
    /// A server with so much memory for `devices`, in the words of a file of `spillway serve`.
    pub(crate) fn start(folder: Folder, memory: &str, devices: &str) -> Result<Self> {
        let (place, config) = (folder.0.join("mount"), folder.0.join("serve.toml"));
        fs::create_dir(&place)?;
        fs::write(&config, format!("memory = \"{memory}\"\nmount = \"{}\"\n{devices}", place.display()))?;
        let mut command = Command::new(binary()?);
        command.arg("serve").arg(&config).arg("--socket").arg(folder.0.join("s"));
        command.env("SPILLWAY_RUNTIME_DIR", &folder.0).stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().context("spillway cannot be started")?;
        Ok(Self { child, place, folder })
    }

    /// The file of a device, once it is there.
    pub(crate) fn file(&self, device: &str) -> Result<PathBuf> {
        let file = self.place.join(device).join("disk");
        appears(&file).map(|()| file)
    }

    /// An attribute of a part of a device.
    pub(crate) fn number(&self, device: &str, part: &str, attribute: &str) -> Result<u64> {
        let file = self.place.join(device).join(part).join(attribute);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        Ok(text.trim().parse()?)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = Command::new("umount").arg("--lazy").arg(&self.place).stderr(Stdio::null()).status();
    }
}

/// Waits until a file of a mount is there.
pub(crate) fn appears(file: &Path) -> Result<()> {
    let there = patiently(|| file.exists().then_some(()));
    there.with_context(|| format!("{} does not appear", file.display()))
}

/// Waits until a file has its size: until then it is the one that is mounted over.
pub(crate) fn has_size(file: &Path, bytes: u64) -> Result<()> {
    let has = patiently(|| fs::metadata(file).is_ok_and(|found| found.len() == bytes).then_some(()));
    has.with_context(|| format!("{} has not {bytes} bytes", file.display()))
}

/// The command by which qemu-storage-daemon exports `image` over FUSE as the file `file`, which is made.
pub(crate) fn qemu_export(image: &Path, file: &Path) -> Result<Command> {
    fs::File::create(file)?;
    let command = |image: &str, file: &str| {
        let mut command = Command::new("qemu-storage-daemon");
        let disk = format!("driver=file,node-name=disk,aio=io_uring,filename={image}");
        let export =
            format!("type=fuse,id=disk,node-name=disk,writable=on,iothread=thread,mountpoint={file}");
        command.args(["--object", "iothread,id=thread", "--blockdev", &disk, "--export", &export]);
        command
    };
    results::command(&command("IMAGE", "FILE"))?;
    Ok(command(&image.display().to_string(), &file.display().to_string()))
}

/// A server with a mount. When it is dropped it is asked to end, so that it writes what it has not written, and unmounted.
pub(crate) struct Server {
    child: Child,
    mount: PathBuf,
}

impl Server {
    pub(crate) fn start(mut command: Command, mount: PathBuf) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::null());
        let child = command.spawn().with_context(|| format!("{command:?} cannot be started: install it"))?;
        Ok(Self { child, mount })
    }

    /// Whether the server has ended in time.
    fn end(&mut self) -> Result<bool> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        Ok(patiently(|| self.child.try_wait().transpose()).transpose()?.is_some())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.end().unwrap_or(false) {
            eprintln!("warning: the server of {} does not end and is killed", self.mount.display());
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount).stderr(Stdio::null()).status();
    }
}
