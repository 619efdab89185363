//! A connection to the server of a device: a question and its answer at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Write, stdout};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::socket_peercred;
use serde_json::Value as Json;
use spillway_export::control::message::decode_reply;
use spillway_export::control::{DeviceRow, Operation, Reply};
use spillway_io::connect_within;

use crate::exit::{Exit, Failure};
use crate::plain::plain;
use crate::runtime_folder::{RuntimeFolder, check_name};

/// Longest reply line in bytes that is believed: of values, and of anything else.
const VALUES_BYTES_MAX: usize = 64 << 20;
const REPLY_BYTES_MAX: usize = 4 << 20;

/// How long a listing, and how long any other question, waits for a server that does not answer. A change may take longer, but not its
/// answer once that has begun.
const LISTING_PATIENCE: Duration = Duration::from_secs(5);
pub(super) const QUESTION_PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a server's control socket.
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
    patience: Option<Duration>,
}

impl Connection {
    /// Connects to a server of the folder's user, and to no other: what has the name of a socket may be a link to anybody's.
    fn open(folder: &RuntimeFolder, device: &str) -> Result<Self> {
        let path = folder.control_socket(device);
        let stream = connect_within(&path, LISTING_PATIENCE)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        let peer = socket_peercred(&stream).context("the other side is not known")?.uid.as_raw();
        ensure!(
            peer == folder.user(),
            "{}: user {peer} answers, not user {}; remove the socket",
            path.display(),
            folder.user()
        );
        Ok(Self { stream: BufReader::new(stream), patience: None })
    }

    /// The server of `device`, or [`Exit::Missing`].
    pub(super) fn to_device(folder: &RuntimeFolder, device: &str) -> Result<Self> {
        check_name(device)?;
        folder.expect_ours()?;
        Self::open(folder, device).map_err(|error| match is_gone(&error) {
            true => Failure::new(Exit::Missing, no_device(device, folder)).into(),
            false => error,
        })
    }

    /// How long the whole of an answer may take.
    pub(super) fn wait_at_most(&mut self, patience: Duration) {
        self.patience = Some(patience);
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
        let values = matches!(operation, Operation::Get { .. } | Operation::Attributes { .. });
        let line = self.line(if values { VALUES_BYTES_MAX } else { REPLY_BYTES_MAX });
        let line = line.context("cannot read the server's reply")?;
        ensure!(line.ends_with(b"\n"), "the server ended before it answered");
        Ok(decode_reply(&line).map_err(Failure::from)?)
    }

    /// Reads a line, or what there is of it.
    fn line(&mut self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let (mut line, mut deadline) = (Vec::new(), self.patience.map(|patience| Instant::now() + patience));
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.get_ref().set_read_timeout(left)?;
            let bytes = match self.stream.fill_buf() {
                Err(why) if why.kind() == ErrorKind::Interrupted => continue,
                bytes => bytes?,
            };
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let (used, whole) = (end.map_or(bytes.len(), |end| end + 1), end.is_some() || bytes.is_empty());
            line.extend_from_slice(&bytes[..used]);
            self.stream.consume(used);
            if whole {
                return Ok(line);
            }
            if line.len() > bytes_max {
                return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
            }
            deadline.get_or_insert_with(|| Instant::now() + QUESTION_PATIENCE);
        }
    }
}

/// Whether a failed connect means that no server is there.
fn is_gone(error: &anyhow::Error) -> bool {
    let gone = |why: &io::Error| matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    error.downcast_ref().is_some_and(gone)
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
    let mut connection = Connection::open(folder, name).ok()?;
    connection.wait_at_most(LISTING_PATIENCE);
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
pub(super) fn is_silence(error: &anyhow::Error) -> bool {
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
    match out.write_all(plain(text).as_bytes()).and_then(|()| out.flush()) {
        Err(why) if why.kind() == ErrorKind::BrokenPipe => Ok(false),
        result => result.map(|()| true).context("cannot write to standard output"),
    }
}
