//! Listening sockets.
//!
//! A unix socket belongs to one server: a second one refuses, a socket file left by a dead server is replaced. Two servers
//! that start at the same moment are kept apart by a lock, held from the look at the old file until the new one listens. It lies on a
//! folder that nobody else can open, not on that of the socket: everybody who may read a folder may lock it, and keep it.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect,
    getsockname, listen, socket_with,
};
use spillway_core::{Error, Kind};

use crate::net::access::SocketAccess;
use crate::net::networks::AllowedNetworks;
use crate::net::peer::{self, Account};
use crate::net::peers::Peers;
use crate::runtime::driver::kind_of;

/// Connections that may wait to be accepted; the system's own limit applies too.
const BACKLOG: i32 = 1024;

/// Times to try for the folder's lock, and the pause between.
const LOCK_TRIES: usize = 100;
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// A socket that clients can connect to. A unix socket's file goes away with it, unless the socket was passed to this process.
pub struct Listener {
    pub(crate) fd: Arc<OwnedFd>,
    address: Address,
    allowed: Option<Arc<AllowedNetworks>>,
    pub(crate) peers: Arc<Peers>,
}

enum Address {
    /// With the identity of the file, where that is this process's to remove.
    Unix {
        path: PathBuf,
        identity: Option<(u64, u64)>,
    },
    Tcp(SocketAddr),
}

impl fmt::Display for Listener {
    /// `unix:/path` or `tcp:host:port`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.address {
            Address::Unix { path, .. } => write!(f, "unix:{}", path.display()),
            Address::Tcp(address) => write!(f, "tcp:{address}"),
        }
    }
}

impl Listener {
    fn new(fd: OwnedFd, address: Address) -> Self {
        Self { fd: Arc::new(fd), address, allowed: None, peers: Arc::default() }
    }

    /// Listens on a socket file of the given access, such as mode 0600: this user only. Of two that replace the socket of a dead server at
    /// the same moment, one may lose its own: see [`Listener::unix_in_turn`].
    ///
    /// [`Kind::Busy`] if a server answers there, or if something other than a socket is in the way; [`Kind::TooLong`] for a path of more
    /// than 107 bytes; otherwise what the system says, such as [`Kind::NotFound`] or [`Kind::Denied`] for the folder.
    pub fn unix(path: impl AsRef<Path>, access: impl Into<SocketAccess>) -> Result<Self, Error> {
        Self::make(path.as_ref(), access.into())
    }

    /// The same, one at a time among all who name the folder `turn`, which nobody else can open.
    pub fn unix_in_turn(path: impl AsRef<Path>, access: SocketAccess, turn: &Path) -> Result<Self, Error> {
        let _lock = lock_folder(turn)?;
        Self::make(path.as_ref(), access)
    }

    fn make(path: &Path, access: SocketAccess) -> Result<Self, Error> {
        let address = SocketAddrUnix::new(path).map_err(|_| {
            let text = format!(
                "the socket path {} is too long: the system allows 107 bytes, this has {}; choose a shorter one",
                path.display(),
                path.as_os_str().len()
            );
            Error::new(Kind::TooLong, text)
        })?;
        remove_stale(path, &address)?;
        let failed = |error: io::Error| {
            Error::new(kind_of(&error), format!("the socket {} could not be made: {error}", path.display()))
        };
        let fd = bound_file(&address).map_err(|error| failed(error.into()))?;
        if let Err(error) = access.give(path).and_then(|()| Ok(listen(&fd, BACKLOG)?)) {
            // Nobody has connected to it.
            let _ = std::fs::remove_file(path);
            let group = access.group.map_or(String::new(), |group| format!(" and group {group}"));
            let text = format!(
                "the socket {} cannot have mode {:04o}{group}: {error}; a user can give a group that the user is in",
                path.display(),
                access.mode
            );
            return Err(Error::new(kind_of(&error), text));
        }
        let made = std::fs::symlink_metadata(path).map_err(failed)?;
        let identity = Some((made.dev(), made.ino()));
        Ok(Self::new(fd, Address::Unix { path: path.into(), identity }))
    }

    /// Listens on `host:port`; port 0 takes a free one, see [`Listener::tcp_address`].
    ///
    /// What the system says of the last address that the name stands for, such as [`Kind::Denied`] for a port below 1024; the words
    /// name the address and how to write one.
    pub fn tcp(address: &str) -> Result<Self, Error> {
        let failed = |error: io::Error| {
            let text =
                format!("cannot listen on {address}: {error}; give HOST:PORT, such as 127.0.0.1:10809");
            Error::new(kind_of(&error), text)
        };
        let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
        for candidate in address.to_socket_addrs().map_err(failed)? {
            match listening_port(candidate) {
                Ok((fd, bound)) => return Ok(Self::new(fd, Address::Tcp(bound))),
                Err(error) => last = error,
            }
        }
        Err(failed(last))
    }

    /// The listener that is `fd`, which listens at `bound`; `None` where that is neither of TCP nor a file.
    pub(super) fn of(fd: OwnedFd, bound: SocketAddrAny) -> Option<Self> {
        let unix = || {
            let bound = SocketAddrUnix::try_from(bound.clone()).ok()?;
            let path = Path::new(OsStr::from_bytes(bound.path()?.to_bytes())).to_owned();
            Some(Address::Unix { path, identity: None })
        };
        let address = SocketAddr::try_from(bound.clone()).ok().map(Address::Tcp).or_else(unix)?;
        Some(Self::new(fd, address))
    }

    /// The path of a unix socket.
    pub fn unix_path(&self) -> Option<&Path> {
        match &self.address {
            Address::Unix { path, .. } => Some(path),
            Address::Tcp(_) => None,
        }
    }

    /// The address of a TCP socket, with the port that was taken.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        match self.address {
            Address::Unix { .. } => None,
            Address::Tcp(address) => Some(address),
        }
    }

    /// Takes only connections of hosts that are `allowed`, where it has a port.
    pub fn allowing(mut self, allowed: Arc<AllowedNetworks>) -> Self {
        self.allowed = Some(allowed);
        self
    }

    /// Counts the connections of each peer together with those of other sockets.
    pub fn counting(mut self, peers: Arc<Peers>) -> Self {
        self.peers = peers;
        self
    }

    /// Takes the next waiting connection.
    pub(crate) fn accept(&self) -> io::Result<(OwnedFd, Account)> {
        let (fd, address) = acceptfrom_with(&self.fd, SocketFlags::CLOEXEC)?;
        if matches!(self.address, Address::Unix { .. }) {
            let account = Account::behind(&fd);
            return Ok((fd, account));
        }
        peer::set_up(&fd);
        let account = Account::of(address);
        match self.allowed.as_ref().is_none_or(|allowed| allowed.admits(account)) {
            true => Ok((fd, account)),
            false => Err(io::Error::from_raw_os_error(libc::ECONNABORTED)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Address::Unix { path, identity } = &self.address else { return };
        let Some(identity) = identity else { return };
        let ours = std::fs::symlink_metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == *identity);
        if ours && let Err(error) = std::fs::remove_file(path) {
            tracing::warn!("the socket file {} could not be removed: {error}", path.display());
        }
    }
}

fn bound_file(address: &SocketAddrUnix) -> rustix::io::Result<OwnedFd> {
    let fd = new_socket(AddressFamily::UNIX)?;
    // The file inherits the socket's mode: it never exists with a wider one.
    fchmod(&fd, Mode::from_bits_truncate(SocketAccess::OWNER_ONLY.mode))?;
    bind(&fd, address)?;
    Ok(fd)
}

fn listening_port(address: SocketAddr) -> io::Result<(OwnedFd, SocketAddr)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let fd = new_socket(family)?;
    rustix::net::sockopt::set_socket_reuseaddr(&fd, true)?;
    bind(&fd, &address)?;
    listen(&fd, BACKLOG)?;
    let bound = getsockname(&fd)?;
    Ok((fd, SocketAddr::try_from(bound)?))
}

/// Non-blocking: a connection may be gone again between readiness and accept.
fn new_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

fn lock_folder(folder: &Path) -> Result<File, Error> {
    let failed = |error: io::Error| {
        let text = format!("the folder {} of sockets cannot be used: {error}", folder.display());
        Error::new(kind_of(&error), text)
    };
    let file = File::open(folder).map_err(failed)?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(failed(error.into())),
        }
    }
    let text = format!("{}: locked by another program; wait until it is done", folder.display());
    Err(Error::new(Kind::Busy, text))
}

fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), Error> {
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let name = path.display();
    if !found.file_type().is_socket() {
        let text = format!("{name} exists and is not a socket: remove it, or choose another socket path");
        return Err(Error::new(Kind::Busy, text));
    }
    if answers(address) {
        let text = format!("a server already answers on {name}: stop it, or choose another socket path");
        return Err(Error::new(Kind::Busy, text));
    }
    std::fs::remove_file(path).map_err(|error| {
        let text = format!("the socket file {name} of a dead server could not be removed: {error}");
        Error::new(kind_of(&error), text)
    })
}

/// Whether a server listens on a unix socket: only a refusal proves that none does. Waits for nothing.
pub fn is_listening(path: &Path) -> bool {
    path.symlink_metadata().is_ok() && SocketAddrUnix::new(path).is_ok_and(|address| answers(&address))
}

/// Connects to a unix socket. The error is `WouldBlock` where its server takes no connection within `patience`.
pub fn connect_within(path: &Path, patience: Duration) -> io::Result<UnixStream> {
    let fd = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&fd, Timeout::Send, Some(patience))?;
    connect(&fd, &SocketAddrUnix::new(path)?)?;
    set_socket_timeout(&fd, Timeout::Send, None)?;
    Ok(fd.into())
}

/// Whether a server listens there: only a refusal proves that none does.
fn answers(address: &SocketAddrUnix) -> bool {
    let Ok(fd) = new_socket(AddressFamily::UNIX) else { return true };
    !matches!(
        connect(fd.as_fd(), address),
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT | rustix::io::Errno::PROTOTYPE)
    )
}

#[cfg(test)]
mod tests {
    use spillway_core::session::Peer;

    use super::*;
    use crate::net::peer::peer_of;

    fn scratch(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("spillway-{}-{name}.sock", std::process::id()))
    }

    #[test]
    fn a_live_server_is_respected_and_its_file_goes_with_it() {
        let path = scratch("live");
        let first = Listener::unix(&path, 0o600).unwrap();
        assert_eq!(std::fs::symlink_metadata(&path).unwrap().mode() & 0o777, 0o600);
        let error = Listener::unix(&path, 0o600).err().expect("the first one answers");
        assert!(error.kind == Kind::Busy && error.message().contains("already answers"), "{error}");
        drop(first);
        assert!(!path.exists());
    }

    #[test]
    fn the_socket_of_a_dead_server_is_replaced() {
        let path = scratch("stale");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "the standard library leaves the file");
        let listener = Listener::unix(&path, 0o600).unwrap();
        assert!(listener.to_string().ends_with("stale.sock"));
    }

    #[test]
    fn anything_else_in_the_way_is_left_alone() {
        let path = scratch("file");
        std::fs::write(&path, "precious").unwrap();
        let error = Listener::unix(&path, 0o600).err().expect("not a socket");
        assert!(error.message().contains("not a socket"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_is_no_longer_ours_stays() {
        let path = scratch("taken");
        let listener = Listener::unix(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "another").unwrap();
        drop(listener);
        assert!(path.exists());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn of_many_that_start_at_once_one_wins() {
        let path = scratch("race");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let turn = scratch("turn");
        std::fs::create_dir(&turn).unwrap();
        let start = std::sync::Barrier::new(8);
        let winners: Vec<Listener> = std::thread::scope(|scope| {
            let one = || {
                start.wait();
                Listener::unix_in_turn(&path, SocketAccess::OWNER_ONLY, &turn).ok()
            };
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(one)).collect();
            threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(winners.len(), 1);
        std::fs::remove_dir(&turn).unwrap();
    }

    /// Everybody may lock a folder that everybody may read.
    #[test]
    fn the_lock_of_the_socket_s_folder_is_not_waited_for() {
        let (folder, turn) = (scratch("shared"), scratch("own-turn"));
        [&folder, &turn].into_iter().for_each(|folder| std::fs::create_dir(folder).unwrap());
        let held = File::open(&folder).unwrap();
        held.lock().unwrap();
        drop(Listener::unix_in_turn(folder.join("s"), SocketAccess::OWNER_ONLY, &turn).unwrap());
        [&folder, &turn].into_iter().for_each(|folder| std::fs::remove_dir(folder).unwrap());
    }

    #[test]
    fn a_server_that_takes_no_connections_is_waited_for_so_long_and_lives() {
        let path = scratch("full");
        let listener = bound_file(&SocketAddrUnix::new(&path).unwrap()).unwrap();
        listen(&listener, 0).unwrap();
        let waiting = connect_within(&path, Duration::from_secs(60)).unwrap();
        let refused = connect_within(&path, Duration::from_millis(1)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(is_listening(&path));
        drop((waiting, listener));
        assert!(!is_listening(&path), "its file is still there");
        std::fs::remove_file(&path).unwrap();
        assert!(!is_listening(&path));
    }

    #[test]
    fn who_connected_is_known_by_process_or_address() {
        let path = scratch("peer");
        let (unix, tcp) = (Listener::unix(&path, 0o600).unwrap(), Listener::tcp("127.0.0.1:0").unwrap());
        let _here = connect_within(&path, Duration::from_secs(60)).unwrap();
        assert_eq!(peer_of(&unix.accept().unwrap().0), Peer::Program(std::process::id()));
        let there = std::net::TcpStream::connect(tcp.tcp_address().unwrap()).unwrap();
        assert_eq!(peer_of(&tcp.accept().unwrap().0), Peer::Address(there.local_addr().unwrap()));
    }

    #[test]
    fn bad_addresses_are_named() {
        let long = "x".repeat(200);
        assert!(Listener::unix(format!("/tmp/{long}"), 0o600).err().unwrap().message().contains("too long"));
        assert!(Listener::tcp("nonsense").err().unwrap().message().contains("nonsense"));
        let listener = Listener::tcp("127.0.0.1:0").unwrap();
        assert_ne!(listener.tcp_address().unwrap().port(), 0);
    }
}
