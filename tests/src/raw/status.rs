//! A client with structured replies, which can ask what is allocated.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::{FIXED_NEWSTYLE_NO_ZEROES, OPTION_EXPORT_NAME, OPTION_MAGIC, REPLY_MAGIC, connect, header_with};

const OPTION_STRUCTURED_REPLY: u32 = 8;
const OPTION_SET_META_CONTEXT: u32 = 10;

/// The reply to an option that ends it.
const ACK: u32 = 1;

/// Of a chunk: it is a reply's last, and the least type that is an error.
const DONE: u16 = 1;
const ERRORS: u16 = 1 << 15;

/// A negotiated connection with structured replies and the context `base:allocation`.
pub struct Status {
    stream: UnixStream,
    cookie: u64,
    /// Received and not looked at.
    bytes: Vec<u8>,
    /// An earlier chunk of the present reply was an error.
    failed: bool,
}

impl Status {
    /// Connects and negotiates; panics where the server refuses.
    pub fn open(socket: &Path, export: &str) -> Self {
        Self::try_open(socket, export).expect("the server negotiates")
    }

    fn try_open(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = connect(socket)?;
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
        accepted(&mut stream, OPTION_STRUCTURED_REPLY, &[])?;
        let context = [&text(export)[..], &1u32.to_be_bytes(), &text("base:allocation")].concat();
        accepted(&mut stream, OPTION_SET_META_CONTEXT, &context)?;
        stream.write_all(&option(OPTION_EXPORT_NAME, export.as_bytes()))?;
        stream.read_exact(&mut [0; 10])?;
        Ok(Self { stream, cookie: 0, bytes: Vec::new(), failed: false })
    }

    /// Sends a request without payload, and without waiting. Fails once the server has hung up.
    pub fn send(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> io::Result<()> {
        self.cookie += 1;
        self.stream.write_all(&header_with(flags, command, self.cookie, offset, len))
    }

    /// Sends requests of command, offset and length at once, without waiting for a reply. Fails once the server has hung up.
    pub fn send_all(&mut self, requests: impl IntoIterator<Item = (u16, u64, u32)>) -> io::Result<()> {
        let mut words = Vec::new();
        for (command, offset, len) in requests {
            self.cookie += 1;
            words.extend(header_with(0, command, self.cookie, offset, len));
        }
        self.stream.write_all(&words)
    }

    /// Waits for a whole reply; false where it is an error.
    pub fn answered(&mut self) -> io::Result<bool> {
        loop {
            if let Some(success) = self.next_reply() {
                return Ok(success);
            }
            self.receive()?;
        }
    }

    /// Counts the replies that have arrived whole, and forgets them.
    pub fn arrived(&mut self) -> usize {
        self.stream.set_nonblocking(true).expect("a socket can be switched");
        let received = loop {
            if let Err(error) = self.receive() {
                break error;
            }
        };
        assert_eq!(received.kind(), ErrorKind::WouldBlock, "{received}");
        self.stream.set_nonblocking(false).expect("a socket can be switched");
        std::iter::from_fn(|| self.next_reply()).count()
    }

    fn receive(&mut self) -> io::Result<()> {
        let mut bytes = [0; 65536];
        match self.stream.read(&mut bytes)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            count => {
                self.bytes.extend(&bytes[..count]);
                Ok(())
            }
        }
    }

    /// Takes a simple reply, or chunks up to the end of a structured one, if that is here.
    fn next_reply(&mut self) -> Option<bool> {
        loop {
            if self.bytes.starts_with(&REPLY_MAGIC.to_be_bytes()) {
                let error = u32::from_be_bytes(self.bytes.get(4..8)?.try_into().expect("4 bytes"));
                let whole = self.bytes.len() >= 16;
                return whole.then(|| self.bytes.drain(..16)).map(|_| error == 0);
            }
            let head = self.bytes.get(..20)?;
            let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
            let (flags, kind) = (half(4), half(6));
            let len = 20 + u32::from_be_bytes(head[16..].try_into().expect("4 bytes")) as usize;
            if self.bytes.len() < len {
                return None;
            }
            self.bytes.drain(..len);
            self.failed |= kind >= ERRORS;
            if flags & DONE != 0 {
                return Some(!std::mem::take(&mut self.failed));
            }
        }
    }
}

/// Sends an option and waits until the server has accepted it.
fn accepted(stream: &mut UnixStream, number: u32, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&option(number, bytes))?;
    loop {
        let mut head = [0; 20];
        stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        stream.read_exact(&mut vec![0; word(16) as usize])?;
        assert_eq!(word(12) >> 31, 0, "option {number} is refused");
        if word(12) == ACK {
            return Ok(());
        }
    }
}

fn option(number: u32, bytes: &[u8]) -> Vec<u8> {
    [OPTION_MAGIC, &number.to_be_bytes()[..], &(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

fn text(words: &str) -> Vec<u8> {
    [&(words.len() as u32).to_be_bytes()[..], words.as_bytes()].concat()
}
