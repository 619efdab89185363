//! A server whose devices are files of a mount. As root, which mounts without help.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::nbd::{Folder, binary};

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
    let start = Instant::now();
    while !file.exists() {
        ensure!(start.elapsed() < Duration::from_secs(20), "{} does not appear", file.display());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
