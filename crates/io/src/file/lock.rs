//! Locking an open file or block device against other programs.
//!
//! One writer or many readers. Three things say that another program uses it: flock, which servers of ours take; byte locks, which QEMU and
//! its tools take; and a loop device, which takes no lock. All are looked at after our own locks are taken, so that of two programs that
//! start together at least one is refused. Locks belong to the open file: a second open in this process is refused too, and the kernel
//! releases them with the last descriptor.

use std::fmt::Display;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, fstat};
use rustix::io::Errno;
use spillway_core::{Error, Kind};

use super::footprint::loop_over;
use super::{byte_locks, holders};

/// Times to try for the lock, and the pause between: device managers hold it for a moment after a device appears.
pub(super) const LOCK_TRIES: usize = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(50);

/// Times to try where the process that took the lock is dead: the kernel gives it up when it has taken down the process's rings, which on
/// busy processors is some time after the end.
const DEAD_TRIES: usize = 200;

/// Why a file is not ours.
enum LockConflict {
    /// A flock of others.
    Flock,
    /// A byte lock, by the process that the kernel names for it.
    Bytes(Option<u32>),
    Loop(PathBuf),
}

/// Locks what is open at `path`, and waits for a while if it is in use. `instead` completes the advice "stop that program, or ...".
///
/// [`Kind::Busy`], with the programs or the loop device that use it as far as the system tells. After an error, close it: locks may be left.
pub fn lock(fd: impl AsFd, path: &Path, read_only: bool, instead: &str) -> Result<(), Error> {
    lock_pausing(fd.as_fd(), path, read_only, instead, || std::thread::sleep(LOCK_PAUSE))
}

/// [`lock`], which does `pause` between two tries.
pub(super) fn lock_pausing(
    fd: BorrowedFd<'_>,
    path: &Path,
    read_only: bool,
    instead: &str,
    mut pause: impl FnMut(),
) -> Result<(), Error> {
    let mut attempts = LockAttempts::default();
    while let Some(conflict) = conflict(fd, path, read_only)? {
        let dead = matches!(conflict, LockConflict::Flock) && holders::are_dead(&examined(fd, path)?);
        if !attempts.lasts(dead) {
            return Err(Error::new(Kind::Busy, refusal(fd, path, &conflict, instead)?));
        }
        pause();
    }
    Ok(())
}

fn conflict(fd: BorrowedFd<'_>, path: &Path, read_only: bool) -> Result<Option<LockConflict>, Error> {
    let wanted = match read_only {
        true => FlockOperation::NonBlockingLockShared,
        false => FlockOperation::NonBlockingLockExclusive,
    };
    let unlockable = |errno| failed(path, "could not be locked", errno);
    match flock(fd, wanted) {
        Err(Errno::WOULDBLOCK) => return Ok(Some(LockConflict::Flock)),
        outcome => outcome.map_err(unlockable)?,
    }
    if let Some(holder) = byte_locks::take(fd, read_only).map_err(unlockable)? {
        return Ok(Some(LockConflict::Bytes(holder)));
    }
    Ok(loop_over(fd, read_only).map(LockConflict::Loop))
}

fn refusal(fd: BorrowedFd<'_>, path: &Path, conflict: &LockConflict, instead: &str) -> Result<String, Error> {
    let found = examined(fd, path)?;
    let holders = match conflict {
        LockConflict::Loop(device) => {
            let (path, device) = (path.display(), device.display());
            return Ok(format!("{path}: in use ({device}); losetup --detach {device}, or {instead}"));
        }
        LockConflict::Flock => holders::of_flock(&found),
        LockConflict::Bytes(Some(holder)) => vec![*holder],
        LockConflict::Bytes(None) => holders::of_byte_locks(&found),
    };
    let programs = holders::in_words(&holders).unwrap_or_else(|| "another program".to_owned());
    Ok(format!("{}: in use ({programs}); stop that program, or {instead}", path.display()))
}

fn examined(fd: BorrowedFd<'_>, path: &Path) -> Result<rustix::fs::Stat, Error> {
    fstat(fd).map_err(|errno| failed(path, "could not be examined", errno))
}

/// A failure about `path` in the words of the system.
pub(super) fn failed(path: &Path, what: impl Display, errno: Errno) -> Error {
    let kind = Kind::of_errno(errno.raw_os_error());
    Error::new(kind, format!("{} {what}: {}", path.display(), std::io::Error::from(errno)))
}

/// Tries that found a file locked. Those with a dead holder leave the living ones their times: a lock that was given up between the try
/// and the look at its holders is tried for again.
#[derive(Default)]
pub(super) struct LockAttempts {
    dead: usize,
    living: usize,
}

impl LockAttempts {
    /// Whether to try again after one more, of which every holder was dead or was not.
    pub(super) fn lasts(&mut self, dead: bool) -> bool {
        *if dead { &mut self.dead } else { &mut self.living } += 1;
        self.dead < DEAD_TRIES && self.living < LOCK_TRIES
    }
}
