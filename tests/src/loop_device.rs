//! A loop device: a block device whose page cache is not that of the file below it.
//!
//! What a program stores there and nobody syncs stays in the device's pages. The file has what was written back, which is
//! what a machine would find on its disk after a power cut.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::tool::run;
use crate::{Scratch, until};

/// Made with `losetup`, as root; detached when dropped.
pub struct LoopDevice {
    path: PathBuf,
    /// Keeps the last program that closes the device from writing its dirty pages back.
    _open: File,
}

impl LoopDevice {
    /// A device over `file`.
    pub fn over(file: &Path) -> Self {
        Self::with(file, "--direct-io=off")
    }

    /// A device over `file` that does not keep a second copy of what is in its own page cache.
    pub fn direct(file: &Path) -> Self {
        Self::with(file, "--direct-io=on")
    }

    fn with(file: &Path, option: &str) -> Self {
        let arguments = ["--find", "--show", option, file.to_str().expect("paths of tests are text")];
        let path = PathBuf::from(run("losetup", &arguments).well().out.trim());
        let open = File::open(&path).expect("root may read it");
        Self { path, _open: open }
    }

    /// A device of `size` bytes that cannot discard: its file lies in RAM without holes, and is there as long as the device.
    pub fn without_discards(size: u64) -> Self {
        let folder = Scratch::new();
        let place = folder.path().to_str().expect("paths of tests are text");
        run("mount", &["-t", "ramfs", "none", place]).well();
        let file = folder.join("origin");
        File::create(&file).and_then(|file| file.set_len(size)).expect("ramfs takes files");
        let device = Self::over(&file);
        run("umount", &["--lazy", place]).well();
        device
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Detaches it and waits until its last user has closed it. A killed program closes it some time after its end, once the kernel has taken
    /// down its rings, and dirty pages are written then.
    pub fn end(self) {
        let backing = self.in_sysfs("loop/backing_file");
        let file = || fs::read_to_string(&backing).ok();
        let before = file();
        drop(self);
        until("the loop device is closed", || (file() != before).then_some(()));
    }

    /// What the kernel says of it.
    pub fn in_sysfs(&self, attribute: &str) -> PathBuf {
        let name = self.path.file_name().expect("a device").to_string_lossy();
        PathBuf::from(format!("/sys/block/{name}/{attribute}"))
    }

    /// Waits until nothing is on its way to the file.
    pub fn settles(&self) {
        let in_flight = self.in_sysfs("inflight");
        let idle = || {
            let counts = fs::read_to_string(&in_flight).expect("the kernel counts requests");
            counts.split_whitespace().all(|count| count == "0").then_some(())
        };
        until("the loop device has nothing in flight", idle);
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let path = self.path.to_str().expect("it was text");
        let _ = std::process::Command::new("losetup").args(["--detach", path]).status();
    }
}
