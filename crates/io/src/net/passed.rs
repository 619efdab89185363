//! Listening sockets that a service manager passes to this process, by the protocol of sd_listen_fds(3).

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::sockopt::{socket_acceptconn, socket_type};
use rustix::net::{SocketType, getsockname};
use spillway_core::sync::{AtomicBool, Ordering};
use spillway_core::{Error, Kind};

use super::socket::Listener;

/// Their number, and the process that they are for.
const COUNT: &str = "LISTEN_FDS";
const PROCESS: &str = "LISTEN_PID";

/// Their names, with colons in between.
const NAMES: &str = "LISTEN_FDNAMES";

/// What a service manager tells one process alone.
pub const PASSED_VARIABLES: [&str; 3] = [COUNT, PROCESS, NAMES];

/// The descriptor of the first.
const FIRST: RawFd = 3;

/// Sockets at most.
const SOCKETS_MAX: RawFd = 16;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// How many sockets are passed to this process.
pub fn passed_count() -> Result<usize, Error> {
    let text = |name| std::env::var(name).ok();
    counted(text(PROCESS), text(COUNT))
}

fn counted(process: Option<String>, count: Option<String>) -> Result<usize, Error> {
    let is_ours = process.is_some_and(|id| id == std::process::id().to_string());
    let Some(count) = count.filter(|_| is_ours) else { return Ok(0) };
    let number = count.parse().ok().filter(|count| (0..=SOCKETS_MAX as usize).contains(count));
    number.ok_or_else(|| Error::invalid(format!("{COUNT} is {count:?}: 0 to {SOCKETS_MAX} are allowed")))
}

/// Takes them, with their names; an unnamed one is called as its manager would: `unknown`. To be called once where there are any.
///
/// [`Kind::Invalid`] for a socket that [`Listener`] cannot be; [`Kind::NotFound`] where a descriptor is not there.
pub fn passed() -> Result<Vec<(String, Listener)>, Error> {
    let count = passed_count()?;
    if count == 0 {
        return Ok(Vec::new());
    }
    assert!(!TAKEN.swap(true, Ordering::Relaxed), "sockets are taken once");
    let names = std::env::var(NAMES).unwrap_or_default();
    let names: Vec<&str> = names.split(':').collect();
    let all = (FIRST..).take(count).enumerate();
    all.map(|(index, number)| {
        let name = names.get(index).copied().filter(|name| !name.is_empty()).unwrap_or("unknown").to_owned();
        let about =
            |error: &Error| Error::new(error.kind, format!("socket {name} of the service manager: {error}"));
        let made = taken(number).and_then(listener).map_err(|error| about(&error))?;
        Ok((name, made))
    })
    .collect()
}

fn listener(fd: OwnedFd) -> Result<Listener, Error> {
    let failed = |errno: Errno| Error::invalid(format!("it cannot be used: {errno}"));
    let listens = socket_acceptconn(&fd).map_err(failed)?;
    if !listens || socket_type(&fd).map_err(failed)? != SocketType::STREAM {
        return Err(Error::invalid("it does not listen for streams (ListenStream= of a socket unit)"));
    }
    fcntl_setfd(&fd, FdFlags::CLOEXEC).map_err(failed)?;
    let flags = fcntl_getfl(&fd).map_err(failed)?;
    fcntl_setfl(&fd, flags | OFlags::NONBLOCK).map_err(failed)?;
    let bound = getsockname(&fd).map_err(failed)?;
    let made = Listener::of(fd, bound);
    made.ok_or_else(|| Error::invalid("it is neither of TCP nor a unix socket with a file"))
}

fn taken(number: RawFd) -> Result<OwnedFd, Error> {
    let open = std::fs::read_link(format!("/proc/self/fd/{number}"));
    if !open.is_ok_and(|open| open.to_string_lossy().starts_with("socket:")) {
        return Err(Error::new(Kind::NotFound, format!("descriptor {number} is no socket")));
    }
    // SAFETY: it is open, and was passed to this process, which takes it once: nothing else here has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_what_is_for_this_process_counts() {
        let own = Some(std::process::id().to_string());
        assert_eq!(counted(own.clone(), Some("2".into())).unwrap(), 2);
        assert_eq!(counted(Some("1".into()), Some("2".into())).unwrap(), 0);
        assert_eq!(counted(None, Some("2".into())).unwrap(), 0);
        assert_eq!(counted(own.clone(), None).unwrap(), 0);
        for wrong in ["x", "-1", "17", ""] {
            let refused = counted(own.clone(), Some(wrong.into())).unwrap_err();
            assert!(refused.message().contains("0 to 16"), "{refused}");
        }
    }

    #[test]
    fn a_socket_that_listens_for_streams_is_a_listener_and_its_file_stays() {
        let folder = std::env::temp_dir().join(format!("spillway-passed-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("s");
        let unix = listener(UnixListener::bind(&path).unwrap().into()).unwrap();
        assert_eq!(unix.unix_path(), Some(path.as_path()));
        drop(unix);
        assert!(path.exists(), "it is the manager's");
        std::fs::remove_dir_all(&folder).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = tcp.local_addr().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        assert_eq!(listener(tcp.into()).unwrap().tcp_address(), Some(address));
        assert!(listener(stream.into()).err().unwrap().message().contains("does not listen"));
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(listener(datagrams.into()).err().unwrap().message().contains("does not listen"));
    }

    #[test]
    fn a_descriptor_that_is_no_socket_is_left_alone() {
        assert_eq!(taken(0x7fff).unwrap_err().kind, Kind::NotFound);
    }
}
