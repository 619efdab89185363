//! Event descriptors (eventfd) that another program has handed over.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, read, write};
use spillway_core::Error;

/// Whether `descriptor` is one, and can be used without waiting. A pipe or a file could hold a worker up.
pub(super) fn check(descriptor: &OwnedFd) -> Result<(), Error> {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    let shown = std::fs::read_link(link);
    if !shown.is_ok_and(|shown| shown.as_os_str() == "anon_inode:[eventfd]") {
        return Err(Error::invalid("what is to be an event descriptor is none"));
    }
    let flags = fcntl_getfl(descriptor).map_err(|errno| Error::invalid(errno.to_string()))?;
    let set = fcntl_setfl(descriptor, flags | OFlags::NONBLOCK);
    set.map_err(|errno| Error::invalid(errno.to_string()))
}

/// Tells who waits for it. One that is full tells already.
pub(super) fn signal(descriptor: &OwnedFd) {
    if let Err(errno) = write(descriptor, &1u64.to_ne_bytes())
        && errno != Errno::AGAIN
    {
        tracing::debug!("an event cannot be told: {errno}");
    }
}

/// Whether it was told of since the last look. `Err` where the system does not say.
pub(super) fn take(descriptor: &OwnedFd) -> Result<bool, Errno> {
    let mut count = [0; 8];
    match read(descriptor, &mut count) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(errno) => Err(errno),
    }
}
