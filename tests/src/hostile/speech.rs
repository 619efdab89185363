//! A connection of a hostile client: says anything, in any style of the protocol, and never waits for long.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long the server may take nothing before the client goes on without it.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };

/// How long the server may take for a part of the handshake.
const HANDSHAKE: Duration = Duration::from_secs(5);

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";

/// Options of the protocol.
pub(super) mod option {
    pub(in crate::hostile) const EXPORT_NAME: u32 = 1;
    pub(in crate::hostile) const LIST: u32 = 3;
    pub(in crate::hostile) const INFO: u32 = 6;
    pub(in crate::hostile) const GO: u32 = 7;
    pub(in crate::hostile) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::hostile) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::hostile) const SET_META_CONTEXT: u32 = 10;
    pub(in crate::hostile) const EXTENDED_HEADERS: u32 = 11;
}

/// Flags of commands.
pub(super) mod flag {
    pub(in crate::hostile) const FUA: u16 = 1;
    pub(in crate::hostile) const NO_HOLE: u16 = 2;
    pub(in crate::hostile) const DF: u16 = 4;
    pub(in crate::hostile) const REQ_ONE: u16 = 8;
    pub(in crate::hostile) const FAST_ZERO: u16 = 16;
    pub(in crate::hostile) const PAYLOAD_LEN: u16 = 32;
}

/// Which replies and headers were agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(super) enum Style {
    /// The oldest way to choose an export.
    ExportName,
    /// Simple replies.
    Simple,
    /// Structured replies, with the context `base:allocation`.
    Structured,
    /// Headers of 32 bytes, with the context.
    Extended,
}

/// A request before it has bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) command: u16,
    pub(super) flags: u16,
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// The server takes or gives nothing more, or has closed.
pub(super) struct Stuck;

/// The connection.
pub(super) struct Speech {
    stream: UnixStream,
    style: Style,
    cookie: u64,
}

impl Speech {
    /// Connects and says nothing.
    pub(super) fn connect(socket: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, style: Style::Simple, cookie: 0 })
    }

    /// Connects and enters an export.
    pub(super) fn enter(socket: &Path, export: &str, style: Style) -> io::Result<Self> {
        let mut speech = Self::connect(socket)?;
        speech.style = style;
        speech.stream.set_nonblocking(false)?;
        speech.stream.set_read_timeout(Some(HANDSHAKE))?;
        speech.stream.set_write_timeout(Some(HANDSHAKE))?;
        speech.stream.write_all(&handshake(export, style))?;
        speech.entered()?;
        speech.stream.set_nonblocking(true)?;
        Ok(speech)
    }

    /// Reads what the server says to a handshake, to its end.
    fn entered(&mut self) -> io::Result<()> {
        self.skip(18)?;
        if self.style == Style::ExportName {
            return self.skip(10);
        }
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
            let (answered, kind, len) = (word(8), word(12), word(16));
            self.skip(len as usize)?;
            match kind {
                1 if answered == option::GO => return Ok(()),
                refused if refused >> 31 == 1 => return Err(ErrorKind::PermissionDenied.into()),
                _ => {}
            }
        }
    }

    fn skip(&mut self, len: usize) -> io::Result<()> {
        self.stream.read_exact(&mut vec![0; len])
    }

    /// The bytes of a request without its payload.
    pub(super) fn header(&mut self, request: Request) -> Vec<u8> {
        self.cookie += 1;
        let extended = self.style == Style::Extended;
        let magic: u32 = if extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(request.flags.to_be_bytes());
        bytes.extend(request.command.to_be_bytes());
        bytes.extend(self.cookie.to_be_bytes());
        bytes.extend(request.offset.to_be_bytes());
        match extended {
            true => bytes.extend(request.len.to_be_bytes()),
            false => bytes.extend((request.len as u32).to_be_bytes()),
        }
        bytes
    }

    /// Whether headers have 64-bit lengths.
    pub(super) fn extended(&self) -> bool {
        self.style == Style::Extended
    }

    /// Says `bytes`, and reads meanwhile where `reads`, so that the server goes on taking.
    pub(super) fn say(&mut self, mut bytes: &[u8], reads: bool) -> Result<(), Stuck> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => bytes = &bytes[count..],
                Err(why) if why.kind() == ErrorKind::WouldBlock => {
                    let wanted = if reads { PollFlags::IN | PollFlags::OUT } else { PollFlags::OUT };
                    self.wait(wanted)?;
                    if reads {
                        self.hear()?;
                    }
                }
                Err(_) => return Err(Stuck),
            }
        }
        Ok(())
    }

    /// Reads what is there, at most a few MiB.
    pub(super) fn hear(&mut self) -> Result<(), Stuck> {
        let mut bytes = [0; 65536];
        for _ in 0..64 {
            match self.stream.read(&mut bytes) {
                Ok(0) => return Err(Stuck),
                Ok(_) => {}
                Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Stuck),
            }
        }
        Ok(())
    }

    /// Reads until nothing comes any more, or the server closes.
    pub(super) fn hear_out(&mut self) {
        while self.wait(PollFlags::IN).is_ok() && self.hear().is_ok() {}
    }

    /// Closes the direction to the server.
    pub(super) fn fall_silent(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    fn wait(&self, wanted: PollFlags) -> Result<(), Stuck> {
        let mut fds = [PollFd::new(&self.stream, wanted)];
        match poll(&mut fds, Some(&PATIENCE)) {
            Ok(count) if count > 0 => Ok(()),
            _ => Err(Stuck),
        }
    }
}

/// Everything that a client says until it has entered an export.
fn handshake(export: &str, style: Style) -> Vec<u8> {
    let mut words = client_flags();
    match style {
        Style::ExportName => {
            words.extend(option(option::EXPORT_NAME, export.as_bytes()));
            return words;
        }
        Style::Simple => {}
        Style::Structured => words.extend(option(option::STRUCTURED_REPLY, &[])),
        Style::Extended => words.extend(option(option::EXTENDED_HEADERS, &[])),
    }
    if style != Style::Simple {
        words.extend(option(option::SET_META_CONTEXT, &queries(export, &["base:allocation"])));
    }
    words.extend(option(option::GO, &[&text(export)[..], &[0, 0]].concat()));
    words
}

/// What the client says first: fixed newstyle, no zeroes.
pub(super) fn client_flags() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

/// An option with its data.
pub(super) fn option(number: u32, bytes: &[u8]) -> Vec<u8> {
    [option_header(number, bytes.len() as u32), bytes.to_vec()].concat()
}

/// What starts an option whose data has `len` bytes.
pub(super) fn option_header(number: u32, len: u32) -> Vec<u8> {
    [&OPTION_MAGIC[..], &number.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Data of an option about contexts.
pub(super) fn queries(export: &str, asked: &[&str]) -> Vec<u8> {
    let mut words = text(export);
    words.extend((asked.len() as u32).to_be_bytes());
    asked.iter().for_each(|query| words.extend(text(query)));
    words
}

fn text(words: &str) -> Vec<u8> {
    [&(words.len() as u32).to_be_bytes()[..], words.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Launch;
    use crate::raw::command;

    /// A hostile client whose handshake fails would attack nothing.
    #[test]
    fn every_style_enters_and_is_answered() {
        let server = Launch::ram("64M").start();
        for style in [Style::ExportName, Style::Simple, Style::Structured, Style::Extended] {
            let mut speech = Speech::enter(server.socket(), "", style).expect("the server lets it in");
            let command = if style >= Style::Structured { command::BLOCK_STATUS } else { command::READ };
            let words = speech.header(Request { command, flags: 0, offset: 0, len: 4096 });
            assert!(speech.say(&words, false).is_ok());
            speech.stream.set_nonblocking(false).expect("a socket can be switched");
            let mut reply = [0; 12];
            speech.stream.read_exact(&mut reply).expect("an answer");
            let error = match style {
                Style::ExportName | Style::Simple => u32::from_be_bytes(reply[4..8].try_into().expect("4")),
                _ => u32::from(reply[6] >> 7),
            };
            assert_eq!(error, 0, "{style:?}");
        }
    }
}
