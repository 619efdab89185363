//! A client of an NBD server: what copying images needs of the protocol, one request at a time.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use spillway_core::{ByteRange, Kind, SECTOR};
use spillway_export::nbd::wire::{
    BASE_ALLOCATION, HeaderStyle, INIT_MAGIC, OPTION_MAGIC, OptionHeader, OptionReplyHeader, REPLY_FLAG_DONE,
    Reader, ReplyHeader, RequestHeader, STATE_ZERO, chunk, cmd, errno, flag, handshake_flag, info, opt, rep,
};
use spillway_export::tls::StreamOwned;
use spillway_io::ServerAddress;

use crate::address::Address;
use crate::exit::{Exit, Failure};
use crate::trust::trust;

/// Longest reply to an option, and longest reply that carries no data, that is believed.
const REPLY_LEN_MAX: u64 = 1 << 20;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

fn boxed(stream: io::Result<impl Stream + 'static>) -> io::Result<Box<dyn Stream>> {
    Ok(Box::new(stream?))
}

/// A connection to an export.
pub(super) struct Nbd {
    stream: Box<dyn Stream>,
    size: u64,
    flags: u16,
    cookie: u64,
}

impl Nbd {
    /// Connects to what a listing names, with the certificates of a folder where that speaks TLS.
    pub(super) fn connect(uri: &str, certificates: Option<&Path>) -> Result<Self> {
        let (address, export) = Address::parse(uri)?;
        let stream = match &address.place {
            ServerAddress::Unix(path) => boxed(UnixStream::connect(path)),
            ServerAddress::Tcp(host, port) => boxed(TcpStream::connect((host.as_str(), *port))),
        };
        let stream = stream.context("cannot connect to the server")?;
        let mut client = Self::over(stream);
        client.greet()?;
        if address.tls {
            client = client.protected(address.host(), certificates)?;
        }
        client.choose(&export).context("the device cannot be used")?;
        Ok(client)
    }

    /// Makes the handshake for who knows simple replies only, to whom the socket is passed on; the size and the flags of the export.
    pub(super) fn negotiate(socket: &UnixStream, export: &str) -> Result<(u64, u16)> {
        let mut client = Self::over(Box::new(socket.try_clone()?));
        client.greet()?;
        client.go(export)?;
        ensure!(client.size > 0, "the server does not say how large it is");
        Ok((client.size, client.flags))
    }

    fn over(stream: Box<dyn Stream>) -> Self {
        Self { stream, size: 0, flags: 0, cookie: 0 }
    }

    /// Goes on in TLS.
    fn protected(mut self, host: &str, certificates: Option<&Path>) -> Result<Self> {
        let Some(folder) = certificates else {
            let text =
                "the server speaks TLS: give --tls-certificates DIR, with the ca-cert.pem of its authority";
            return Err(Failure::usage(text).into());
        };
        let connection = trust(folder)?.connection(host)?;
        self.option(opt::STARTTLS, &[])?;
        let stream = Box::new(StreamOwned::new(connection, self.stream));
        Ok(Self { stream, ..self })
    }

    /// Bytes of the export.
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// Whether it may be written.
    pub(super) fn is_writable(&self) -> bool {
        self.flags & flag::READ_ONLY == 0
    }

    fn greet(&mut self) -> Result<()> {
        let greeting: [u8; 18] = self.receive()?;
        let mut reader = Reader(&greeting);
        let sound = reader.u64() == Some(INIT_MAGIC) && reader.u64() == Some(OPTION_MAGIC);
        let offered = reader.u16().unwrap_or(0);
        let wanted = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        ensure!(sound && offered & handshake_flag::FIXED_NEWSTYLE != 0, "what answers there speaks no NBD");
        Ok(self.stream.write_all(&u32::from(offered & wanted).to_be_bytes())?)
    }

    fn choose(&mut self, export: &str) -> Result<()> {
        self.option(opt::STRUCTURED_REPLY, &[])?;
        let name = query_of(export);
        let context = [&(BASE_ALLOCATION.len() as u32).to_be_bytes(), BASE_ALLOCATION.as_bytes()].concat();
        let infos =
            self.option(opt::SET_META_CONTEXT, &[&name[..], &1u32.to_be_bytes(), &context].concat())?;
        ensure!(!infos.is_empty(), "it does not tell holes from data");
        self.go(export)
    }

    fn go(&mut self, export: &str) -> Result<()> {
        for told in self.option(opt::GO, &[&query_of(export)[..], &0u16.to_be_bytes()].concat())? {
            let mut reader = Reader(&told);
            if reader.u16() == Some(info::EXPORT) {
                let told = reader.u64().zip(reader.u16());
                (self.size, self.flags) = told.context("its description is too short")?;
                let size = self.size;
                ensure!(size.is_multiple_of(SECTOR), "its size of {size} bytes is no multiple of {SECTOR}");
            }
        }
        Ok(())
    }

    /// Asks for an option; what is answered before it is acknowledged.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.stream.write_all(&OptionHeader { option, len: data.len() as u32 }.encode())?;
        self.stream.write_all(data)?;
        let mut answers = Vec::new();
        loop {
            let header: [u8; OptionReplyHeader::LEN] = self.receive()?;
            let header =
                OptionReplyHeader::decode(&header).context("a reply to an option has a wrong magic")?;
            let data = self.bytes(header.len.into())?;
            match header.reply {
                rep::ACK => return Ok(answers),
                // The device is there, since its server was asked: it lets nobody else in.
                rep::ERR_UNKNOWN => {
                    let words = String::from_utf8_lossy(&data);
                    return Err(Failure::new(
                        Exit::Busy,
                        format!("{words}: disconnect it, or detach it first"),
                    )
                    .into());
                }
                reply if reply >> 31 == 1 => bail!("option {option}: {}", String::from_utf8_lossy(&data)),
                _ => answers.push(data),
            }
        }
    }

    fn receive<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).context("the server ended the connection")?;
        Ok(bytes)
    }

    fn bytes(&mut self, len: u64) -> Result<Vec<u8>> {
        ensure!(len <= REPLY_LEN_MAX, "a reply of {len} bytes is too long");
        let mut bytes = vec![0; len as usize];
        self.stream.read_exact(&mut bytes).context("the server ended the connection")?;
        Ok(bytes)
    }

    /// Sends a request and takes its reply. Data of a read goes to `into`; returned is what a reply carries besides.
    fn ask(&mut self, command: u16, range: ByteRange, payload: &[u8], into: &mut [u8]) -> Result<Vec<u8>> {
        let room = into.len() as u64;
        assert!(room == 0 || room == range.len, "{range:?} is read into a buffer of {room} bytes");
        self.send(command, range, payload)?;
        let (mut told, mut error) = (Vec::new(), 0);
        loop {
            let (last, cookie) = match self.reply_header()? {
                ReplyHeader::Simple { error: simple, cookie } => {
                    error = simple;
                    (true, cookie)
                }
                ReplyHeader::Chunk(header) => {
                    match header.kind {
                        chunk::OFFSET_DATA => self.take_payload(range, header.length, into)?,
                        chunk::OFFSET_HOLE => clear(range, &self.bytes(header.length)?, into)?,
                        chunk::BLOCK_STATUS => told = self.bytes(header.length)?,
                        kind if kind >> 15 == 1 => error = refusal(&self.bytes(header.length)?),
                        _ => drop(self.bytes(header.length)?),
                    }
                    (header.flags & REPLY_FLAG_DONE != 0, header.cookie)
                }
            };
            ensure!(cookie == self.cookie, "a reply to something that was not asked");
            ensure!(!last || error == 0, "the server answers {}", Kind::of_errno(error as i32).errno_name());
            if last {
                return Ok(told);
            }
        }
    }

    fn send(&mut self, command: u16, range: ByteRange, payload: &[u8]) -> Result<()> {
        self.cookie += 1;
        let ByteRange { offset, len: length } = range;
        assert!(u32::try_from(length).is_ok(), "a compact header has no room for {length} bytes");
        let sent = payload.len() as u64;
        assert!(sent == 0 || sent == length, "{sent} bytes are sent for a range of {length}");
        let mut bytes = Vec::with_capacity(RequestHeader::LEN_MAX);
        let header = RequestHeader { flags: 0, command, cookie: self.cookie, offset, length };
        header.encode(HeaderStyle::Compact, &mut bytes);
        self.stream.write_all(&bytes)?;
        Ok(self.stream.write_all(payload)?)
    }

    fn reply_header(&mut self) -> Result<ReplyHeader> {
        let mut bytes = self.receive::<16>()?.to_vec();
        // A chunk has a longer one.
        if ReplyHeader::decode(&bytes).is_none() {
            bytes.extend(self.receive::<4>()?);
        }
        let (header, _) = ReplyHeader::decode(&bytes).context("a reply has a wrong magic")?;
        Ok(header)
    }

    fn take_payload(&mut self, range: ByteRange, len: u64, into: &mut [u8]) -> Result<()> {
        let offset = u64::from_be_bytes(self.receive()?);
        let part = window(range, offset, len.saturating_sub(8), into.len())?;
        self.stream.read_exact(&mut into[part]).context("the server ended the connection")
    }

    /// Reads what lies from `offset` on.
    pub(super) fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<()> {
        let range = ByteRange::new(offset, into.len() as u64);
        self.ask(cmd::READ, range, &[], into).map(drop)
    }

    /// Writes `bytes` from `offset` on.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.ask(cmd::WRITE, ByteRange::new(offset, bytes.len() as u64), bytes, &mut []).map(drop)
    }

    /// Makes a range of less than 4 GiB read as zero, as holes where that can be.
    pub(super) fn write_zeroes(&mut self, range: ByteRange) -> Result<()> {
        self.ask(cmd::WRITE_ZEROES, range, &[], &mut []).map(drop)
    }

    /// Makes what was written durable, as far as the device can.
    pub(super) fn flush(&mut self) -> Result<()> {
        self.ask(cmd::FLUSH, ByteRange::new(0, 0), &[], &mut []).map(drop)
    }

    /// Bytes from the start of a range of less than 4 GiB that are alike, and whether they read as zero.
    pub(super) fn extent(&mut self, range: ByteRange) -> Result<(u64, bool)> {
        let told = self.ask(cmd::BLOCK_STATUS, range, &[], &mut [])?;
        let mut reader = Reader(&told);
        let (mut len, mut zero) = (0, None);
        reader.u32().context("a reply without a context")?;
        while let Some((part, state)) = reader.u32().zip(reader.u32()) {
            let part_zero = state & STATE_ZERO != 0;
            if *zero.get_or_insert(part_zero) != part_zero {
                break;
            }
            len += u64::from(part);
        }
        ensure!(len > 0, "a reply about nothing");
        Ok((len.min(range.len), zero == Some(true)))
    }
}

/// The name of an export behind its length.
fn query_of(export: &str) -> Vec<u8> {
    [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat()
}

/// Where in a buffer for `range` lie `len` bytes from `offset` on.
fn window(range: ByteRange, offset: u64, len: u64, room: usize) -> Result<std::ops::Range<usize>> {
    let start = offset.checked_sub(range.offset).filter(|start| start.saturating_add(len) <= room as u64);
    let start = start.context("data that was not asked for")? as usize;
    Ok(start..start + len as usize)
}

/// A chunk about a hole: offset and length.
fn clear(range: ByteRange, chunk: &[u8], into: &mut [u8]) -> Result<()> {
    let mut reader = Reader(chunk);
    let (offset, len) = reader.u64().zip(reader.u32()).context("a hole of no length")?;
    let hole = window(range, offset, len.into(), into.len())?;
    into[hole].fill(0);
    Ok(())
}

/// The error of a chunk, which is one of Linux.
fn refusal(chunk: &[u8]) -> u32 {
    Reader(chunk).u32().filter(|&error| error != 0).unwrap_or(errno::EIO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_outside_of_what_was_asked_for_is_refused() {
        let range = ByteRange::new(100, 50);
        assert_eq!(window(range, 110, 40, 50).unwrap(), 10..50);
        for (offset, len) in [(99, 1), (110, 41), (u64::MAX, 1), (100, u64::MAX)] {
            assert!(window(range, offset, len, 50).is_err(), "{offset}+{len}");
        }
    }
}
