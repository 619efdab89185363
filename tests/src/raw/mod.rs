//! A client that speaks NBD by hand, so that it can break any rule.

mod status;

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::PATIENCE;
pub use status::Status;

/// Commands of the protocol.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write.
    pub const WRITE: u16 = 1;
    /// Polite end.
    pub const DISC: u16 = 2;
    /// Flush.
    pub const FLUSH: u16 = 3;
    /// Discard.
    pub const TRIM: u16 = 4;
    /// Announcement of reads.
    pub const CACHE: u16 = 5;
    /// Zeroing.
    pub const WRITE_ZEROES: u16 = 6;
    /// What is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod flag {
    /// Of what changes something: durable before it is answered.
    pub const FUA: u16 = 1;
    /// Of a zeroing: no hole is made.
    pub const NO_HOLE: u16 = 2;
    /// Of a zeroing: only if that is faster than writing zeroes.
    pub const FAST_ZERO: u16 = 16;
}

/// Errors of the protocol.
pub mod errno {
    /// Not allowed, as a write to a read-only export.
    pub const EPERM: u32 = 1;
    /// The disk, or the way to it, fails.
    pub const EIO: u32 = 5;
    /// Malformed.
    pub const EINVAL: u32 = 22;
    /// No space.
    pub const ENOSPC: u32 = 28;
    /// Not supported.
    pub const ENOTSUP: u32 = 95;
}

const FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
const OPTION_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection in which nothing was said yet; reads and writes fail after [`PATIENCE`].
pub fn connect(socket: &Path) -> io::Result<UnixStream> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// A negotiated connection with simple replies.
pub struct Client<S = UnixStream> {
    /// The connection, for whatever the methods do not do.
    pub stream: S,
    /// Size of the export in bytes.
    pub size: u64,
    cookie: u64,
}

impl Client {
    /// Connects and negotiates; panics where the server refuses.
    pub fn open(socket: &Path, export: &str) -> Self {
        Self::try_open(socket, export).expect("the server negotiates")
    }

    /// Connects and negotiates. Fails where the server does not, or hangs up.
    pub fn try_open(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = connect(socket)?;
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting)?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        stream.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
        Self::enter(stream, export)
    }

    /// Whether bytes of a reply, or the end, can be received without waiting.
    pub fn is_answered(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket can be switched");
        let mut byte = [0];
        let peeked = rustix::net::recv(&self.stream, &mut byte, rustix::net::RecvFlags::PEEK);
        self.stream.set_nonblocking(false).expect("a socket can be switched");
        peeked.is_ok()
    }
}

impl<S: Read + Write> Client<S> {
    /// Chooses an export, on a connection where client and server have exchanged their flags. Fails where the server hangs up.
    pub fn enter(mut stream: S, export: &str) -> io::Result<Self> {
        let mut words = OPTION_MAGIC.to_vec();
        words.extend(OPTION_EXPORT_NAME.to_be_bytes());
        words.extend((export.len() as u32).to_be_bytes());
        words.extend(export.as_bytes());
        stream.write_all(&words)?;
        let mut answer = [0; 10];
        stream.read_exact(&mut answer)?;
        let size = u64::from_be_bytes(answer[..8].try_into().expect("8 bytes"));
        Ok(Self { stream, size, cookie: 0 })
    }

    /// Sends a request without its payload, and without waiting. Returns its cookie. Fails once the server has hung up.
    pub fn send(&mut self, command: u16, offset: u64, len: u32) -> io::Result<u64> {
        self.cookie += 1;
        self.stream.write_all(&header(command, self.cookie, offset, len))?;
        Ok(self.cookie)
    }

    /// Sends requests of command, offset and length at once, without payload and without waiting: small enough to fit into
    /// the socket even where the server does not read. Fails once it has hung up.
    pub fn send_all(&mut self, requests: impl IntoIterator<Item = (u16, u64, u32)>) -> io::Result<()> {
        let mut words = Vec::new();
        for (command, offset, len) in requests {
            self.cookie += 1;
            words.extend(header(command, self.cookie, offset, len));
        }
        self.stream.write_all(&words)
    }

    /// Receives the head of a reply: error and cookie.
    pub fn reply(&mut self) -> io::Result<(u32, u64)> {
        let mut head = [0; 16];
        self.stream.read_exact(&mut head)?;
        let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        assert_eq!(word(0), REPLY_MAGIC, "a reply begins with its magic");
        Ok((word(4), u64::from_be_bytes(head[8..].try_into().expect("8 bytes"))))
    }

    /// A request with its answer, for a client with nothing else in flight. `Err` is the protocol's error.
    pub fn ask(&mut self, command: u16, offset: u64, len: u32) -> Result<(), u32> {
        let cookie = self.send(command, offset, len).expect("the server takes requests");
        self.answer(cookie)
    }

    /// [`Client::ask`] with flags of the command, and its errors.
    pub fn ask_with(&mut self, flags: u16, command: u16, offset: u64, len: u32) -> Result<(), u32> {
        self.cookie += 1;
        let header = header_with(flags, command, self.cookie, offset, len);
        self.stream.write_all(&header).expect("the server takes requests");
        self.answer(self.cookie)
    }

    fn answer(&mut self, cookie: u64) -> Result<(), u32> {
        let (error, answered) = self.reply().expect("the server answers");
        assert_eq!(answered, cookie, "the answer is to the request");
        if error == 0 { Ok(()) } else { Err(error) }
    }

    /// [`Client::ask`] that fails by an error of the system, once the server has hung up too.
    pub fn try_ask(&mut self, command: u16, offset: u64, len: u32) -> io::Result<()> {
        self.send(command, offset, len)?;
        self.try_answer()
    }

    fn try_answer(&mut self) -> io::Result<()> {
        match self.reply()? {
            (0, _) => Ok(()),
            (error, _) => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }

    /// Writes; errors as of [`Client::try_ask`].
    pub fn try_write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.send(command::WRITE, offset, bytes.len() as u32)?;
        self.stream.write_all(bytes)?;
        self.try_answer()
    }

    /// Reads all of `bytes`; errors as of [`Client::try_ask`].
    pub fn try_read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.try_ask(command::READ, offset, bytes.len() as u32)?;
        self.stream.read_exact(bytes)
    }

    /// Reads. `Err` is the protocol's error.
    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.ask(command::READ, offset, len as u32)?;
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the answer has its bytes");
        Ok(bytes)
    }

    /// Writes. `Err` is the protocol's error.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        let cookie =
            self.send(command::WRITE, offset, bytes.len() as u32).expect("the server takes requests");
        self.stream.write_all(bytes).expect("the server takes the payload");
        self.answer(cookie)
    }

    /// [`Client::write`] with flags of the command.
    pub fn write_with(&mut self, flags: u16, offset: u64, bytes: &[u8]) -> Result<(), u32> {
        self.cookie += 1;
        let header = header_with(flags, command::WRITE, self.cookie, offset, bytes.len() as u32);
        self.stream.write_all(&[&header, bytes].concat()).expect("the server takes requests");
        self.answer(self.cookie)
    }
}

/// The 28 bytes of a request.
pub fn header(command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    header_with(0, command, cookie, offset, len)
}

/// [`header`] with flags of the command.
pub fn header_with(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}
