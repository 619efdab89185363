//! Sockets that this server listens on, and who may connect there.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spillway_core::{Error, Kind};
use spillway_export::control::Operation;
use spillway_io::{Listener, SocketAccess, connect_within, is_listening};

use crate::address::Address;
use crate::cli::naming::{NUMBERS_MAX, numbered};
use crate::cli::server_options::ServerConfig;
use crate::exit::{Exit, Failure, code_of, refused};
use crate::runtime_folder::{RuntimeFolder, check_socket_path};

pub(super) mod hosts;
pub(super) mod http;
pub(super) mod passed;
pub(super) mod tls;

/// How long a server that is just ending may still hold a socket, or be silent, and the pause between two looks.
const ENDING_PATIENCE: Duration = Duration::from_secs(10);
const ENDING_PAUSE: Duration = Duration::from_millis(20);

/// Takes the name that `template` stands for, with the lowest number that is free where it has a '%'; returns the number.
pub(crate) fn claim_numbered(folder: &RuntimeFolder, template: &str) -> Result<(u32, Listener)> {
    for number in 0..NUMBERS_MAX {
        let name = numbered(template, number);
        let is_there = || folder.control_socket(&name).exists() || folder.taken_elsewhere(&name).is_some();
        let taken = |error: &anyhow::Error| name != template && code_of(error) == Exit::Busy && is_there();
        match claim(folder, &name) {
            Err(error) if taken(&error) => {}
            outcome => return outcome.map(|listener| (number, listener)),
        }
    }
    let text = format!("{NUMBERS_MAX} devices are named like {template}: stop one or give another --name");
    Err(Failure::new(Exit::Busy, text).into())
}

/// Takes a device's name, by its control socket.
fn claim(folder: &RuntimeFolder, device: &str) -> Result<Listener> {
    folder.create()?;
    let taken =
        || format!("device {device} is taken: stop it by 'spillway stop {device}' or give another --name");
    let listener = private(folder, &folder.control_socket(device)).with_context(taken)?;
    // Only now: of two that start in two folders, at least one sees the other.
    expect_free_elsewhere(folder, device).with_context(taken)?;
    Ok(listener)
}

/// Refuses a name that a living server of this user has in another folder.
fn expect_free_elsewhere(folder: &RuntimeFolder, device: &str) -> Result<()> {
    let start = Instant::now();
    while let Some(path) = folder.taken_elsewhere(device) {
        let left = ENDING_PATIENCE.saturating_sub(start.elapsed());
        if left.is_zero() || !is_ending(&path, left) {
            let text = format!("a server already answers on {}", path.display());
            return Err(Failure::new(Exit::Busy, text).into());
        }
        sleep(ENDING_PAUSE);
    }
    Ok(())
}

/// A socket of this user.
pub(crate) fn private(folder: &RuntimeFolder, path: &Path) -> Result<Listener> {
    unix(folder, path, SocketAccess::OWNER_ONLY)
}

/// Listens on a socket of this user, unless something is in the way now.
pub(crate) fn at_once(folder: &RuntimeFolder, path: &Path) -> Result<Listener, Error> {
    Listener::unix_in_turn(path, SocketAccess::OWNER_ONLY, folder.path())
}

/// The one place for all devices, where one is `passed` or `config` names it.
pub(crate) fn shared(
    folder: &RuntimeFolder,
    config: &ServerConfig,
    passed: Option<Listener>,
) -> Result<Option<Listener>> {
    match (&config.socket, &config.listen) {
        _ if passed.is_some() => Ok(passed),
        (Some(path), _) => unix(folder, path, config.socket_access(false)?).map(Some),
        (None, Some(address)) => Ok(Some(Listener::tcp(address).map_err(refused)?)),
        (None, None) => Ok(None),
    }
}

/// Where clients find a listener.
pub(crate) fn address_of(listener: &Listener) -> Address {
    match (listener.unix_path(), listener.tcp_address()) {
        (Some(path), _) => Address::unix(path),
        (None, Some(address)) => Address::tcp(address),
        (None, None) => unreachable!("a listener is one or the other"),
    }
}

/// A socket for who has `access`.
pub(crate) fn unix(folder: &RuntimeFolder, path: &Path, access: SocketAccess) -> Result<Listener> {
    check_socket_path(path)?;
    Ok(outlive(folder, path, access, ENDING_PATIENCE).map_err(refused)?)
}

/// Listens, if need be after a server that is just ending: the kernel keeps the sockets of a dead process open until the
/// process's rings are taken down, and until then they look like a living server's.
fn outlive(
    folder: &RuntimeFolder,
    path: &Path,
    access: SocketAccess,
    patience: Duration,
) -> Result<Listener, Error> {
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed());
        match Listener::unix_in_turn(path, access, folder.path()) {
            Err(error) if error.kind == Kind::Busy && !left.is_zero() && is_ending(path, left) => {
                sleep(ENDING_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// True once the listener drops the connection: it shuts down, or its process is dead and the kernel comes to it, which on busy processors
/// is some time after the end. A living server greets, or answers a question.
fn is_ending(path: &Path, patience: Duration) -> bool {
    let Ok(mut stream) = connect_within(path, patience) else {
        // One that nobody takes connections from is silent.
        return !is_listening(path)
            && path.symlink_metadata().is_ok_and(|found| found.file_type().is_socket());
    };
    let asked = stream.set_read_timeout(Some(patience));
    let asked = asked.and_then(|()| stream.write_all(Operation::Version {}.encode().as_bytes()));
    // A signal that interrupts the wait is no answer.
    match asked.and_then(|()| stream.read_exact(&mut [0])) {
        Ok(()) => false,
        Err(why) => matches!(
            why.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;
    use std::os::unix::net::UnixListener;

    /// What becomes of the socket `s` of a server that may be ending.
    fn outlived(scratch: &Scratch, patience: Duration) -> Result<Listener, Kind> {
        let folder = RuntimeFolder::at(&scratch.path().join("run"));
        folder.create().unwrap();
        let path = scratch.path().join("s");
        outlive(&folder, &path, SocketAccess::OWNER_ONLY, patience).map_err(|error| error.kind)
    }

    /// A listener, and a thread that ends once it was asked a question, after an answer where `lives` and by closing all where not.
    fn asked(path: &Path, lives: bool) -> std::thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if stream.read(&mut [0]).unwrap() == 0 {
                    continue;
                }
                if lives {
                    stream.write_all(b"{").unwrap();
                }
                return;
            }
        })
    }

    #[test]
    fn a_living_server_is_left_alone() {
        let scratch = Scratch::new("living");
        let living = asked(&scratch.path().join("s"), true);
        assert_eq!(outlived(&scratch, ENDING_PATIENCE).err(), Some(Kind::Busy), "a server answers");
        living.join().unwrap();
    }

    #[test]
    fn a_server_that_is_silent_for_long_is_left_alone() {
        let scratch = Scratch::new("silent");
        let _silent = UnixListener::bind(scratch.path().join("s")).unwrap();
        let patience = Duration::from_millis(50);
        assert_eq!(outlived(&scratch, patience).err(), Some(Kind::Busy), "a server listens");
    }

    #[test]
    fn a_dead_server_is_waited_for_until_its_sockets_are_closed() {
        let scratch = Scratch::new("dead");
        let dead = asked(&scratch.path().join("s"), false);
        outlived(&scratch, ENDING_PATIENCE).expect("it is gone once it was asked");
        dead.join().unwrap();
    }

    #[test]
    fn a_server_that_is_just_ending_is_waited_for() {
        let scratch = Scratch::new("ending");
        let ending = UnixListener::bind(scratch.path().join("s")).unwrap();
        let end = std::thread::spawn(move || drop(ending.accept().map(|_| ending.accept())));
        outlived(&scratch, ENDING_PATIENCE).expect("the other one is gone after two connections");
        end.join().unwrap();
    }

    #[test]
    fn something_else_in_the_place_is_refused_at_once() {
        let scratch = Scratch::new("else");
        scratch.write("s", "precious");
        let start = Instant::now();
        assert_eq!(outlived(&scratch, ENDING_PATIENCE).err(), Some(Kind::Busy), "it is in the way");
        assert!(start.elapsed() < ENDING_PATIENCE);
    }
}
