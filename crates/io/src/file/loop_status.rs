//! What stands behind a loop device, as its driver tells who may open the device.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::makedev;

const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;

/// `struct loop_info64` of `linux/loop.h`, as far as it is read.
#[derive(Default)]
#[repr(C)]
struct Status {
    device: u64,
    inode: u64,
    rdevice: u64,
    rest: [[u64; 13]; 2],
}

const _: () = assert!(size_of::<Status>() == 232, "as the kernel has it");

/// The file or block device behind a loop device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Backing {
    /// Device and number of its inode.
    pub(super) inode: (u64, u64),
    /// Number of the block device that it is; 0 for a file.
    pub(super) rdevice: u64,
}

/// What the driver says of the loop device of that number and name; `None` for who may not ask.
pub(super) fn backing_of(device: u64, name: &str) -> Option<Backing> {
    let opened = File::open(Path::new("/dev").join(name)).ok()?;
    if opened.metadata().ok()?.rdev() != device {
        return None;
    }
    let mut status = Status::default();
    // SAFETY: the call writes a structure of this layout at the address that it is given.
    let answer =
        unsafe { libc::ioctl(opened.as_raw_fd(), LOOP_GET_STATUS64, std::ptr::from_mut(&mut status)) };
    let inode = (decoded(status.device), status.inode);
    (answer == 0).then(|| Backing { inode, rdevice: decoded(status.rdevice) })
}

/// The same by the path that the kernel shows to all. It may lead elsewhere in another mount namespace.
pub(super) fn backing_at(path: &Path) -> Option<Backing> {
    let found = std::fs::metadata(path).ok()?;
    Some(Backing { inode: (found.dev(), found.ino()), rdevice: found.rdev() })
}

/// A device number, from the kernel's own form of it.
fn decoded(number: u64) -> u64 {
    let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xf_ff00));
    makedev(major as u32, minor as u32)
}
