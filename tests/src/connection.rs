//! What the kernel knows of a FUSE mount's connection: `/sys/fs/fuse/connections`, mounted for the test. As root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Scratch;
use crate::tool::run;

/// The connection of a mount.
pub struct FuseConnection {
    control: Scratch,
    folder: PathBuf,
}

impl FuseConnection {
    /// Of the mount at `place`.
    pub fn of(place: &Path) -> Self {
        let number = fs::metadata(place).expect("it is mounted").dev();
        let control = Scratch::new();
        run("mount", &["-t", "fusectl", "none", control.path().to_str().expect("text")]).well();
        let folder = control.join(&number.to_string());
        Self { control, folder }
    }

    /// Requests that have no answer yet.
    pub fn waiting(&self) -> usize {
        let count = fs::read_to_string(self.folder.join("waiting")).expect("root may look");
        count.trim().parse().expect("a number")
    }

    /// Ends it: every request fails, and the mount stays.
    pub fn abort(&self) {
        fs::write(self.folder.join("abort"), "1").expect("root may abort");
    }
}

impl Drop for FuseConnection {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.control.path()).status();
    }
}
