//! The file that a mount shows of a device, seen by its clients, and the loop devices over it.
//!
//! What a server says of its file is believed only as far as it goes: the path is followed as the user whose server it is, must lead
//! into a FUSE mount of that user, and from then on the file is meant, not the path. A loop device is known by the numbers of the file
//! that it stands on, of which the first is the kernel's own name for that mount.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::thread::gettid;
use spillway_core::{Error, Kind};

use super::as_user::User;
use super::loop_device::{LoopDevice, loop_devices, open_as_far_as_allowed};
use super::mount::KIND;
use super::mount_table::mount_of;
use crate::runtime::driver::kind_of;

/// A file in a mount of a server. It keeps the mount, and so its numbers, while it lives.
pub struct ShownFile {
    fd: OwnedFd,
    /// As the kernel shows it.
    path: PathBuf,
    /// Numbers of its file system, and its own there.
    numbers: (u64, u64),
    user: User,
}

impl ShownFile {
    /// The file at `path` that shows the device `name` in a mount of `user`, without opening it to read. [`Kind::Invalid`] where the
    /// path leads to anything else: a mount that ended leaves its folder to all who may write there.
    pub fn at(path: &Path, name: &str, user: User) -> Result<Self, Error> {
        let about = |why: io::Error| Error::new(kind_of(&why), format!("{}: {why}", path.display()));
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = user.run(|| Ok(open(path, flags, Mode::empty())?)).map_err(about)?;
        let path_now = fs::read_link(link_to(&fd)).map_err(about)?;
        let is_shown = mount_of(&fd).is_some_and(|mount| {
            let within = path_now.strip_prefix(&mount.place);
            mount.kind == KIND && mount.user == Some(user.uid) && within == Ok(&Path::new(name).join("disk"))
        });
        if !is_shown {
            let text = format!(
                "{} is not the file of a server of user {}; was it unmounted?",
                path.display(),
                user.uid
            );
            return Err(Error::new(Kind::Invalid, text));
        }
        let stat = user.run(|| Ok(fstat(&fd)?)).map_err(about)?;
        Ok(Self { fd, path: path_now, numbers: (stat.st_dev, stat.st_ino), user })
    }

    /// Sets a loop device up over it, with direct I/O; which thread has opened the file comes first.
    pub fn attach(&self) -> io::Result<(u32, LoopDevice)> {
        let mut opener = 0;
        let device = LoopDevice::free(|device| {
            opener = self.user.run(|| {
                device.set_up(open_as_far_as_allowed(&link_to(&self.fd))?)?;
                Ok(gettid().as_raw_nonzero().get() as u32)
            })?;
            Ok(())
        })?;
        Ok((opener, device))
    }

    /// The loop devices over it. The error is the kernel's, such as `EACCES` for others than root where there is one.
    pub fn loop_devices(&self) -> io::Result<Vec<LoopDevice>> {
        let mut found = Vec::new();
        // Of other devices nothing is asked: what they stand on may hang.
        for (device, _) in loop_devices().into_iter().filter(|(_, file)| *file == self.path) {
            let device = LoopDevice::open(&device)?;
            match self.user.run(|| device.backing()) {
                Ok(backing) if backing.inode == self.numbers => found.push(device),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Has a loop device over it take its size.
    pub fn resize(&self, device: &LoopDevice) -> io::Result<()> {
        self.user.run(|| {
            // Older kernels know the size that they were told last.
            fstat(&self.fd)?;
            device.take_size()
        })
    }
}

/// A name for what a descriptor means, whatever has its path by now.
fn link_to(fd: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}
