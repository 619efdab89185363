//! Block devices of the kernel's NBD client: connected over netlink, found by who made them, and disconnected.
//!
//! What it is: [`NbdDevice`] is a `/dev/nbdN` of which the kernel gets the connection after its handshake.
//!
//! What it promises upwards: a device carries the name that its maker gave it, the kernel's *backend identifier*, so that a program
//! that starts later finds it. While its connection is gone, the kernel keeps requests for as long as it was told at the start, and
//! sends them over a connection that follows. Requests that the lost connection had sent are repeated after at most 30 s, also where
//! their answers were lost: an NBD server ends them before it ends.
//!
//! What it needs below: Linux 5.14 or later with its module `nbd`, CAP_NET_ADMIN in the first network namespace, and `/sys`.
//!
//! | file | holds |
//! | --- | --- |
//! | `message` | the bytes of netlink |
//! | `netlink` | its socket |
//!
//! Source: `linux/nbd-netlink.h`, `linux/nbd.h`.

mod message;
mod netlink;

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::fuse::open_as_far_as_allowed;
use crate::mutant;
use crate::sysfs::in_sysfs;
use message::NetlinkRequest;
use netlink::Family;

/// The family, its commands and their attributes.
const FAMILY: &str = "nbd";
mod command {
    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;
}
mod attribute {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONNECTION_TIMEOUT: u16 = 8;
    pub(super) const BACKEND: u16 = 10;
    /// Within `SOCKETS`, and within that.
    pub(super) const SOCKET: u16 = 1;
    pub(super) const DESCRIPTOR: u16 = 1;
}

/// Bytes of a block: as loop devices have them, so that a file system made on one is mounted on the other.
const BLOCK_BYTES: u64 = 512;

/// Seconds that a request may take over a connection: no limit, as a server that is slow is no server that is gone.
const NO_LIMIT: u64 = 0;

/// A connection after its handshake, in which neither structured replies nor extended headers were chosen: the kernel knows neither.
#[derive(Clone, Copy, Debug)]
pub struct Transmitting<'a> {
    /// The socket. It stays open in the kernel.
    pub socket: BorrowedFd<'a>,
    /// Bytes of the export.
    pub size: u64,
    /// Its transmission flags.
    pub flags: u16,
    /// How long requests wait for another connection once this one is lost, in whole seconds; as before where absent.
    pub timeout: Option<Duration>,
}

impl Transmitting<'_> {
    fn write(self, request: NetlinkRequest) -> NetlinkRequest {
        let descriptor = u32::try_from(self.socket.as_raw_fd()).expect("a descriptor is not negative");
        let request = request.u64(attribute::SIZE_BYTES, self.size).u64(attribute::TIMEOUT, NO_LIMIT);
        let request = match self.timeout {
            Some(timeout) => request.u64(attribute::DEAD_CONNECTION_TIMEOUT, timeout.as_secs()),
            None => request,
        };
        request.u64(attribute::SERVER_FLAGS, self.flags.into()).nested(attribute::SOCKETS, |sockets| {
            sockets.nested(attribute::SOCKET, |socket| socket.u32(attribute::DESCRIPTOR, descriptor))
        })
    }
}

/// Whether the kernel has the client. `ENOENT` where its module is not loaded, and in any network namespace but the first.
pub fn is_supported() -> io::Result<()> {
    Family::find(FAMILY).map(drop)
}

/// A device that is connected, or was until its server ended.
#[derive(Debug)]
pub struct NbdDevice {
    path: PathBuf,
    index: u32,
    backend: String,
}

impl NbdDevice {
    /// Gives a connection to a free device, which is known by `backend` from then on. The error is the kernel's: `EPERM` without
    /// CAP_NET_ADMIN, and that of [`is_supported`].
    pub fn connect(backend: &str, connection: Transmitting<'_>) -> io::Result<Self> {
        let write = |request: NetlinkRequest| {
            connection
                .write(request)
                .u64(attribute::BLOCK_SIZE_BYTES, BLOCK_BYTES)
                .text(attribute::BACKEND, backend)
        };
        let index = Family::find(FAMILY)?.ask(command::CONNECT, write, |made| made.u32(attribute::INDEX))?;
        let unnamed = || io::Error::other("the kernel does not say which device it has connected");
        let index = index.ok_or_else(unnamed)?;
        Ok(Self { path: format!("/dev/nbd{index}").into(), index, backend: backend.to_owned() })
    }

    /// The devices known by `backend`.
    pub fn all_of(backend: &str) -> Vec<Self> {
        all_in(Path::new("/sys/block"), backend)
    }

    /// Whether there is one known by `backend`; without sysfs there is none. The error names what of sysfs cannot be read.
    pub fn exists(backend: &str) -> io::Result<bool> {
        exists_in(Path::new("/sys/block"), backend)
    }

    /// Gives it another connection in place of one that is lost, of which it takes the size. A device whose connection works keeps that.
    pub fn reconnect(&self, connection: Transmitting<'_>) -> io::Result<()> {
        self.reconfigure(|request| connection.write(request))
    }

    /// Has it take another size.
    pub fn resize(&self, size: u64) -> io::Result<()> {
        self.reconfigure(|request| request.u64(attribute::SIZE_BYTES, size))
    }

    /// The kernel checks the identifier only where the device has one.
    fn reconfigure(&self, write: impl FnOnce(NetlinkRequest) -> NetlinkRequest) -> io::Result<()> {
        if !self.is_there() {
            return Err(io::Error::other("it is gone"));
        }
        self.ask(command::RECONFIGURE, |request| write(request).text(attribute::BACKEND, &self.backend))
    }

    /// Disconnects it, also while it is in use: what is in flight fails. It is gone once nobody has it open. One that is gone, and may be
    /// another program's by now, stays as it is.
    pub fn disconnect(&self) -> io::Result<()> {
        // Without sysfs the kernel alone knows.
        if in_sysfs(&self.path).exists() && !self.is_there() {
            return Ok(());
        }
        self.ask(command::DISCONNECT, |request| request)
    }

    fn ask(&self, command: u8, write: impl FnOnce(NetlinkRequest) -> NetlinkRequest) -> io::Result<()> {
        let write = |request: NetlinkRequest| write(request.u32(attribute::INDEX, self.index));
        Family::find(FAMILY)?.ask(command, write, |_| None::<()>).map(drop)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its device number.
    pub fn number(&self) -> io::Result<u64> {
        Ok(fs::metadata(&self.path)?.rdev())
    }

    /// Bytes that it has.
    pub fn size(&self) -> io::Result<u64> {
        let sectors = fs::read_to_string(in_sysfs(&self.path).join("size"))?;
        sectors.trim().parse::<u64>().map(|sectors| sectors * 512).map_err(io::Error::other)
    }

    /// Whether it is still the device of its maker.
    pub fn is_there(&self) -> bool {
        backend_in(&in_sysfs(&self.path)).as_ref() == Some(&self.backend)
    }

    /// Writes back what the kernel keeps of it, and has the server flush.
    pub fn flush(&self) -> io::Result<()> {
        if mutant::on("detach: skip the flush") {
            return Ok(());
        }
        open_as_far_as_allowed(&self.path)?.sync_all()
    }
}

/// Whether the kernel swaps to a block device (proc_swaps(5)). Of its path there only the end is certain: where a command of a service has
/// swapped to it, the rest was of a mount namespace that is gone.
pub fn is_swap(device: &Path) -> bool {
    let table = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut paths = table.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    paths.any(|path| Path::new(path).file_name() == device.file_name())
}

/// The same as [`NbdDevice::all_of`], with sysfs's folder of block devices elsewhere.
fn all_in(folder: &Path, backend: &str) -> Vec<NbdDevice> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let device = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let index = name.strip_prefix("nbd")?.parse().ok()?;
        let is_it = backend_in(&entry.path()).is_some_and(|found| found == backend);
        let path = Path::new("/dev").join(name);
        is_it.then(|| NbdDevice { path, index, backend: backend.to_owned() })
    };
    let mut found: Vec<_> = entries.filter_map(device).collect();
    found.sort_by_key(|device| device.index);
    found
}

/// The same as [`NbdDevice::exists`], with sysfs's folder of block devices elsewhere.
fn exists_in(folder: &Path, backend: &str) -> io::Result<bool> {
    let unread = |path: &Path, why: io::Error| {
        io::Error::new(why.kind(), format!("{} cannot be read ({why})", path.display()))
    };
    // A device may go while it is looked at.
    let is_gone = |why: &io::Error| matches!(why.raw_os_error(), Some(libc::ENOENT | libc::ENODEV));
    let entries = match fs::read_dir(folder) {
        Err(why) if is_gone(&why) => return Ok(false),
        entries => entries.map_err(|why| unread(folder, why))?,
    };
    for entry in entries {
        let entry = entry.map_err(|why| unread(folder, why))?;
        if entry.file_name().to_str().is_none_or(|name| !name.starts_with("nbd")) {
            continue;
        }
        let path = entry.path().join("backend");
        match fs::read_to_string(&path) {
            Ok(found) if found.trim_end_matches('\n') == backend => return Ok(true),
            Err(why) if !is_gone(&why) => return Err(unread(&path, why)),
            _ => {}
        }
    }
    Ok(false)
}

/// The backend identifier of a device, by its folder in sysfs; none while it has none.
fn backend_in(folder: &Path) -> Option<String> {
    let text = fs::read_to_string(folder.join("backend")).ok()?;
    Some(text.strip_suffix('\n').map_or(text.clone(), str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::message::{NetlinkReply, answers};
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn a_connection_has_the_attributes_that_the_kernel_asks_for() {
        let file = File::open("/dev/null").unwrap();
        let attributes = |timeout| {
            let connection = Transmitting { socket: file.as_fd(), size: 3 << 30, flags: 0x16d, timeout };
            let bytes = connection.write(NetlinkRequest::new(30, command::CONNECT, 1, 1)).bytes();
            let read = answers(&bytes, 1);
            let [NetlinkReply::Content(attributes)] = read[..] else { panic!("{read:?}") };
            attributes.map(|(kind, value)| (kind, value.to_vec())).collect::<Vec<_>>()
        };
        let number = |value: u64| value.to_ne_bytes().to_vec();
        let descriptor = file.as_raw_fd().to_ne_bytes();
        let shorts = |numbers: [u16; 4]| numbers.map(u16::to_ne_bytes).concat();
        let socket = [shorts([12, 1 << 15 | 1, 8, 1]), descriptor.to_vec()].concat();
        let mut expected =
            vec![(2, number(3 << 30)), (4, number(0)), (8, number(90)), (5, number(0x16d)), (7, socket)];
        assert_eq!(attributes(Some(Duration::from_secs(90))), expected);
        expected.remove(2);
        assert_eq!(attributes(None), expected, "the timeout stays as it is");
    }

    #[test]
    fn devices_are_found_by_their_backend_alone() {
        let folder = std::env::temp_dir().join(format!("spillway-nbd-{}", std::process::id()));
        for (name, backend) in [
            ("nbd11", "/run/a.ctl\n"),
            ("nbd2", "/run/a.ctl"),
            ("nbd3", "/run/a.ct\n"),
            ("nbdx", "/run/a.ctl\n"),
            ("sda", "/run/a.ctl\n"),
        ] {
            fs::create_dir_all(folder.join(name)).unwrap();
            fs::write(folder.join(name).join("backend"), backend).unwrap();
        }
        fs::create_dir_all(folder.join("nbd4")).unwrap();
        let found: Vec<_> = all_in(&folder, "/run/a.ctl").iter().map(|device| device.path.clone()).collect();
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, [Path::new("/dev/nbd2"), Path::new("/dev/nbd11")]);
    }

    #[test]
    fn what_cannot_be_read_is_named_and_what_is_gone_is_no_device() {
        let folder = std::env::temp_dir().join(format!("spillway-nbd-exists-{}", std::process::id()));
        let exists = || exists_in(&folder, "/run/a.ctl");
        let refusal = || exists().expect_err("it cannot be read").to_string();
        assert!(!exists().unwrap(), "there is no sysfs");
        fs::create_dir_all(folder.join("nbd0")).unwrap();
        // A folder is no text, for root too.
        fs::create_dir_all(folder.join("sda/backend")).unwrap();
        assert!(!exists().unwrap(), "it is not connected");
        fs::create_dir_all(folder.join("nbd1/backend")).unwrap();
        assert!(refusal().contains("nbd1/backend cannot be read ("), "{}", refusal());
        fs::remove_dir_all(folder.join("nbd1")).unwrap();
        fs::write(folder.join("nbd0/backend"), "/run/a.ctl\n").unwrap();
        assert!(exists().unwrap());
        fs::remove_dir_all(&folder).unwrap();
        fs::write(&folder, "").unwrap();
        let unread = refusal();
        fs::remove_file(&folder).unwrap();
        assert!(unread.starts_with(&format!("{} cannot be read (", folder.display())), "{unread}");
    }
}
