//! How long a file or block device is.

use std::os::fd::OwnedFd;

use rustix::fs::{SeekFrom, fstat, ftruncate, seek};
use rustix::io::Errno;

/// Bytes of a file or block device now.
pub(super) fn length_of(fd: &OwnedFd, block_device: bool) -> Result<u64, Errno> {
    if block_device { seek(fd, SeekFrom::End(0)) } else { Ok(fstat(fd)?.st_size as u64) }
}

/// Makes a file longer; one that is as long by now stays as it is.
pub(super) fn lengthen(fd: &OwnedFd, bytes: u64) -> Result<(), Errno> {
    if length_of(fd, false)? < bytes { ftruncate(fd, bytes) } else { Ok(()) }
}
