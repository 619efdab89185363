//! A disk whose power can be cut, made of our own parts.
//!
//! A released server serves the layer `volatile` over memory and shows the device as a file. A loop device with direct I/O uses that file.
//! Unflushed data exists in that layer only; dirty pages in the kernel's page cache are discarded, because all I/O fails after the cut.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::tool::{run, unmount};
use crate::{Launch, LoopDevice, Scratch, Server};

/// The device of the server.
const NAME: &str = "drive";

/// See the head of this file. As root.
pub struct Drive {
    /// Absent while the power is off.
    device: Option<LoopDevice>,
    /// Where its file system is mounted, if it has one.
    place: Option<Scratch>,
    server: Server,
}

impl Drive {
    /// A disk of `size` that reads as zero. `options` are more keys of its layer `volatile`.
    pub fn new(size: &str, options: &str) -> Self {
        let layer = format!("{{ kind = \"volatile\", volatile_bytes_max = \"32M\", {options} }}");
        let origin = format!("{{ kind = \"memory\", size = \"{size}\" }}");
        let text = format!("[[device]]\nname = \"{NAME}\"\norigin = {origin}\nlayers = [{layer}]\n");
        let server = Launch::serve(Arc::default(), text).with("--memory", "256M").mounted().start();
        let mut drive = Self { device: None, place: None, server };
        drive.connect();
        drive
    }

    /// The same with an empty file system on it.
    pub fn with_files(size: &str, options: &str) -> Self {
        let mut drive = Self::new(size, options);
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", drive.text()]).well();
        drive.place = Some(Scratch::new());
        drive.mount();
        drive
    }

    /// Its block device; another one after each power cut.
    pub fn path(&self) -> &Path {
        self.device.as_ref().expect("the power is on").path()
    }

    /// The root of its file system.
    pub fn folder(&self) -> &Path {
        self.place.as_ref().expect("it has a file system").path()
    }

    /// Loses a part of the unflushed data that `seed` selects. All I/O fails until [`Drive::power_on`].
    pub fn cut_power(&self, seed: u64) {
        self.server.spillway(&["set", NAME, "power_cut", &seed.to_string()]).well();
    }

    /// Restores the power and mounts the file system again. Nobody else uses the disk at this moment.
    pub fn power_on(&mut self) {
        if let Some(place) = &self.place {
            unmount(place.path());
        }
        self.device.take().expect("it was in use").end();
        self.server.spillway(&["set", NAME, "power_on", "1"]).well();
        self.connect();
        if self.place.is_some() {
            self.mount();
        }
    }

    fn connect(&mut self) {
        let device = LoopDevice::direct(&self.server.file(NAME));
        let direct = fs::read_to_string(device.in_sysfs("loop/dio")).expect("the kernel says it");
        assert_eq!(direct.trim(), "1", "writes stay in the page cache of the file");
        self.device = Some(device);
    }

    fn text(&self) -> &str {
        self.path().to_str().expect("paths of tests are text")
    }

    /// Mounts without periodic commits: only syncs make data durable.
    fn mount(&self) {
        let place = self.folder().to_str().expect("paths of tests are text");
        run("mount", &["-o", "commit=3600", self.text(), place]).well();
    }
}

impl Drop for Drive {
    fn drop(&mut self) {
        if let Some(place) = &self.place {
            let _ = std::process::Command::new("umount").arg("--lazy").arg(place.path()).status();
        }
    }
}
