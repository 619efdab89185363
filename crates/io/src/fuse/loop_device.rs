//! Loop devices: set up, found by their backing file, and detached, each by one descriptor, so that nothing else is meant halfway.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::mutant;
use crate::sysfs::in_sysfs;

/// Commands of `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;

/// Flag: direct I/O.
const DIRECT_IO: u32 = 16;

/// Times that a free device may be taken by another program before it is set up.
const TRIES: usize = 64;

/// `struct loop_info64` of `linux/loop.h`.
#[derive(Default)]
#[repr(C)]
struct Status {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset_and_limit: [u64; 2],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    /// Two names, for people.
    names: [[u64; 8]; 2],
    key_and_rest: [u64; 6],
}

/// `struct loop_config` of `linux/loop.h`.
#[derive(Default)]
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    status: Status,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Status>() == 232 && size_of::<Config>() == 304, "as the kernel has them");

/// The file or block device behind a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoopBacking {
    /// Numbers of the file system and of the file in it.
    pub(crate) inode: (u64, u64),
    /// Number of the block device that it is; 0 for a file.
    pub(crate) rdevice: u64,
}

/// A loop device. It is open, so that the kernel keeps it over its file, even if it is given up meanwhile.
pub struct LoopDevice {
    file: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Opens one that is there.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { file: open_as_far_as_allowed(path)?, path: path.to_owned() })
    }

    /// Opens one that is there to read: what closes one that was open for writing has udev look at it again.
    pub(crate) fn open_to_read(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)?, path: path.to_owned() })
    }

    /// Sets a free one up over `file`, with direct I/O, by `set_up`, which gets the device. The error is the kernel's: `EACCES` for
    /// others than root, `ENOENT` without the driver.
    pub(super) fn free(mut set_up: impl FnMut(&Self) -> io::Result<()>) -> io::Result<Self> {
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut tries = 0..TRIES;
        loop {
            // SAFETY: the call takes no argument and returns a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let device = Self::open(&PathBuf::from(format!("/dev/loop{number}")))?;
            match set_up(&device) {
                Ok(()) => return Ok(device),
                Err(why) if why.raw_os_error() == Some(libc::EBUSY) && tries.next().is_some() => {}
                Err(why) => return Err(why),
            }
        }
    }

    /// Sets it up over `file`, for whose size the kernel asks in the name of the calling thread.
    pub(super) fn set_up(&self, file: impl AsFd) -> io::Result<()> {
        let fd = u32::try_from(file.as_fd().as_raw_fd()).expect("a descriptor is not negative");
        let status = Status { flags: DIRECT_IO, ..Status::default() };
        let config = Config { fd, status, ..Config::default() };
        // SAFETY: the call reads a structure of this layout at the address that it is given.
        done(unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config)) })
    }

    /// What is behind it, for which the kernel asks in the name of the calling thread. The error is the kernel's: `ENXIO` where
    /// nothing is.
    pub(crate) fn backing(&self) -> io::Result<LoopBacking> {
        let mut status = Status::default();
        // SAFETY: the call writes a structure of this layout at the address that it is given.
        done(unsafe {
            libc::ioctl(self.file.as_raw_fd(), LOOP_GET_STATUS64, std::ptr::from_mut(&mut status))
        })?;
        Ok(LoopBacking { inode: (status.device, status.inode), rdevice: status.rdevice })
    }

    /// Has it take the size that its file has, for which the kernel asks in the name of the calling thread.
    pub(super) fn take_size(&self) -> io::Result<()> {
        // SAFETY: the call takes no argument.
        done(unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_SET_CAPACITY) })
    }

    /// Gives it up: it is gone once everybody has closed it.
    pub fn give_up(self) -> io::Result<()> {
        // SAFETY: the call takes no argument.
        done(unsafe { libc::ioctl(self.file.as_raw_fd(), LOOP_CLR_FD) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its device number.
    pub fn number(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.rdev())
    }

    /// Writes back what the kernel keeps of it, and has the file below flushed.
    pub fn flush(&self) -> io::Result<()> {
        if mutant::on("detach: skip the flush") {
            return Ok(());
        }
        self.file.sync_all()
    }
}

/// Opens a file or device to write, or to read where it is read-only.
pub(crate) fn open_as_far_as_allowed(path: &Path) -> io::Result<File> {
    let open = |writes| OpenOptions::new().read(true).write(writes).open(path);
    match open(true) {
        Err(why) if matches!(why.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => open(false),
        outcome => outcome,
    }
}

/// The path of the file behind a loop device, as the kernel shows it in the device's folder in sysfs; none where nothing is.
pub(crate) fn file_shown_in(folder: &Path) -> Option<PathBuf> {
    let mut path = fs::read(folder.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

/// The path of the file behind a loop device; see [`LoopDevice::path`].
pub fn backing_file(device: &Path) -> Option<PathBuf> {
    file_shown_in(&in_sysfs(device))
}

/// All loop devices that have a file, with its path.
pub(crate) fn loop_devices() -> Vec<(PathBuf, PathBuf)> {
    let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let devices = devices.map(|device| Path::new("/dev").join(device.file_name()));
    let mut found: Vec<_> =
        devices.filter_map(|device| backing_file(&device).map(|file| (device, file))).collect();
    found.sort();
    found
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
