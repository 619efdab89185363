//! Sockets that this server listens on.

use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spillway_core::{Error, Kind};
use spillway_io::Listener;

use crate::address::Address;
use crate::exit::refused;
use crate::runtime_folder::{RuntimeFolder, check_socket_path};
use crate::server_options::ServerConfig;

/// Access mode of every socket file: this user only.
const SOCKET_MODE: u32 = 0o600;

/// How long a server that is just ending may still hold a socket, and the pause between two looks.
const ENDING_PATIENCE: Duration = Duration::from_secs(2);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// How long a connection must stay open to count as one to a living server.
const LIFE_SIGN: Duration = Duration::from_millis(200);

/// Takes a device's name, by its control socket.
pub(crate) fn claim(folder: &RuntimeFolder, device: &str) -> Result<Listener> {
    folder.create()?;
    unix(&folder.control_socket(device)).with_context(|| {
        format!("device {device} is taken: stop it by 'spillway stop {device}' or give another --name")
    })
}

/// A device's own NBD socket.
pub(crate) fn own(folder: &RuntimeFolder, device: &str) -> Result<Listener> {
    unix(&folder.nbd_socket(device))
}

/// Listens on a socket of this user, unless something is in the way now.
pub(crate) fn at_once(path: &Path) -> Result<Listener, Error> {
    Listener::unix(path, SOCKET_MODE)
}

/// The one place for all devices, where `config` names one.
pub(crate) fn shared(config: &ServerConfig) -> Result<Option<Listener>> {
    match (&config.socket, &config.listen) {
        (Some(path), _) => unix(path).map(Some),
        (None, Some(address)) => Ok(Some(Listener::tcp(address).map_err(refused)?)),
        (None, None) => Ok(None),
    }
}

/// Where clients find a listener.
pub(crate) fn address_of(listener: &Listener) -> Address {
    match (listener.unix_path(), listener.tcp_address()) {
        (Some(path), _) => Address::Unix(path.to_owned()),
        (None, Some(address)) => Address::Tcp(address),
        (None, None) => unreachable!("a listener is one or the other"),
    }
}

fn unix(path: &Path) -> Result<Listener> {
    check_socket_path(path)?;
    Ok(outlive(path).map_err(refused)?)
}

/// Listens, if need be after a server that is just ending: the kernel keeps the sockets of a dead process open until the
/// process's rings are taken down, and until then they look like a living server's.
fn outlive(path: &Path) -> Result<Listener, Error> {
    let deadline = Instant::now() + ENDING_PATIENCE;
    loop {
        match Listener::unix(path, SOCKET_MODE) {
            Err(error) if error.kind == Kind::Busy && Instant::now() < deadline && is_ending(path) => {
                sleep(ENDING_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// True while the listener drops new connections (shutting down). A living server greets, or waits for a request.
fn is_ending(path: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(path) else {
        return path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    };
    let patient = stream.set_read_timeout(Some(LIFE_SIGN));
    match patient.and_then(|()| stream.read(&mut [0])) {
        Ok(count) => count == 0,
        Err(why) => why.kind() == ErrorKind::ConnectionReset,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_living_server_is_left_alone() {
        let scratch = Scratch::new("living");
        let path = scratch.path().join("s");
        let _silent = UnixListener::bind(&path).unwrap();
        assert_eq!(outlive(&path).err().expect("a server listens").kind, Kind::Busy);
    }

    #[test]
    fn a_server_that_is_just_ending_is_waited_for() {
        let scratch = Scratch::new("ending");
        let path = scratch.path().join("s");
        let ending = UnixListener::bind(&path).unwrap();
        let end = std::thread::spawn(move || drop(ending.accept().map(|_| ending.accept())));
        outlive(&path).expect("the other one is gone after two connections");
        end.join().unwrap();
    }

    #[test]
    fn something_else_in_the_place_is_refused_at_once() {
        let scratch = Scratch::new("else");
        scratch.write("s", "precious");
        let start = Instant::now();
        assert_eq!(outlive(&scratch.path().join("s")).err().expect("in the way").kind, Kind::Busy);
        assert!(start.elapsed() < ENDING_PATIENCE);
    }
}
