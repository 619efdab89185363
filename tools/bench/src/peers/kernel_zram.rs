//! The kernel's own zram as a peer: a device made for this run and removed afterwards. Needs root.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::pages::PAGE;

const CONTROL: &str = "/sys/class/zram-control";

/// A device of the kernel's zram.
pub(crate) struct KernelZram {
    id: u32,
}

impl KernelZram {
    /// A device of `bytes` with lz4, or the reason why there is none.
    pub(crate) fn new(bytes: u64) -> Result<Self> {
        Self::made(bytes, None)
    }

    /// The same with a device that it can write pages back to.
    pub(crate) fn with_backing(bytes: u64, backing: &Path) -> Result<Self> {
        Self::made(bytes, Some(backing))
    }

    fn made(bytes: u64, backing: Option<&Path>) -> Result<Self> {
        let id = fs::read_to_string(format!("{CONTROL}/hot_add"));
        let id = id.context("no device of the kernel's zram can be made here")?.trim().parse()?;
        let device = Self { id };
        device.set("comp_algorithm", "lz4")?;
        if let Some(backing) = backing {
            device.set("backing_dev", backing.to_str().context("a path that is text")?)?;
        }
        device.set("disksize", &bytes.to_string())?;
        Ok(device)
    }

    /// Why the kernel's zram has no write-back here, if it has none: a kernel that is built without it has no attribute for it.
    pub(crate) fn without_write_back() -> Option<String> {
        let has_it = |zram: &Self| Path::new(&zram.attribute("backing_dev")).exists();
        match Self::new(PAGE as u64) {
            Ok(zram) if has_it(&zram) => None,
            Ok(_) => Some("this kernel is built without it (no attribute backing_dev)".into()),
            Err(why) => Some(format!("{why:#}")),
        }
    }

    /// The same; without one a line says why.
    pub(crate) fn if_there(bytes: u64) -> Option<Self> {
        let why = |why| println!("\nNo comparison with the kernel's zram: {why:#}");
        Self::new(bytes).map_err(why).ok()
    }

    fn attribute(&self, name: &str) -> String {
        format!("/sys/block/zram{}/{name}", self.id)
    }

    pub(crate) fn set(&self, name: &str, value: &str) -> Result<()> {
        fs::write(self.attribute(name), value).with_context(|| format!("{} = {value}", self.attribute(name)))
    }

    /// Column `index` of mm_stat.
    pub(crate) fn mm_stat(&self, index: usize) -> Result<u64> {
        let text = fs::read_to_string(self.attribute("mm_stat"))?;
        let column = text.split_whitespace().nth(index).context("mm_stat has nine columns")?;
        Ok(column.parse()?)
    }

    pub(crate) fn path(&self) -> PathBuf {
        format!("/dev/zram{}", self.id).into()
    }

    /// The block device, past the page cache.
    pub(crate) fn open(&self) -> Result<File> {
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let path = self.path();
        // The node appears a moment after the device.
        if !path.exists() {
            let text = fs::read_to_string(self.attribute("dev"))?;
            let (major, minor) = text.trim().split_once(':').context("major:minor")?;
            let device = rustix::fs::makedev(major.parse()?, minor.parse()?);
            let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::BlockDevice, mode, device)?;
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path);
        file.with_context(|| path.display().to_string())
    }
}

impl Drop for KernelZram {
    fn drop(&mut self) {
        let removed = fs::write(format!("{CONTROL}/hot_remove"), self.id.to_string());
        if let Err(why) = removed {
            eprintln!("warning: zram{} is left behind: {why}", self.id);
        }
    }
}
