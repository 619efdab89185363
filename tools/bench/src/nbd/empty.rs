//! An NBD server without storage: reads are answered with the same bytes, writes are thrown away.
//!
//! What any server can reach at most over this transport with a blocking thread for each connection. It shares no code with
//! Spillway, so that what our own transport costs is not hidden in the ceiling. Numbers and layouts are those of the NBD
//! protocol specification; it understands as much of it as fio's client asks for.

use std::io::{IoSlice, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use anyhow::{Context, Result, bail};

const OPTION_MAGIC: u64 = 0x0003_e889_0455_65a9;
const FIXED_NEWSTYLE_NO_ZEROES: u16 = 3;
const OPT_GO: u32 = 7;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_ERR_UNSUP: u32 = 0x8000_0001;
/// HAS_FLAGS, SEND_FLUSH, CAN_MULTI_CONN.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 8;

const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const REQUEST_LEN: usize = 28;
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISC: u16 = 2;

/// Bytes of one receive, and of the longest read that is answered.
const RECEIVE_LEN: usize = 1 << 20;

/// Slices of one send.
const SLICES_MAX: usize = 512;

/// Serves `size` bytes of nothing on `socket` until the process is killed.
pub(crate) fn serve(socket: &Path, size: u64) -> Result<()> {
    let listener = UnixListener::bind(socket).with_context(|| socket.display().to_string())?;
    loop {
        let (stream, _) = listener.accept()?;
        // A client that goes away ends its thread alone.
        std::thread::spawn(move || converse(stream, size));
    }
}

fn converse(mut stream: UnixStream, size: u64) -> Result<()> {
    shake_hands(&mut stream, size)?;
    let mut connection = Connection { stream, skip: 0, owed: None, headers: Vec::new(), lens: Vec::new() };
    connection.answer_all()
}

fn number<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn shake_hands(stream: &mut UnixStream, size: u64) -> Result<()> {
    stream.write_all(b"NBDMAGICIHAVEOPT")?;
    stream.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
    number::<4>(stream)?;
    loop {
        number::<8>(stream)?;
        let option = u32::from_be_bytes(number(stream)?);
        let mut payload = vec![0; u32::from_be_bytes(number(stream)?) as usize];
        stream.read_exact(&mut payload)?;
        if option != OPT_GO {
            reply_to_option(stream, option, REP_ERR_UNSUP, &[])?;
            continue;
        }
        // Information of type NBD_INFO_EXPORT (0): size and flags.
        let info = [&[0, 0][..], &size.to_be_bytes(), &EXPORT_FLAGS.to_be_bytes()].concat();
        reply_to_option(stream, option, REP_INFO, &info)?;
        return reply_to_option(stream, option, REP_ACK, &[]);
    }
}

fn reply_to_option(stream: &mut UnixStream, option: u32, kind: u32, payload: &[u8]) -> Result<()> {
    let numbers = [option, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
    Ok(stream.write_all(&[&OPTION_MAGIC.to_be_bytes()[..], &numbers, payload].concat())?)
}

/// Replies that are gathered: a header each, and so many bytes of content behind it.
struct Connection {
    stream: UnixStream,
    /// Bytes of a payload that are still to come, and the reply once they have.
    skip: usize,
    owed: Option<[u8; 16]>,
    headers: Vec<[u8; 16]>,
    lens: Vec<usize>,
}

impl Connection {
    fn answer_all(&mut self) -> Result<()> {
        let content = vec![0x5a; RECEIVE_LEN];
        let mut buf = vec![0; RECEIVE_LEN];
        let mut filled = 0;
        loop {
            let count = self.stream.read(&mut buf[filled..])?;
            if count == 0 {
                return Ok(());
            }
            filled += count;
            let used = self.take(&buf[..filled], content.len())?;
            buf.copy_within(used..filled, 0);
            filled -= used;
            self.send(&content)?;
        }
    }

    /// Takes whole headers and all of the payloads in `bytes`; returns how many bytes that were.
    fn take(&mut self, bytes: &[u8], len_max: usize) -> Result<usize> {
        let mut at = 0;
        loop {
            let skipped = self.skip.min(bytes.len() - at);
            at += skipped;
            self.skip -= skipped;
            if self.skip > 0 {
                return Ok(at);
            }
            if let Some(reply) = self.owed.take() {
                self.note(reply, 0);
            }
            let Some(header) = bytes[at..].first_chunk::<REQUEST_LEN>() else { return Ok(at) };
            at += REQUEST_LEN;
            self.begin(header, len_max)?;
        }
    }

    fn begin(&mut self, header: &[u8; REQUEST_LEN], len_max: usize) -> Result<()> {
        let field = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let command = u16::from_be_bytes([header[6], header[7]]);
        let len = field(24) as usize;
        if field(0) != REQUEST_MAGIC || command == CMD_DISC || len > len_max {
            bail!("the end, or something that is not understood");
        }
        let mut reply = [0; 16];
        reply[..4].copy_from_slice(&REPLY_MAGIC.to_be_bytes());
        reply[8..].copy_from_slice(&header[8..16]);
        match command {
            CMD_READ => self.note(reply, len),
            CMD_WRITE => (self.skip, self.owed) = (len, Some(reply)),
            _ => self.note(reply, 0),
        }
        Ok(())
    }

    fn note(&mut self, reply: [u8; 16], len: usize) {
        self.headers.push(reply);
        self.lens.push(len);
    }

    fn send(&mut self, content: &[u8]) -> Result<()> {
        let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(2 * self.headers.len());
        for (header, &len) in self.headers.iter().zip(&self.lens) {
            slices.push(IoSlice::new(header));
            if len > 0 {
                slices.push(IoSlice::new(&content[..len]));
            }
        }
        let mut rest = &mut slices[..];
        while !rest.is_empty() {
            let most = rest.len().min(SLICES_MAX);
            let sent = self.stream.write_vectored(&rest[..most])?;
            IoSlice::advance_slices(&mut rest, sent);
        }
        self.headers.clear();
        self.lens.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(command: u16, cookie: u64, len: u32) -> Vec<u8> {
        let start = [&REQUEST_MAGIC.to_be_bytes()[..], &[0, 0], &command.to_be_bytes()].concat();
        [&start[..], &cookie.to_be_bytes(), &0u64.to_be_bytes(), &len.to_be_bytes()].concat()
    }

    #[test]
    fn pipelined_requests_in_pieces_get_their_replies_in_order() {
        let (mut client, server) = UnixStream::pair().expect("sockets");
        let thread = std::thread::spawn(move || converse(server, 1 << 20));
        number::<18>(&mut client).expect("a greeting");
        let go = [&3u32.to_be_bytes()[..], b"IHAVEOPT", &OPT_GO.to_be_bytes(), &0u32.to_be_bytes()].concat();
        client.write_all(&go).expect("sent");
        number::<{ 20 + 12 + 20 }>(&mut client).expect("the export and an acknowledgement");
        let mut bytes = request(CMD_WRITE, 7, 3000);
        bytes.extend([9; 3000]);
        bytes.extend(request(CMD_READ, 8, 600));
        let (most, last) = bytes.split_at(28 + 2999);
        for piece in most.chunks(29) {
            client.write_all(piece).expect("sent");
        }
        client.set_nonblocking(true).expect("a socket");
        assert!(client.read(&mut [0; 1]).is_err(), "no reply before the payload is here whole");
        client.set_nonblocking(false).expect("a socket");
        client.write_all(last).expect("sent");
        let written = number::<16>(&mut client).expect("a reply");
        assert_eq!((&written[..8], written[15]), (&[0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0][..], 7));
        let read = number::<616>(&mut client).expect("a reply and content");
        assert!(read[15] == 8 && read[16..].iter().all(|&byte| byte == 0x5a));
        client.write_all(&request(CMD_DISC, 9, 0)).expect("sent");
        assert!(thread.join().expect("no panic").is_err());
    }
}
