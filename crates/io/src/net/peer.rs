//! Who a connection comes from, and whether its host is still there.
//!
//! A host that has vanished, by a cut cable or a power failure, says nothing, and the kernel may take a quarter of an hour to see it. Keepalive
//! makes it ask hosts that are idle; what it has asked, sent or probed and nobody has acknowledged for long shows a host that is gone.
//! `TCP_USER_TIMEOUT` is no way to say that: it also ends connections of a host that is there but has taken nothing for so long, as a client
//! that was stopped does, because it ignores that such a host acknowledges probes.
//!
//! Sources: tcp(7); `tcp_info` of `linux/tcp.h`.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::{SocketAddrAny, getpeername, sockopt};
use spillway_core::session::Peer;

/// How long a host may be silent before the kernel asks, and between its questions.
const SILENCE_MAX: Duration = Duration::from_secs(20);
const QUESTION_INTERVAL: Duration = Duration::from_secs(5);

/// How long something may be unacknowledged before its host has vanished: six questions.
const VANISHED_AFTER: Duration = Duration::from_secs(50);

/// Longest pause between two tries to get something to a host, where the kernel lets it be set (Linux 6.15).
const TRY_INTERVAL_MAX_MS: i32 = 10_000;

/// `TCP_RTO_MAX_MS` of `linux/tcp.h`.
const TCP_RTO_MAX_MS: libc::c_int = 44;

/// Whom connections count for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Account {
    /// A user by number, who came by a unix socket.
    User(u32),
    /// A host by its address.
    Host(IpAddr),
    /// All hosts of an IPv6 network, by the first half of their addresses.
    Network(u64),
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Account::User(user) => write!(f, "user {user}"),
            Account::Host(host) => write!(f, "host {host}"),
            Account::Network(bits) => {
                write!(f, "network {}/64", Ipv6Addr::from_bits(u128::from(*bits) << 64))
            }
        }
    }
}

impl Account {
    /// The user whose process has the other end of a unix socket.
    pub(crate) fn behind(socket: &OwnedFd) -> Self {
        // A user that is not told would be nobody else.
        Account::User(credentials(socket).map_or(u32::MAX, |found| found.uid))
    }

    /// The host of a TCP connection. The kernel names the other end of each; one without would count for a host of its own.
    pub(crate) fn of(other_end: Option<SocketAddrAny>) -> Self {
        let address = other_end.and_then(|address| SocketAddr::try_from(address).ok());
        Self::at(address.map_or(Ipv4Addr::UNSPECIFIED.into(), |address| address.ip()))
    }

    /// The host of that address.
    pub(crate) fn at(address: IpAddr) -> Self {
        Account::Host(address.to_canonical())
    }

    /// That of the network of an IPv6 host: a host there may take as many addresses as it likes.
    pub(crate) fn network(self) -> Option<Self> {
        match self {
            Account::Host(IpAddr::V6(address)) => Some(Account::Network((address.to_bits() >> 64) as u64)),
            _ => None,
        }
    }
}

/// Sets up the socket of a TCP connection. An option that is refused only makes it slower, or a vanished host be noticed later.
pub(crate) fn set_up(socket: &OwnedFd) {
    let set = sockopt::set_tcp_nodelay(socket, true)
        .and_then(|()| sockopt::set_socket_keepalive(socket, true))
        .and_then(|()| sockopt::set_tcp_keepidle(socket, SILENCE_MAX))
        .and_then(|()| sockopt::set_tcp_keepintvl(socket, QUESTION_INTERVAL))
        .and_then(|()| {
            let questions = (VANISHED_AFTER - SILENCE_MAX).as_secs() / QUESTION_INTERVAL.as_secs();
            sockopt::set_tcp_keepcnt(socket, questions as u32)
        });
    if let Err(error) = set {
        tracing::debug!("an option of a connection is refused: {error}");
    }
    let interval: libc::c_int = TRY_INTERVAL_MAX_MS;
    // SAFETY: the call reads the number, which lives until it returns. Older kernels do not know the option.
    unsafe {
        let (at, len) = ((&raw const interval).cast(), size_of_val(&interval) as u32);
        libc::setsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, TCP_RTO_MAX_MS, at, len);
    }
}

/// Whether the host of a TCP connection has vanished.
pub(crate) fn has_vanished(socket: &OwnedFd) -> bool {
    Acknowledged::of(socket).is_ok_and(|acknowledged| acknowledged.is_overdue())
}

/// What a host has acknowledged.
#[derive(Clone, Copy, Debug)]
struct Acknowledged {
    /// Segments that were not acknowledged.
    unacked: u32,
    /// Questions that were not answered.
    probes: u8,
    /// Since the last acknowledgement.
    silence: Duration,
}

impl Acknowledged {
    fn of(socket: &OwnedFd) -> io::Result<Self> {
        // SAFETY: it has numbers only, which may be zero.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut len = size_of_val(&info) as u32;
        // SAFETY: the call fills no more than `len` bytes of the numbers, which live until it returns.
        let failed = unsafe {
            let at = (&raw mut info).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, at, &mut len)
        };
        if failed != 0 {
            return Err(io::Error::last_os_error());
        }
        let silence = Duration::from_millis(info.tcpi_last_ack_recv.into());
        Ok(Self { unacked: info.tcpi_unacked, probes: info.tcpi_probes, silence })
    }

    /// A host that is there answers each question, however little it takes: then none is open, and nothing is unacknowledged.
    fn is_overdue(&self) -> bool {
        let open = self.unacked > 0 || self.probes > 0;
        open && self.silence >= VANISHED_AFTER
    }
}

/// Who connected: of a unix socket the process that did, as the kernel noted it then.
pub(crate) fn peer_of(socket: &OwnedFd) -> Peer {
    let address = getpeername(socket).ok().and_then(|address| SocketAddr::try_from(address?).ok());
    match (address, id_behind(socket)) {
        (Some(address), _) => Peer::Address(address),
        (None, Some(process)) => Peer::Program(process),
        (None, None) => Peer::Unknown,
    }
}

/// `None` where the process lives in a namespace that this one cannot look into.
fn id_behind(socket: &OwnedFd) -> Option<u32> {
    u32::try_from(credentials(socket)?.pid).ok().filter(|&process| process > 0)
}

/// Of the process that connected, as the kernel noted them then; `None` for what is no unix socket.
fn credentials(socket: &OwnedFd) -> Option<libc::ucred> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of_val(&found) as libc::socklen_t;
    let (fd, to) = (socket.as_raw_fd(), std::ptr::from_mut(&mut found).cast());
    // SAFETY: the call writes at most `len` bytes, those of the structure, at the address that it is given.
    let answer = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    (answer == 0).then_some(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    use super::*;

    fn host(address: &str) -> Account {
        Account::at(address.parse().unwrap())
    }

    #[test]
    fn a_host_is_one_by_whatever_address_of_its_it_comes() {
        assert_eq!(host("::ffff:192.0.2.1"), host("192.0.2.1"), "IPv4 in IPv6");
        assert_ne!(host("::ffff:192.0.2.1"), host("::ffff:192.0.2.2"));
        assert_eq!(host("::ffff:192.0.2.1").network(), None);
        let [host, same, other] = ["2001:db8:1:2::1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:3::1"].map(host);
        assert!(host.network() == same.network() && host.network() != other.network() && host != same);
    }

    #[test]
    fn only_what_is_open_for_long_is_overdue() {
        let overdue = |unacked, probes, seconds| {
            Acknowledged { unacked, probes, silence: Duration::from_secs(seconds) }.is_overdue()
        };
        assert!(overdue(1, 0, 50) && overdue(0, 1, 50));
        assert!(!overdue(1, 1, 49), "it may have been a short interruption");
        assert!(!overdue(0, 0, 1000), "nothing is open");
    }

    #[test]
    fn a_connection_is_watched_and_a_host_that_takes_nothing_but_lives_owes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _silent = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let socket = OwnedFd::from(stream.try_clone().unwrap());
        set_up(&socket);
        assert!(sockopt::socket_keepalive(&socket).unwrap() && sockopt::tcp_nodelay(&socket).unwrap());
        assert_eq!(sockopt::tcp_keepidle(&socket), Ok(SILENCE_MAX));
        assert_eq!(sockopt::tcp_keepintvl(&socket), Ok(QUESTION_INTERVAL));
        assert_eq!(sockopt::tcp_user_timeout(&socket), Ok(0), "it would end this connection");
        stream.set_nonblocking(true).unwrap();
        while stream.write(&[1; 65536]).is_ok() {}
        let start = Instant::now();
        loop {
            let acknowledged = Acknowledged::of(&socket).unwrap();
            if acknowledged.unacked == 0 && acknowledged.probes == 0 {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(60), "{acknowledged:?}");
            std::thread::yield_now();
        }
        assert!(!has_vanished(&socket));
    }
}
