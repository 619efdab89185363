//! Connections to servers, and sessions on them.
//!
//! A connection is made on a blocking thread: a name has to be resolved, and a host may not answer. Then the connection of channel `n`
//! is served by worker `n`, as one of a client would be.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
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
use crate::runtime::blocking::on_blocking_thread;
use crate::runtime::driver::kind_of;
use crate::runtime::pool::Pool;
use crate::runtime::workers::Workers;

/// How long one address may take to answer.
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
    pool: Arc<Pool>,
}

impl Dialer {
    /// For connections that `workers` serve.
    pub fn new(workers: &Workers) -> Self {
        Self { pool: workers.pool().clone() }
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
        let connected = on_blocking_thread(move || connect(&address)).await;
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
            let mut last = io::Error::from_raw_os_error(libc::EADDRNOTAVAIL);
            for address in (host.as_str(), *port).to_socket_addrs()? {
                match TcpStream::connect_timeout(&address, PATIENCE) {
                    Ok(socket) => return set_up(socket),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

fn set_up(socket: TcpStream) -> io::Result<OwnedFd> {
    socket.set_nonblocking(true)?;
    let socket = OwnedFd::from(socket);
    peer::set_up(&socket);
    // A server that is stopped for longer has to be connected to again, which loses nothing.
    if let Err(error) = sockopt::set_tcp_user_timeout(&socket, VANISHED_AFTER_MS) {
        tracing::debug!("an option of a connection is refused: {error}");
    }
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
