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

/// The same of one that is waited for. A semaphore gives its count away one by one: a single large one would keep a worker busy for ever.
pub(super) fn check_kick(descriptor: &OwnedFd) -> Result<(), Error> {
    check(descriptor)?;
    // One that is full has as much to give. No kick is missed: a queue that starts looks at its ring.
    let _ = write(descriptor, &2u64.to_ne_bytes());
    let mut count = [0; 8];
    match read(descriptor, &mut count) {
        Ok(_) if u64::from_ne_bytes(count) > 1 => Ok(()),
        _ => Err(Error::invalid("what is to be an event descriptor for kicks is a semaphore")),
    }
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

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use spillway_core::Kind;

    use super::*;

    #[test]
    fn kicks_come_by_what_gives_all_of_them_at_once() {
        for (count, full) in [(0, false), (7, false), (0, true)] {
            let [plain, semaphore] = [EventfdFlags::empty(), EventfdFlags::SEMAPHORE].map(|flags| {
                let event = eventfd(count, flags).unwrap();
                if full {
                    write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
                }
                event
            });
            assert_eq!(check_kick(&plain), Ok(()), "{count} {full}");
            assert_eq!(take(&plain), Ok(false), "no kick is left that would be told of again");
            assert_eq!(
                check_kick(&semaphore).err().map(|error| error.kind),
                Some(Kind::Invalid),
                "{count} {full}"
            );
        }
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(check_kick(&file.into()).is_err(), "it is no event descriptor");
    }
}
