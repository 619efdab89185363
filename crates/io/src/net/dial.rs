//! Connections to servers, and sessions on them.
//!
//! A connection is made on a blocking thread: a name has to be resolved, and a host may not answer. Then the connection of channel `n`
//! is served by worker `n`, as one of a client would be.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use spillway_core::session::Session;
use spillway_core::{Error, Kind};

use crate::net::connection::Connection;
use crate::net::control::{Admission, Control};
use crate::net::peer;
use crate::net::socket::connect_within;
use crate::runtime::driver::kind_of;
use crate::runtime::pool::ThreadPool;
use crate::runtime::turns::Turns;
use crate::runtime::workers::Workers;

/// How long the addresses of a host may take to answer, one after the other.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a host may leave unacknowledged what was sent to it, in milliseconds, before its connection is closed.
const VANISHED_AFTER_MS: u32 = 50_000;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// A unix socket.
    Unix(PathBuf),
    /// A name or number of a host, and a port.
    Tcp(String, u16),
}

/// Makes connections to servers.
#[derive(Clone)]
pub struct Dialer {
    pool: Arc<ThreadPool>,
    turns: Arc<Turns>,
}

impl Dialer {
    /// For connections that `workers` serve.
    pub fn new(workers: &Workers) -> Self {
        Self { pool: workers.pool().clone(), turns: Turns::few() }
    }

    /// The same for one server, whose tries keep no others waiting: one that hangs has a thread until it ends, given up or not.
    pub fn for_one_server(&self) -> Self {
        Self { turns: Turns::few(), ..self.clone() }
    }

    /// Workers, each of which serves a connection.
    pub fn workers(&self) -> usize {
        self.pool.workers()
    }

    /// Connects, and has a worker serve the session that `session` makes there. What the system says, in words, where there is no connection.
    pub async fn dial(
        &self,
        address: ServerAddress,
        channel: usize,
        session: Box<dyn FnOnce() -> Box<dyn Session> + Send>,
    ) -> Result<(), Error> {
        let connected = self.turns.clone().call(move || connect(&address)).await;
        let socket = connected.map_err(|error| {
            let kind = if error.kind() == io::ErrorKind::TimedOut { Kind::Io } else { kind_of(&error) };
            Error::new(kind, format!("no connection: {error}"))
        })?;
        let (socket, pool) = (Arc::new(socket), self.pool.clone());
        let worker = channel % self.pool.workers();
        self.pool.thread(worker).post(Box::new(move || {
            let control = Arc::new(Control::default());
            Box::pin(Connection::new(socket, session(), control, pool, Box::new(Outgoing)))
        }));
        Ok(())
    }
}

fn connect(address: &ServerAddress) -> io::Result<OwnedFd> {
    match address {
        ServerAddress::Unix(path) => {
            let socket: UnixStream = connect_within(path, PATIENCE)?;
            socket.set_nonblocking(true)?;
            Ok(socket.into())
        }
        ServerAddress::Tcp(host, port) => {
            let addresses: Vec<SocketAddr> = (host.as_str(), *port).to_socket_addrs()?.collect();
            set_up(connect_to_first(&addresses)?)
        }
    }
}

/// How long each of several addresses may take, so that there is some time for the handshake.
fn share(addresses: usize) -> Duration {
    PATIENCE / (addresses as u32 + 1)
}

/// Connects to the first of the addresses that answers: where one drops what is sent to it, another may work.
fn connect_to_first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let patience = share(addresses.len());
    let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
    for address in addresses {
        match TcpStream::connect_timeout(address, patience) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn set_up(socket: TcpStream) -> io::Result<OwnedFd> {
    socket.set_nonblocking(true)?;
    let socket = OwnedFd::from(socket);
    peer::set_up(&socket);
    // A server that is stopped for longer has to be connected to again, which loses nothing.
    if let Err(error) = sockopt::set_tcp_user_timeout(&socket, VANISHED_AFTER_MS) {
        tracing::debug!("an option of a connection is refused: {error}");
    }
    // What was not acknowledged is never sent once it is closed: a write would come after newer ones of the next connection.
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    Ok(socket)
}

/// A connection that no listener has admitted.
struct Outgoing;

impl Admission for Outgoing {
    fn gives_way(&self, _silent: Duration) -> bool {
        false
    }

    fn establish(&self) {}
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener};

    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

    use super::*;

    #[test]
    fn what_was_not_sent_when_a_connection_is_closed_is_not_sent_later() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = connect(&ServerAddress::Tcp("127.0.0.1".into(), port)).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let mut socket = TcpStream::from(socket);
        let (block, mut sent) = (vec![7; 1 << 20], 0);
        // Until both buffers are full.
        while let Ok(count) = socket.write(&block) {
            sent += count;
        }
        drop(socket);
        let (mut received, mut room) = (0, vec![0; 1 << 20]);
        let error = loop {
            match server.read(&mut room) {
                Ok(0) => panic!("{received} bytes of {sent}, and an orderly end"),
                Ok(count) => received += count,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert!(received < sent, "all {sent} bytes came after the connection was closed");
    }

    /// One that is idle as one that sends.
    #[test]
    fn a_connection_whose_server_acknowledges_nothing_is_closed() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = connect(&ServerAddress::Tcp("127.0.0.1".into(), port)).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&socket), Ok(VANISHED_AFTER_MS));
        assert_eq!(sockopt::socket_keepalive(&socket), Ok(true));
        let [idle, between] = [sockopt::tcp_keepidle(&socket), sockopt::tcp_keepintvl(&socket)];
        let asked = between.unwrap() * sockopt::tcp_keepcnt(&socket).unwrap();
        assert_eq!(idle.unwrap() + asked, Duration::from_millis(VANISHED_AFTER_MS.into()));
    }

    /// A queue that is full takes no connection, and says nothing.
    #[test]
    fn an_address_that_says_nothing_keeps_nobody_from_the_next() {
        let full = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&full, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
        listen(&full, 0).unwrap();
        let silent = SocketAddr::try_from(getsockname(&full).unwrap()).unwrap();
        let moment = Duration::from_millis(100);
        let mut queued = Vec::new();
        while let Ok(waiting) = TcpStream::connect_timeout(&silent, moment) {
            queued.push(waiting);
        }
        let works = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let found = connect_to_first(&[silent, works.local_addr().unwrap()]).unwrap();
        assert_eq!(found.peer_addr().unwrap(), works.local_addr().unwrap());
        assert!((1..9).all(|count| share(count) * (count as u32) < PATIENCE), "the handshake needs time too");
    }
}
