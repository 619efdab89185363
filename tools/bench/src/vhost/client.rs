//! The generator as a client of NBD on a unix socket: requests of a batch leave in one system call, and one
//! receives the replies that are there.
//!
//! The socket blocks. That cannot lock up: a case only reads or only writes, so that one direction carries
//! nothing but headers, all of which fit in a socket's buffer.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use spillway_export::nbd::wire::{
    HeaderStyle, OptionHeader, OptionReplyHeader, ReplyHeader, RequestHeader, cmd, handshake_flag, opt, rep,
};

use super::cases::Case;
use super::generator::{Transport, uninterrupted};
use crate::peers::pages::PAGE;

const GREETING_LEN: usize = 18;
const REQUEST_LEN: usize = HeaderStyle::Compact.request_len();
const REPLY_LEN: usize = 16;

/// Slices of a batch: a header and a payload for each of 64 requests.
const SLICES_MAX: usize = 128;

/// Received bytes that are not sorted into slots yet. Where requests are large, all but their first bytes are
/// received directly into their slots.
const STAGED: usize = 256 << 10;
const STAGED_LARGE: usize = PAGE;

pub(super) struct Client {
    stream: UnixStream,
    case: Case,
    memory: Vec<u8>,
    /// Of the batch that is gathered.
    headers: Vec<u8>,
    batch: Vec<usize>,
    staged: Vec<u8>,
    /// Where the received bytes begin and end in `staged`.
    start: usize,
    end: usize,
    /// The range of `memory` that is still to be received, of a slot whose header has come.
    rest: Option<(usize, usize)>,
}

impl Client {
    pub(super) fn connect(socket: &Path, export: &str, case: Case) -> Result<Self> {
        assert!(2 * case.depth <= SLICES_MAX, "a batch is sent at once");
        let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        shake_hands(&mut stream, export)?;
        let staged = if case.is_small() { STAGED } else { STAGED_LARGE };
        Ok(Self {
            stream,
            case,
            memory: vec![0; case.depth * case.bytes],
            headers: Vec::with_capacity(case.depth * REQUEST_LEN),
            batch: Vec::with_capacity(case.depth),
            staged: vec![0; staged],
            start: 0,
            end: 0,
            rest: None,
        })
    }

    /// Sorts received bytes into slots; appends those that are complete.
    fn sort(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        loop {
            if let Some((from, to)) = self.rest {
                let len = (to - from).min(self.end - self.start);
                self.memory[from..from + len].copy_from_slice(&self.staged[self.start..self.start + len]);
                self.start += len;
                self.advance(len, slots);
                if self.rest.is_some() {
                    return Ok(());
                }
            }
            if self.end - self.start < REPLY_LEN {
                return Ok(());
            }
            let header = ReplyHeader::decode(&self.staged[self.start..self.end]);
            let Some((ReplyHeader::Simple { error: 0, cookie }, len)) = header else {
                bail!("a request is answered with {header:?}")
            };
            self.start += len;
            let slot = cookie as usize;
            if self.case.writes {
                slots.push(slot);
            } else {
                self.rest = Some((slot * self.case.bytes, (slot + 1) * self.case.bytes));
            }
        }
    }

    /// So many more bytes of the slot that is being received have come.
    fn advance(&mut self, len: usize, slots: &mut Vec<usize>) {
        let Some((from, to)) = self.rest.take() else { return };
        if from + len == to {
            slots.push(from / self.case.bytes);
        } else {
            self.rest = Some((from + len, to));
        }
    }

    /// Receives into the slot that is being received, and behind it what comes next.
    fn receive(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        self.staged.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let (from, to) = self.rest.unwrap_or_default();
        let mut into =
            [IoSliceMut::new(&mut self.memory[from..to]), IoSliceMut::new(&mut self.staged[self.end..])];
        let count = uninterrupted(|| self.stream.read_vectored(&mut into))?;
        ensure!(count > 0, "the server has closed the connection");
        let direct = count.min(to - from);
        self.end += count - direct;
        self.advance(direct, slots);
        Ok(())
    }
}

impl Transport for Client {
    fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    fn submit(&mut self, slot: usize, offset: u64) -> Result<()> {
        let command = if self.case.writes { cmd::WRITE } else { cmd::READ };
        let (cookie, length) = (slot as u64, self.case.bytes as u64);
        let header = RequestHeader { flags: 0, command, cookie, offset, length };
        header.encode(HeaderStyle::Compact, &mut self.headers);
        self.batch.push(slot);
        Ok(())
    }

    fn kick(&mut self) -> Result<()> {
        if !self.case.writes {
            self.stream.write_all(&self.headers)?;
        } else {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let headers = self.headers.chunks_exact(REQUEST_LEN);
            for ((pair, header), slot) in slices.chunks_exact_mut(2).zip(headers).zip(&self.batch) {
                let payload = &self.memory[slot * self.case.bytes..][..self.case.bytes];
                pair.copy_from_slice(&[IoSlice::new(header), IoSlice::new(payload)]);
            }
            let mut rest = &mut slices[..2 * self.batch.len()];
            while !rest.is_empty() {
                let sent = uninterrupted(|| self.stream.write_vectored(rest))?;
                IoSlice::advance_slices(&mut rest, sent);
            }
        }
        self.headers.clear();
        self.batch.clear();
        Ok(())
    }

    fn reap(&mut self, slots: &mut Vec<usize>) -> Result<()> {
        let before = slots.len();
        while slots.len() == before {
            self.receive(slots)?;
            self.sort(slots)?;
        }
        Ok(())
    }
}

/// Chooses an export, with simple replies.
fn shake_hands(stream: &mut UnixStream, export: &str) -> Result<()> {
    stream.read_exact(&mut [0; GREETING_LEN])?;
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    // The name with its length before it, and no request for information.
    let choice = [&(export.len() as u32).to_be_bytes()[..], export.as_bytes(), &[0, 0]].concat();
    let option = OptionHeader { option: opt::GO, len: choice.len() as u32 }.encode();
    stream.write_all(&[&u32::from(flags).to_be_bytes()[..], &option, &choice].concat())?;
    loop {
        let mut header = [0; OptionReplyHeader::LEN];
        stream.read_exact(&mut header)?;
        let header = OptionReplyHeader::decode(&header).context("a reply to an option")?;
        let mut payload = vec![0; header.len as usize];
        stream.read_exact(&mut payload)?;
        match header.reply {
            rep::INFO => {}
            rep::ACK => return Ok(()),
            reply => bail!("export {export:?} is refused: {reply:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_in_pieces_arrive_in_their_slots() {
        let (client, mut server) = UnixStream::pair().expect("sockets");
        let case = Case::small("", false, 2);
        let mut client = Client {
            stream: client,
            case,
            memory: vec![0; 2 * PAGE],
            headers: Vec::new(),
            batch: Vec::new(),
            staged: vec![0; 100],
            start: 0,
            end: 0,
            rest: None,
        };
        for slot in [1, 0] {
            client.submit(slot, 0).expect("room");
        }
        client.kick().expect("a server");
        server.read_exact(&mut [0; 2 * REQUEST_LEN]).expect("two requests");
        let reply = |slot: u64| {
            let header = spillway_export::nbd::wire::simple_reply(0, slot);
            [&header[..], &vec![7 + slot as u8; PAGE]].concat()
        };
        let bytes = [reply(1), reply(0)].concat();
        let thread = std::thread::spawn(move || {
            bytes.chunks(333).for_each(|piece| server.write_all(piece).expect("a client"));
        });
        let mut slots = Vec::new();
        while slots.len() < 2 {
            client.reap(&mut slots).expect("a server");
        }
        thread.join().expect("no panic");
        assert_eq!(slots, [1, 0]);
        assert!(client.memory[..PAGE].iter().all(|&byte| byte == 7));
        assert!(client.memory[PAGE..].iter().all(|&byte| byte == 8));
    }
}
