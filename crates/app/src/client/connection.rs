//! A connection to the server of a device: a question and its answer at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Write, stdout};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::net::sockopt::socket_peercred;
use rustix::process::Pid;
use serde_json::Value as Json;
use spillway_export::control::message::decode_reply;
use spillway_export::control::{AttributeRow, ControlReply, Operation, Shown};
use spillway_io::connect_within;

use crate::exit::Failure;
use crate::plain::plain;
use crate::runtime_folder::RuntimeFolder;

/// Longest reply line in bytes that is believed: of values, and of anything else.
const VALUES_BYTES_MAX: usize = 64 << 20;
const REPLY_BYTES_MAX: usize = 4 << 20;

/// How long a connection may take.
pub(super) const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// How long a question waits for a server that does not answer. A change may take longer, but not its answer once that has begun.
pub(super) const QUESTION_PATIENCE: Duration = Duration::from_secs(30);

/// A connection to a server's control socket.
pub(super) struct Connection {
    stream: BufReader<UnixStream>,
    /// The id of the process that listens on the other side; 0 where it is not seen from here, as from a container.
    server: u32,
    patience: Option<Duration>,
    deadline: Option<Instant>,
    /// The received part of an answer that is not whole yet.
    received: Vec<u8>,
}

impl Connection {
    /// Connects to a server of the folder's user, and to no other: what has the name of a socket may be a link to anybody's.
    pub(super) fn open(folder: &RuntimeFolder, device: &str) -> Result<Self> {
        let path = folder.control_socket(device);
        let stream = connect_within(&path, CONNECT_PATIENCE)
            .with_context(|| format!("cannot connect to {}", path.display()))?;
        let server = expect_server_of(folder, &stream, &path)?;
        let (stream, received) = (BufReader::new(stream), Vec::new());
        Ok(Self { stream, server, patience: None, deadline: None, received })
    }

    /// The id of the server's process; 0 where it is not known.
    pub(super) fn server(&self) -> u32 {
        self.server
    }

    /// How long the whole of an answer may take.
    pub(super) fn wait_at_most(&mut self, patience: Duration) {
        self.patience = Some(patience);
    }

    /// Until when all further answers together may take.
    pub(super) fn wait_until(&mut self, deadline: Instant) {
        self.deadline = Some(deadline);
    }

    /// Receives and drops the answer to a question that was given up; see [`is_silence`] where it is still not there.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        self.answer(VALUES_BYTES_MAX).map(drop)
    }

    /// The value of one attribute.
    pub(super) fn get(&mut self, device: &str, attribute: &str) -> Result<Json> {
        let get =
            Operation::Get { device: device.to_owned(), attribute: Some(attribute.to_owned()), from: None };
        match self.ask(&get)? {
            ControlReply::Values(values) if values.len() == 1 => Ok(values[0].value.clone()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn attributes(&mut self, device: &str) -> Result<Vec<AttributeRow>> {
        match self.ask(&Operation::Attributes { device: device.to_owned() })? {
            ControlReply::Attributes(rows) => Ok(rows),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn values(&mut self, question: &Operation) -> Result<Vec<Shown>> {
        match self.ask(question)? {
            ControlReply::Values(values) => Ok(values),
            other => Err(unexpected(&other)),
        }
    }

    /// Has the server make a change, and waits for it.
    pub(super) fn change(&mut self, operation: &Operation) -> Result<()> {
        match self.ask(operation)? {
            ControlReply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn ask(&mut self, operation: &Operation) -> Result<ControlReply> {
        let sent = self.stream.get_mut().write_all(operation.encode().as_bytes());
        sent.context("cannot send the request to the server")?;
        let values = matches!(operation, Operation::Get { .. } | Operation::Attributes { .. });
        let line = self.answer(if values { VALUES_BYTES_MAX } else { REPLY_BYTES_MAX })?;
        Ok(decode_reply(&line).map_err(Failure::from)?)
    }

    fn answer(&mut self, bytes_max: usize) -> Result<Vec<u8>> {
        let line = self.line(bytes_max).context("cannot read the server's reply")?;
        ensure!(line.ends_with(b"\n"), "the server ended before it answered");
        Ok(line)
    }

    /// Reads a line, or what there is of it.
    fn line(&mut self, bytes_max: usize) -> io::Result<Vec<u8>> {
        let mut deadline = self.deadline.or_else(|| self.patience.map(|patience| Instant::now() + patience));
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
            self.received.extend_from_slice(&bytes[..used]);
            self.stream.consume(used);
            if whole {
                return Ok(std::mem::take(&mut self.received));
            }
            if self.received.len() > bytes_max {
                return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
            }
            deadline.get_or_insert_with(|| Instant::now() + QUESTION_PATIENCE);
        }
    }
}

/// The process that listens at the other end of a connection to `path`; 0 where it is not seen from here. Refuses any but one of the folder's user.
pub(super) fn expect_server_of(folder: &RuntimeFolder, stream: &UnixStream, path: &Path) -> Result<u32> {
    let peer = socket_peercred(stream).context("the other side is not known")?;
    let (user, wanted) = (peer.uid.as_raw(), folder.user());
    ensure!(user == wanted, "{}: user {user} answers, not user {wanted}; remove the socket", path.display());
    Ok(Pid::as_raw(Some(peer.pid)).unsigned_abs())
}

/// Whether a server is there but silent; one that is just ending says so otherwise.
pub(super) fn is_silence(error: &anyhow::Error) -> bool {
    let timed_out = |why: &io::Error| matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
    error.chain().any(|cause| cause.downcast_ref().is_some_and(timed_out))
}

/// Has the server of `device` make a change, and waits for it.
pub(super) fn change(folder: &RuntimeFolder, device: &str, operation: &Operation) -> Result<()> {
    Connection::to_device(folder, device)?.change(operation)
}

pub(super) fn unexpected(reply: &ControlReply) -> anyhow::Error {
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
