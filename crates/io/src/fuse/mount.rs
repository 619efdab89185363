//! A mount point and the descriptor behind it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};
use spillway_core::{Error, Kind};

use super::{fusermount, mount_table};
use crate::driver::kind_of;

const DEVICE: &str = "/dev/fuse";

/// The file system's type, by which a mount of ours is known.
const KIND: &str = "fuse.spillway";

/// `FUSE_DEV_IOC_CLONE` of `linux/fuse.h`, `_IOR(229, 0, uint32_t)`.
const CLONE: libc::Ioctl = 0x8004_e500u32 as libc::Ioctl;

/// What a container needs.
const IN_CONTAINERS: &str = "in a container: --device /dev/fuse --cap-add SYS_ADMIN";

/// A mount point, and the descriptor that its requests come from.
pub struct Mount {
    place: PathBuf,
    pub(super) fd: Arc<OwnedFd>,
    /// Whether `fusermount3` has to unmount it.
    helped: bool,
}

impl Mount {
    /// Mounts at the folder `place`, and says what was cleaned up before.
    ///
    /// [`Kind::Busy`] where a living server has it; [`Kind::NotFound`] where there is no such folder, or no `/dev/fuse`;
    /// [`Kind::NotSupported`] where nobody may mount; otherwise what the system said.
    pub fn at(place: &Path) -> Result<(Self, Option<String>), Error> {
        let place = resolved(place)?;
        let note = clean_up(&place)?;
        let about =
            |why: io::Error| Error::new(kind_of(&why), format!("cannot mount at {}: {why}", place.display()));
        if !std::fs::metadata(&place).map_err(about)?.is_dir() {
            let text = format!("cannot mount at {}: it is no folder", place.display());
            return Err(Error::invalid(text));
        }
        let (fd, helped) = match mount_here(&place) {
            Err(why) if why == Errno::PERM || why == Errno::ACCESS => {
                if !Path::new(DEVICE).exists() || !fusermount::is_present() {
                    return Err(unable());
                }
                (fusermount::mount(&place, "fsname=spillway,subtype=spillway,default_permissions")?, true)
            }
            Err(Errno::NOENT | Errno::NODEV | Errno::NXIO) => return Err(unable()),
            mounted => (mounted.map_err(|why| about(why.into()))?, false),
        };
        let flags = fcntl_getfl(&fd).map_err(|why| about(why.into()))?;
        fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(|why| about(why.into()))?;
        Ok((Self { place, fd: Arc::new(fd), helped }, note))
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        &self.place
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

    /// Unmounts; [`Kind::Busy`] while something below is in use.
    pub(super) fn unmount(&self) -> Result<(), Error> {
        unmount(&self.place, self.helped, false)
    }

    /// Whether the kernel lists it.
    pub(super) fn is_listed(&self) -> bool {
        is_listed(&self.place)
    }

    /// Takes the mount out of sight, whoever uses it.
    pub(super) fn detach(&self) -> Result<(), Error> {
        unmount(&self.place, self.helped, true)
    }
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

fn mount_here(place: &Path) -> Result<OwnedFd, Errno> {
    let fd = open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let options =
        format!("fd={},rootmode=40000,user_id={user},group_id={group},default_permissions", fd.as_raw_fd());
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

/// Whether the kernel lists a mount of ours at `place`.
fn is_listed(place: &Path) -> bool {
    mount_table::entries().iter().any(|entry| entry.place == place && entry.kind == KIND)
}

/// Unmounts what a dead server left at `place`; refuses where a living one is.
fn clean_up(place: &Path) -> Result<Option<String>, Error> {
    if !is_listed(place) {
        return Ok(None);
    }
    if !File::open(place).is_err_and(|why| is_dead(&why)) {
        let text = format!("{} is the mount of a running server: give another folder", place.display());
        return Err(Error::new(Kind::Busy, text));
    }
    // Once it is unmounted, the kernel no longer names these by the place.
    let loops = mount_table::loop_devices_below(place);
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
