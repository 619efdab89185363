//! Loop devices in two steps, which losetup cannot separate: one program opens the device, another one the file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

/// Commands of `linux/loop.h`.
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;

/// Flag: direct I/O.
const DIRECT_IO: u32 = 16;

/// `struct loop_config` of `linux/loop.h`, with the fields of its `info`.
#[derive(Default)]
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    device_inode_rdevice: [u64; 3],
    offset_and_limit: [u64; 2],
    number: u32,
    encryption: [u32; 2],
    flags: u32,
    /// Two names, for people.
    names: [[u64; 8]; 2],
    key_and_rest: [u64; 6],
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Config>() == 304, "as the kernel has it");

/// A loop device that is free now, and where it is. The error is the kernel's: `EACCES` for others than root, `ENOENT` without the driver.
pub fn free_loop_device() -> io::Result<(File, PathBuf)> {
    let control = open(Path::new("/dev/loop-control"))?;
    // SAFETY: the call takes no argument and returns a number.
    let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    let path = PathBuf::from(format!("/dev/loop{number}"));
    Ok((open(&path)?, path))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Sets a free loop device up over `file`, with direct I/O. The kernel asks for the size of the file in the name of who calls.
/// The error is the kernel's: `EBUSY` where another has taken the device.
pub fn set_up_loop_device(device: impl AsFd, file: impl AsFd) -> io::Result<()> {
    let fd = u32::try_from(file.as_fd().as_raw_fd()).expect("a descriptor is not negative");
    let config = Config { fd, flags: DIRECT_IO, ..Config::default() };
    // SAFETY: the call reads a structure of this layout at the address that it is given.
    done(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, std::ptr::from_ref(&config)) })
}

/// Has a loop device take the size that its file has now, for which the kernel asks in the name of who calls.
/// The error is the kernel's: `ENXIO` where it stands on no file.
pub fn resize_loop_device(device: impl AsFd) -> io::Result<()> {
    // SAFETY: the call takes no argument.
    done(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_SET_CAPACITY) })
}

fn done(answer: libc::c_int) -> io::Result<()> {
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
