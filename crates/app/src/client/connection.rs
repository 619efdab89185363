//! A connection to the server of a device: a question and its answer at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write, stdout};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value as Json;
use spillway_export::control::message::decode_reply;
use spillway_export::control::{DeviceRow, Operation, Reply};
use spillway_io::connect_within;

use crate::exit::{Exit, Failure};
use crate::runtime_folder::{RuntimeFolder, check_name};

/// Longest reply line in bytes that is believed.
const REPLY_BYTES_MAX: u64 = 64 << 20;

/// How long a listing, and how long any other question, waits for a server that does not answer. A change may take longer.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
pub(super) const QUESTION_PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a server's control socket.
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
}

impl Connection {
    fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(connect_within(path, LISTING_PATIENCE)?) })
    }

    /// The server of `device`, or [`Exit::Missing`].
    pub(super) fn to_device(folder: &RuntimeFolder, device: &str) -> Result<Self> {
        check_name(device)?;
        folder.expect_ours()?;
        let path = folder.control_socket(device);
        match Self::open(&path) {
            Ok(connection) => Ok(connection),
            Err(why) if gone(why.kind()) => {
                Err(Failure::new(Exit::Missing, no_device(device, folder)).into())
            }
            Err(why) => Err(why).with_context(|| format!("cannot connect to {}", path.display())),
        }
    }

    pub(super) fn wait_at_most(&mut self, patience: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(patience))
    }

    /// The value of one attribute.
    pub(super) fn get(&mut self, device: &str, attribute: &str) -> Result<Json> {
        let get =
            Operation::Get { device: device.to_owned(), attribute: Some(attribute.to_owned()), from: None };
        match self.ask(&get)? {
            Reply::Values(values) if values.len() == 1 => Ok(values[0].value.clone()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn ask(&mut self, operation: &Operation) -> Result<Reply> {
        let sent = self.stream.get_mut().write_all(operation.encode().as_bytes());
        sent.context("cannot send the request to the server")?;
        let mut line = Vec::new();
        let read = (&mut self.stream).take(REPLY_BYTES_MAX).read_until(b'\n', &mut line);
        read.context("cannot read the server's reply")?;
        anyhow::ensure!(line.ends_with(b"\n"), "the server ended before it answered");
        Ok(decode_reply(&line).map_err(Failure::from)?)
    }
}

/// Whether a failed connect means that no server is there.
fn gone(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::NotFound | ErrorKind::ConnectionRefused)
}

pub(super) fn no_device(device: &str, folder: &RuntimeFolder) -> String {
    let running: Vec<_> = listing(folder).unwrap_or_default().into_iter().map(|row| row.name).collect();
    let there = match &running[..] {
        [] => "none of your servers is running: start one with spillway ram --size 4G".to_owned(),
        names => format!("there are: {}", names.join(", ")),
    };
    format!("no server has a device {device:?}; {there}")
}

/// The devices of all servers that are found from `folder`, by name. A socket whose server is gone, and a server that does not answer, are
/// left out.
pub(super) fn listing(folder: &RuntimeFolder) -> Result<Vec<DeviceRow>> {
    let mut rows = Vec::new();
    for folder in folder.everywhere() {
        rows.extend(folder.devices()?.iter().filter_map(|name| row_of(folder, name)));
    }
    rows.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(rows)
}

pub(super) fn row_of(folder: &RuntimeFolder, name: &str) -> Option<DeviceRow> {
    let mut connection = Connection::open(&folder.control_socket(name)).ok()?;
    connection.wait_at_most(LISTING_PATIENCE).ok()?;
    match connection.ask(&Operation::List {}) {
        Ok(Reply::Devices(rows)) => rows.into_iter().find(|row| row.name == name),
        Ok(_) => None,
        Err(error) => {
            if is_silence(&error) {
                tracing::warn!("device {name} is left out: its server does not answer");
            }
            None
        }
    }
}

/// Whether a server is there but silent; one that is just ending says so otherwise.
fn is_silence(error: &anyhow::Error) -> bool {
    let timed_out = |why: &io::Error| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    error.chain().any(|cause| cause.downcast_ref().is_some_and(timed_out))
}

/// Has the server of `device` make a change, and waits for it.
pub(super) fn change(folder: &RuntimeFolder, device: &str, operation: &Operation) -> Result<()> {
    match Connection::to_device(folder, device)?.ask(operation)? {
        Reply::Done => Ok(()),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn unexpected(reply: &Reply) -> anyhow::Error {
    anyhow::anyhow!("the server answered something else than was asked: {reply:?}")
}

/// Prints to standard output; that nobody reads to the end is no failure.
pub(crate) fn print(text: &str) -> Result<()> {
    is_read(text).map(drop)
}

/// The same; whether anybody reads it.
pub(super) fn is_read(text: &str) -> Result<bool> {
    let mut out = stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("cannot write to standard output"),
    }
}
