//! The servers of a user, found by their control sockets, and the devices that these list.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use spillway_export::control::{ControlReply, DeviceRow, Operation};

use super::connection::{Connection, is_silence, unexpected};
use crate::exit::{Exit, Failure};
use crate::runtime_folder::{RuntimeFolder, check_name};

/// How long a server may take to answer all that one look asks: for a command that looks once, and for one that soon looks again.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
pub(super) const LOOK_PATIENCE: Duration = Duration::from_secs(1);

/// How long a further look waits for the answer of a silent server.
const MOMENT: Duration = Duration::from_millis(1);

/// Looks at all servers that are found from a folder. One that does not answer in time is silent: further looks do not wait for it again
/// before its answer has arrived.
pub(super) struct Servers {
    folder: RuntimeFolder,
    patience: Duration,
    silent: Vec<Silent>,
}

/// What a look has found of a server.
pub(super) enum ServerAnswer<T> {
    /// Its answer.
    Answer(T),
    /// None in time.
    Silence(Silence),
}

/// A server that does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Silence {
    /// The id of its process; 0 where it is not known.
    pub(super) server: u32,
    /// Names of its devices, as far as they are known.
    pub(super) devices: Vec<String>,
    /// Since when it has been asked in vain.
    pub(super) since: Instant,
}

/// The same, with the connection that its answer will arrive on.
struct Silent {
    connection: Connection,
    sockets: Vec<PathBuf>,
    silence: Silence,
}

impl Silent {
    /// Whether there is still no answer. One that is there is too old to be shown.
    fn lasts(&mut self) -> bool {
        self.connection.wait_until(Instant::now() + MOMENT);
        self.connection.catch_up().is_err_and(|error| is_silence(&error))
    }

    fn add(&mut self, socket: PathBuf, device: &str) {
        self.sockets.push(socket);
        self.silence.devices.push(device.to_owned());
    }
}

impl Servers {
    /// Those found from `folder`, each of which may take `patience` for its answers.
    pub(super) fn new(folder: &RuntimeFolder, patience: Duration) -> Self {
        Self { folder: folder.clone(), patience, silent: Vec::new() }
    }

    /// Looks once: has each server list its devices, and passes the list to `ask` for further questions. A server that ends meanwhile is
    /// left out, and so is a socket whose server is gone.
    pub(super) fn look<T>(
        &mut self,
        mut ask: impl FnMut(&mut Connection, Vec<DeviceRow>) -> Result<T>,
    ) -> Result<Vec<ServerAnswer<T>>> {
        self.silent.retain_mut(Silent::lasts);
        let mut seen: BTreeSet<PathBuf> = self.silent.iter().flat_map(|one| one.sockets.clone()).collect();
        let mut found = Vec::new();
        for folder in self.folder.clone().everywhere() {
            let names = folder.devices()?;
            for name in &names {
                if !seen.insert(folder.control_socket(name)) {
                    continue;
                }
                let answer = self.ask_server_of(folder, name, |connection| {
                    let rows = devices(connection, &names)?;
                    seen.extend(rows.iter().map(|row| folder.control_socket(&row.name)));
                    ask(connection, rows)
                });
                found.extend(answer.map(ServerAnswer::Answer));
            }
        }
        found.extend(self.silent.iter().map(|one| ServerAnswer::Silence(one.silence.clone())));
        Ok(found)
    }

    /// Asks the server of a device; `None` where it is gone, or silent, which is noted.
    fn ask_server_of<T>(
        &mut self,
        folder: &RuntimeFolder,
        device: &str,
        ask: impl FnOnce(&mut Connection) -> Result<T>,
    ) -> Option<T> {
        let since = Instant::now();
        let mut connection = Connection::open(folder, device).ok()?;
        let (server, socket) = (connection.server(), folder.control_socket(device));
        if let Some(same) = self.silent.iter_mut().find(|one| server != 0 && one.silence.server == server) {
            same.add(socket, device);
            return None;
        }
        connection.wait_until(since + self.patience);
        let answer = ask(&mut connection);
        if answer.as_ref().is_err_and(is_silence) {
            let silence = Silence { server, devices: vec![device.to_owned()], since };
            self.silent.push(Silent { connection, sockets: vec![socket], silence });
        }
        answer.ok()
    }

    /// Looks once: all devices by name, and the servers that are silent.
    pub(super) fn devices(&mut self) -> Result<(Vec<DeviceRow>, Vec<Silence>)> {
        let (mut devices, mut silences) = (Vec::new(), Vec::new());
        for found in self.look(|_, rows| Ok(rows))? {
            match found {
                ServerAnswer::Answer(rows) => devices.extend(rows),
                ServerAnswer::Silence(silence) => silences.push(silence),
            }
        }
        devices.sort_by(|one, other| one.name.cmp(&other.name));
        Ok((devices, silences))
    }
}

/// The devices of a server that have a control socket among `names`.
fn devices(connection: &mut Connection, names: &[String]) -> Result<Vec<DeviceRow>> {
    match connection.ask(&Operation::List {})? {
        ControlReply::Devices(rows) => Ok(rows.into_iter().filter(|row| names.contains(&row.name)).collect()),
        other => Err(unexpected(&other)),
    }
}

/// The devices of all servers that are found from `folder`, by name. A socket whose server is gone, and a server that does not answer, are
/// left out.
pub(super) fn listing(folder: &RuntimeFolder) -> Result<Vec<DeviceRow>> {
    let (devices, silences) = Servers::new(folder, LISTING_PATIENCE).devices()?;
    silences.iter().for_each(warn_of);
    Ok(devices)
}

/// Logs that the devices of a server are left out.
pub(super) fn warn_of(silence: &Silence) {
    let devices = silence.devices.join(", ");
    tracing::warn!("{devices} left out: the server (pid {}) does not answer", silence.server);
}

/// A device as its server lists it; `None` where there is no such device, and where its server does not answer.
pub(super) fn row_of(folder: &RuntimeFolder, name: &str) -> Option<DeviceRow> {
    let mut connection = Connection::open(folder, name).ok()?;
    connection.wait_at_most(LISTING_PATIENCE);
    match devices(&mut connection, &[name.to_owned()]) {
        Ok(rows) => rows.into_iter().next(),
        Err(error) => {
            if is_silence(&error) {
                tracing::warn!("device {name} is left out: its server does not answer");
            }
            None
        }
    }
}

/// The same, or [`Exit::Missing`].
pub(super) fn expect_row(folder: &RuntimeFolder, name: &str) -> Result<DeviceRow> {
    check_name(name)?;
    folder.expect_ours()?;
    row_of(folder, name).ok_or_else(|| Failure::new(Exit::Missing, no_device(name, folder)).into())
}

impl Connection {
    /// The server of `device`, or [`Exit::Missing`].
    pub(super) fn to_device(folder: &RuntimeFolder, device: &str) -> Result<Self> {
        check_name(device)?;
        folder.expect_ours()?;
        Self::open(folder, device).map_err(|error| match is_gone(&error) {
            true => Failure::new(Exit::Missing, no_device(device, folder)).into(),
            false => error,
        })
    }
}

/// Whether a failed connect means that no server is there.
fn is_gone(error: &anyhow::Error) -> bool {
    let gone = |why: &io::Error| matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    error.downcast_ref().is_some_and(gone)
}

/// Says that there is no such device, and which there are, or which one has the name as its second.
pub(super) fn no_device(device: &str, folder: &RuntimeFolder) -> String {
    let rows = listing(folder).unwrap_or_default();
    if let Some(row) = rows.iter().find(|row| row.read_only_name.as_deref() == Some(device)) {
        return format!("{device} is the read-only name of device {0}: give {0}", row.name);
    }
    let running: Vec<_> = rows.into_iter().map(|row| row.name).collect();
    let there = match &running[..] {
        [] => "none of your servers is running: start one with spillway ram --size 4G".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    format!("no server has a device {device:?}; {there}")
}
