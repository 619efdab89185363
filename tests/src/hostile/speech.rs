//! A connection of a hostile client: says anything, in any style of the protocol, and never waits for long.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::Chance;
use super::door::{Door, Wire};
use super::words::{client_flags, option, queries, text};

/// How long the server may take nothing before the client goes on without it.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 30_000_000 };

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
    wire: Wire,
    style: Style,
    cookie: u64,
}

impl Speech {
    /// Connects; what it says next is its [`Speech::opening`]. Where there is TLS, most clients have begun it by then.
    pub(super) fn connect(door: &Door, chance: &mut Chance) -> io::Result<Self> {
        let protected = door.has_tls() && !chance.one_in(4);
        let wire =
            if protected { Wire::Tls(Box::new(door.enter_tls(chance)?)) } else { Wire::Plain(door.knock()?) };
        wire.stream().set_nonblocking(true)?;
        Ok(Self { wire, style: Style::Simple, cookie: 0 })
    }

    /// Connects and enters an export.
    pub(super) fn enter(door: &Door, chance: &mut Chance, export: &str, style: Style) -> io::Result<Self> {
        let mut speech = Self::connect(door, chance)?;
        speech.style = style;
        speech.wire.stream().set_nonblocking(false)?;
        let words = [speech.opening(), handshake(export, style)].concat();
        speech.wire.write_all(&words)?;
        speech.wire.flush()?;
        speech.entered()?;
        speech.wire.stream().set_nonblocking(true)?;
        Ok(speech)
    }

    /// Says the bytes on a socket as they are, whatever was said there before.
    pub(super) fn as_it_is(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { wire: Wire::Plain(stream), style: Style::Simple, cookie: 0 })
    }

    /// What a client says before its options: in TLS it has said that before.
    pub(super) fn opening(&self) -> Vec<u8> {
        if matches!(self.wire, Wire::Plain(_)) { client_flags() } else { Vec::new() }
    }

    /// Reads what the server says to a handshake, to its end.
    fn entered(&mut self) -> io::Result<()> {
        if matches!(self.wire, Wire::Plain(_)) {
            self.skip(18)?;
        }
        if self.style == Style::ExportName {
            return self.skip(10);
        }
        loop {
            let mut head = [0; 20];
            self.wire.read_exact(&mut head)?;
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
        self.wire.read_exact(&mut vec![0; len])
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
        loop {
            let said = if bytes.is_empty() { self.wire.flush().map(|()| 0) } else { self.wire.write(bytes) };
            match said {
                Ok(_) if bytes.is_empty() => return Ok(()),
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
    }

    /// Reads what is there, at most a few MiB.
    pub(super) fn hear(&mut self) -> Result<(), Stuck> {
        let mut bytes = [0; 65536];
        for _ in 0..64 {
            match self.wire.read(&mut bytes) {
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
        let _ = self.wire.stream().shutdown(std::net::Shutdown::Write);
    }

    fn wait(&self, wanted: PollFlags) -> Result<(), Stuck> {
        let mut fds = [PollFd::new(self.wire.stream(), wanted)];
        match poll(&mut fds, Some(&PATIENCE)) {
            Ok(count) if count > 0 => Ok(()),
            _ => Err(Stuck),
        }
    }
}

/// The options by which a client enters an export.
fn handshake(export: &str, style: Style) -> Vec<u8> {
    let mut words = Vec::new();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Launch;
    use crate::raw::command;

    /// A hostile client whose handshake fails would attack nothing.
    #[test]
    fn every_style_enters_and_is_answered() {
        let launch = Launch::ram("64M");
        let folder = launch.folder();
        let (plain, protected) = (Door::plain(launch.socket()), Door::with_tls(launch.socket(), &folder));
        let launch = launch.with("--tls-certificates", folder.path()).with("--tls", "optional");
        let _server = launch.start();
        for seed in 0..32 {
            let styles = [Style::ExportName, Style::Simple, Style::Structured, Style::Extended];
            let (style, door) = (styles[seed % 4], if seed % 3 == 0 { &plain } else { &protected });
            answers(Speech::enter(door, &mut Chance::new(seed as u64), "", style).expect("it is let in"));
        }
    }

    fn answers(mut speech: Speech) {
        let style = speech.style;
        let command = if style >= Style::Structured { command::BLOCK_STATUS } else { command::READ };
        let words = speech.header(Request { command, flags: 0, offset: 0, len: 4096 });
        assert!(speech.say(&words, false).is_ok());
        speech.wire.stream().set_nonblocking(false).expect("a socket can be switched");
        let mut reply = [0; 12];
        speech.wire.read_exact(&mut reply).expect("an answer");
        let error = match style {
            Style::ExportName | Style::Simple => u32::from_be_bytes(reply[4..8].try_into().expect("4")),
            _ => u32::from(reply[6] >> 7),
        };
        assert_eq!(error, 0, "{style:?}");
    }
}
