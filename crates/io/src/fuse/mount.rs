//! A mount point and the descriptor behind it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use spillway_core::{Error, Kind};

use super::fusermount;
use super::mount_table::{Bound, MountEntry, bound_elsewhere, entries, loop_devices_below, mount_at};
use crate::runtime::driver::kind_of;

const DEVICE: &str = "/dev/fuse";

/// The file system's type, by which a mount of ours is known.
pub(super) const KIND: &str = "fuse.spillway";

/// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`, `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;

/// What a container needs.
const IN_CONTAINERS: &str = "in a container: --device /dev/fuse --cap-add SYS_ADMIN";

/// A mount point, and the descriptor that its requests come from.
pub struct Mount {
    /// As the kernel listed it at first.
    made: MountEntry,
    pub(super) fd: Arc<OwnedFd>,
    /// Whether `fusermount3` has to unmount it.
    helped: bool,
}

impl Mount {
    /// Mounts at the folder `place`, for all users where it is `shared`, and says what was cleaned up before.
    ///
    /// [`Kind::Busy`] where a living server has it; [`Kind::NotFound`] where there is no such folder, or no `/dev/fuse`;
    /// [`Kind::NotSupported`] where nobody may mount; otherwise what the system said.
    pub fn at(place: &Path, shared: bool) -> Result<(Self, Option<String>), Error> {
        let place = resolved(place)?;
        let note = clean_up(&place)?;
        let about =
            |why: io::Error| Error::new(kind_of(&why), format!("cannot mount at {}: {why}", place.display()));
        if !std::fs::metadata(&place).map_err(about)?.is_dir() {
            let text = format!("cannot mount at {}: it is no folder", place.display());
            return Err(Error::invalid(text));
        }
        if entries().is_empty() {
            let text = format!("cannot mount at {}: /proc/self/mountinfo cannot be read", place.display());
            return Err(Error::new(Kind::NotSupported, text));
        }
        let rights = if shared { "default_permissions,allow_other" } else { "default_permissions" };
        let (fd, helped) = match mount_here(&place, rights) {
            Err(why) if why == Errno::PERM || why == Errno::ACCESS => {
                if !Path::new(DEVICE).exists() || !fusermount::is_present() {
                    return Err(unable());
                }
                let options = format!("fsname=spillway,subtype=spillway,{rights}");
                (fusermount::mount(&place, &options)?, true)
            }
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(unable()),
            mounted => (mounted.map_err(|why| about(why.into()))?, false),
        };
        let flags = fcntl_getfl(&fd).map_err(|why| about(why.into()))?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(|why| about(why.into()))?;
        let made = mount_at(&place).filter(|entry| entry.kind == KIND).ok_or_else(|| {
            let text = format!("{}: another mount was made over it at once: unmount both", place.display());
            Error::new(Kind::Busy, text)
        })?;
        Ok((Self { made, fd: Arc::new(fd), helped }, note))
    }

    /// Where it was made.
    pub fn place(&self) -> &Path {
        &self.made.place
    }

    /// A descriptor for one more reader: of its own where this process may open the device, otherwise the common one.
    pub(super) fn descriptor(&self) -> Arc<OwnedFd> {
        self.own_descriptor().map_or_else(|_| self.fd.clone(), Arc::new)
    }

    fn own_descriptor(&self) -> io::Result<OwnedFd> {
        let fd = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
        let of = self.fd.as_raw_fd() as u32;
        // SAFETY: the call reads one number of 32 bits at the address that it is given.
        match unsafe { libc::ioctl(fd.as_raw_fd(), CLONE, &raw const of) } {
            0 => Ok(fd),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Whether requests still come from it: not after the last unmount, wherever that was, or an abort.
    pub(super) fn is_connected(&self) -> bool {
        is_connected(&self.fd)
    }

    /// The mount as the kernel lists it now, unless it was unmounted. Another mount may have its numbers then: one that
    /// answers, while this one is connected no longer.
    fn listed(&self) -> Option<MountEntry> {
        let ours = |entry: &MountEntry| {
            entry.id == self.made.id && entry.device == self.made.device && entry.kind == KIND
        };
        let all = entries();
        if all.is_empty() {
            // The list cannot be read, with all descriptors in use for example.
            return self.is_connected().then(|| self.made.clone());
        }
        let entry = all.into_iter().find(ours)?;
        (self.is_connected() || is_dead_at(&entry.place)).then_some(entry)
    }

    /// Unmounts it, and nothing else; [`Kind::Busy`] while something below is in use, or another mount covers it. Where `lazily`, it
    /// is out of sight now, even while it is used.
    pub(super) fn unmount(&self, lazily: bool) -> Result<(), Error> {
        let Some(entry) = self.listed() else { return Ok(()) };
        if mount_at(&entry.place).is_some_and(|seen| seen.id != entry.id) {
            let text = format!("cannot unmount {}: another mount covers it", entry.place.display());
            return Err(Error::new(Kind::Busy, text));
        }
        match unmount(&entry.place, self.helped, lazily) {
            // Unmounted by others a moment ago.
            Err(_) if self.listed().is_none() => Ok(()),
            outcome => outcome,
        }
    }

    /// Where it is mounted besides.
    pub(super) fn bound_elsewhere(&self) -> Vec<Bound> {
        bound_elsewhere(&self.made)
    }

    /// Mounts that lie on it, whether they cover it or something below.
    pub(super) fn covered_by(&self) -> Vec<PathBuf> {
        let Some(ours) = self.listed() else { return Vec::new() };
        let on_it = |entry: &MountEntry| entry.parent == ours.id;
        entries().into_iter().filter(on_it).map(|entry| entry.place).collect()
    }
}

/// Whether requests still come by `fd`.
pub(super) fn is_connected(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    let looked = poll(&mut fds, Some(&Timespec::default()));
    looked.is_err() || !fds[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// The path as the kernel lists it. The last part of it is not looked at: a mount point whose server is gone answers nothing.
fn resolved(place: &Path) -> Result<PathBuf, Error> {
    let why = |why: io::Error| {
        Error::new(
            kind_of(&why),
            format!("cannot mount at {}: {why}: create the folder first", place.display()),
        )
    };
    let whole = std::path::absolute(place).map_err(why)?;
    match (whole.canonicalize(), whole.parent(), whole.file_name()) {
        (Err(dead), Some(parent), Some(name)) if is_dead(&dead) => {
            Ok(parent.canonicalize().map_err(why)?.join(name))
        }
        (found, ..) => found.map_err(why),
    }
}

/// Whether a mount point's server is gone.
fn is_dead(why: &io::Error) -> bool {
    matches!(why.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED))
}

fn mount_here(place: &Path, rights: &str) -> Result<OwnedFd, Errno> {
    let fd = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let options = format!("fd={},rootmode=40000,user_id={user},group_id={group},{rights}", fd.as_raw_fd());
    let options = std::ffi::CString::new(options).expect("numbers have no NUL");
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("spillway", place, KIND, flags, Some(options.as_c_str()))?;
    Ok(fd)
}

fn unmount(place: &Path, helped: bool, lazily: bool) -> Result<(), Error> {
    if helped {
        return fusermount::unmount(place, lazily);
    }
    let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    rustix::mount::unmount(place, flags | UnmountFlags::NOFOLLOW).map_err(|why| {
        let text = format!("cannot unmount {}: {}", place.display(), io::Error::from(why));
        Error::new(Kind::of_errno(why.raw_os_error()), text)
    })
}

/// Whether the server of the mount at `place` is gone.
fn is_dead_at(place: &Path) -> bool {
    File::open(place).is_err_and(|why| is_dead(&why))
}

/// Unmounts what a dead server left at `place`; refuses where a living one is.
fn clean_up(place: &Path) -> Result<Option<String>, Error> {
    if mount_at(place).is_none_or(|entry| entry.kind != KIND || entry.place != place) {
        return Ok(None);
    }
    let whose = match File::open(place) {
        Err(why) if is_dead(&why) => None,
        Err(why) if why.kind() == io::ErrorKind::PermissionDenied => {
            Some("another user's server: umount it, or")
        }
        _ => Some("a running server:"),
    };
    if let Some(whose) = whose {
        let text = format!("{} is the mount of {whose} give another folder", place.display());
        return Err(Error::new(Kind::Busy, text));
    }
    // Once it is unmounted, the kernel no longer names these by the place.
    let loops = loop_devices_below(place);
    unmount(place, false, true).or_else(|_| unmount(place, true, true))?;
    let mut note = format!("{} was still mounted by a server that is gone: unmounted", place.display());
    if !loops.is_empty() {
        let names: Vec<_> = loops.iter().map(|path| path.display().to_string()).collect();
        note += &format!(
            "; {} still on it, and fails every request: unmount what is on it, then losetup --detach",
            names.join(", ")
        );
    }
    Ok(Some(note))
}

fn unable() -> Error {
    let text = match (Path::new(DEVICE).exists(), fusermount::is_present()) {
        (false, _) => {
            format!("there is no {DEVICE}: load the kernel's module by 'modprobe fuse'; {IN_CONTAINERS}")
        }
        (true, false) => {
            format!("only root can mount without fusermount3: apt-get install fuse3; {IN_CONTAINERS}")
        }
        (true, true) => format!("mounting is forbidden here; {IN_CONTAINERS}"),
    };
    Error::new(Kind::NotSupported, text)
}
