//! The file that a mount shows of a device, seen by its clients.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, major, minor, open};
use rustix::process::geteuid;
use spillway_core::{Error, Kind};

use super::mount::KIND;
use super::mount_table::mount_of;
use crate::driver::kind_of;

/// A file in a mount of a server of this user. It keeps the mount, and so its numbers, while it lives.
pub struct ShownFile(OwnedFd);

impl ShownFile {
    /// The file at `path` that shows the device `name`, without opening it to read. [`Kind::Invalid`] where the path leads to anything
    /// else: a mount that ended leaves its folder to all who may write there.
    pub fn at(path: &Path, name: &str) -> Result<Self, Error> {
        let about = |why: io::Error| Error::new(kind_of(&why), format!("{}: {why}", path.display()));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = open(path, flags, Mode::empty()).map_err(|why| about(why.into()))?;
        let path_now = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(about)?;
        let user = geteuid().as_raw();
        let is_shown = mount_of(&fd).is_some_and(|mount| {
            let within = path_now.strip_prefix(&mount.place);
            mount.kind == KIND && mount.user == Some(user) && within == Ok(&Path::new(name).join("disk"))
        });
        if is_shown {
            return Ok(Self(fd));
        }
        let text = format!("{} is not the file of a server of this user: was it unmounted?", path.display());
        Err(Error::new(Kind::Invalid, text))
    }

    /// Numbers of its file system's device, and its own there, as `losetup` lists them: `0:44 4294967297`.
    /// Fails as the kernel does that is asked for them.
    pub fn numbers(&self) -> Result<String, Error> {
        let stat = fstat(&self.0).map_err(|why| {
            let why = io::Error::from(why);
            Error::new(kind_of(&why), format!("the server's file: {why}"))
        })?;
        Ok(format!("{}:{} {}", major(stat.st_dev), minor(stat.st_dev), stat.st_ino))
    }
}
