//! The session around another one.
//!
//! States: *plain*, until the session inside starts TLS; *protected*; *over*, once TLS has failed or the session inside has finished and the
//! peer was told so. A record that is deciphered and not taken waits in the connection, and the peer's next bytes outside.

use std::io::{self, BufRead, Write};
use std::sync::Arc;
use std::task::Context;

use rustls::Connection;
use spillway_core::session::{Intake, Output, Peer, Session};
use spillway_core::{IoBuf, work};

use super::certificates::{Certificates, Trust};
use super::records::RecordCount;

/// Bytes that TLS holds for a connection, beside its session: a record that comes in and one that is deciphered, the handshake, keys, and the
/// ciphertext that waits to be sent.
pub const TLS_BYTES: u64 = 128 << 10;

/// Bytes of plain output that are enciphered at a time.
const ENCIPHERED_MAX: usize = 64 << 10;

/// Slices of output that are enciphered together: headers go with the data behind them.
const SLICES_MAX: usize = 32;

/// Plain bytes of a record.
const RECORD_BYTES: usize = 16 << 10;

/// Units of work for a record that comes in, besides its bytes.
const RECORD_UNITS: u32 = 5;

/// Records that the keys of a connection serve for: half of what AES-GCM allows (RFC 8446, 5.5). Then they are changed, which TLS 1.2 has no
/// way for: the connection ends.
const RECORDS_MAX: u32 = 1 << 23;

/// A session that begins in plain and may go on in TLS.
pub trait StartTls: Session {
    /// Whether TLS begins behind what was taken so far: of a server, with what is sent behind the present output; of a client, with that. Asked
    /// after each [`Session::receive`], which takes nothing behind; true once.
    fn starts_tls(&mut self) -> bool;

    /// TLS could not begin or has failed: the conversation is over.
    fn fail(&mut self, why: &str);

    /// Whether it is over and nothing is to be sent any more, not even what was enciphered.
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// Which end of the connection this is.
enum Side {
    Server(Arc<Certificates>),
    Client(Arc<Trust>, String),
}

impl Side {
    fn connection(&self) -> Result<Connection, String> {
        match self {
            Side::Server(certificates) => certificates.connection().map_err(|why| why.to_string()),
            Side::Client(trust, host) => {
                trust.connection(host).map(Connection::Client).map_err(|why| why.message().to_owned())
            }
        }
    }
}

struct Tls {
    connection: Connection,
    records: RecordCount,
    /// The peer's certificate was looked at.
    admitted: bool,
    /// The peer has said that nothing more comes from it.
    peer_ended: bool,
    /// The peer was told that nothing more comes.
    ended: bool,
    failed: bool,
    /// For which the keys still serve.
    records_left: u32,
}

/// See [the module](super).
pub struct TlsSession<S> {
    inside: S,
    side: Side,
    tls: Option<Box<Tls>>,
    /// What goes to the peer, once TLS has begun.
    output: Output,
    peer: Peer,
}

impl<S: StartTls> TlsSession<S> {
    /// Around `inside`, with the certificates that are current when TLS begins.
    pub fn new(inside: S, certificates: Arc<Certificates>) -> Self {
        Self::at(Side::Server(certificates), inside)
    }

    /// Around `inside`, which speaks with the server of that name, with the certificates that are current when TLS begins.
    pub fn of_client(inside: S, trust: Arc<Trust>, host: String) -> Self {
        Self::at(Side::Client(trust, host), inside)
    }

    fn at(side: Side, inside: S) -> Self {
        Self { inside, side, tls: None, output: Output::default(), peer: Peer::Unknown }
    }

    #[cfg(test)]
    pub(super) fn inside(&mut self) -> &mut S {
        &mut self.inside
    }

    #[cfg(test)]
    pub(super) fn wear_keys(&mut self, records_left: u32) {
        self.tls.as_mut().expect("TLS has begun").records_left = records_left;
    }

    fn begin(&mut self) {
        assert!(self.tls.is_none() && self.output.is_empty(), "TLS begins twice");
        let mut connection = match self.side.connection() {
            Ok(connection) => connection,
            Err(why) => {
                tracing::warn!("TLS could not begin: {why}");
                return self.inside.fail(&why);
            }
        };
        connection.set_buffer_limit(Some(ENCIPHERED_MAX));
        if let Side::Server(_) = self.side {
            // The answer that says so is the last one in plain.
            let plain = self.inside.output();
            let mut slices = Vec::new();
            plain.gather(&mut slices, usize::MAX);
            slices.iter().for_each(|slice| self.output.push(slice));
            plain.advance(plain.len());
        }
        write_all(&mut connection, &mut self.output);
        self.tls = Some(Box::new(Tls {
            connection,
            records: RecordCount::default(),
            admitted: false,
            peer_ended: false,
            ended: false,
            failed: false,
            records_left: RECORDS_MAX,
        }));
    }

    /// Takes bytes of TLS, and returns how many.
    fn decipher(&mut self, bytes: &[u8]) -> usize {
        let mut used = 0;
        while used < bytes.len() && !work::spent() && !self.waits_inside() {
            let Some(tls) = self.tls.as_deref_mut().filter(|tls| !tls.failed) else { return bytes.len() };
            let outcome = match tls.connection.read_tls(&mut &bytes[used..]) {
                // The peer has said before that nothing more comes.
                Ok(0) => return bytes.len(),
                Ok(taken) => {
                    let records = tls.records.count(&bytes[used..used + taken]);
                    used += taken;
                    work::spend_bytes(taken, work::BYTES_STORED);
                    work::spend(records * RECORD_UNITS);
                    tls.connection.process_new_packets().map_err(|why| why.to_string())
                }
                Err(why) => Err(why.to_string()),
            };
            tls.peer_ended |= outcome.as_ref().is_ok_and(|state| state.peer_has_closed());
            self.settle(outcome.err());
            self.feed();
        }
        used
    }

    /// Whether a record waits until the session inside takes it.
    fn waits_inside(&mut self) -> bool {
        let Some(tls) = &mut self.tls else { return false };
        tls.connection.reader().fill_buf().is_ok_and(|plain| !plain.is_empty())
    }

    /// Sends what TLS says itself, and ends the session where it has failed or the peer is not let in.
    fn settle(&mut self, mut why: Option<String>) {
        let Some(tls) = self.tls.as_deref_mut() else { return };
        if why.is_none() && !tls.admitted && !tls.connection.is_handshaking() {
            tls.admitted = true;
            if let Side::Server(certificates) = &self.side {
                why = certificates.refusal(tls.connection.peer_certificates());
            }
        }
        write_all(&mut tls.connection, &mut self.output);
        if let Some(why) = why {
            tracing::info!(peer = ?self.peer, "TLS has ended: {why}");
            tls.failed = true;
            self.inside.fail(&why);
            // Not even an alert: a peer that reads nothing would keep it here. It is owed to one that was not let in.
            if tls.admitted && self.inside.is_abandoned() {
                self.output.clear();
            }
        }
    }

    /// Gives the session inside what was deciphered; whether it took any.
    fn feed(&mut self) -> bool {
        let mut fed = false;
        while let Some(tls) = self.tls.as_deref_mut().filter(|tls| tls.admitted && !tls.failed) {
            let mut reader = tls.connection.reader();
            let Ok(plain) = reader.fill_buf() else { break };
            if plain.is_empty() || work::spent() {
                break;
            }
            let used = match self.inside.intake() {
                Intake::Pause => break,
                Intake::Bytes => self.inside.receive(plain),
                Intake::Payload(mut buf) => {
                    let count = buf.len().min(plain.len());
                    buf[..count].copy_from_slice(&plain[..count]);
                    self.inside.returned(buf, count);
                    count
                }
            };
            reader.consume(used);
            assert!(!self.inside.starts_tls(), "TLS begins within TLS");
            if used == 0 {
                break;
            }
            fed = true;
        }
        fed
    }

    /// Has the session inside end once it has taken all that the peer has sent, where nothing more comes: whether that is now.
    fn follow_peer(&mut self) -> bool {
        let ended = self.tls.as_ref().is_some_and(|tls| tls.peer_ended && !tls.failed);
        if !ended || self.waits_inside() || self.inside.ends() {
            return false;
        }
        match self.side {
            Side::Server(_) => self.inside.wind_down(),
            Side::Client(..) => self.inside.fail("the server has ended the connection"),
        }
        true
    }

    /// Tells the peer that nothing more comes, once that is so.
    fn end(&mut self) {
        let over = self.inside.finished() && self.inside.output().is_empty();
        if let Some(tls) = self.tls.as_deref_mut().filter(|tls| over && !tls.ended) {
            tls.ended = true;
            if self.inside.is_abandoned() && !tls.failed {
                self.output.clear();
            } else if !tls.failed {
                tls.connection.send_close_notify();
                write_all(&mut tls.connection, &mut self.output);
            }
        }
    }
}

impl Tls {
    /// Enciphers the front of what the session inside sends; false where the keys are used up and cannot be changed.
    fn encipher(&mut self, plain: &mut Output, output: &mut Output) -> bool {
        if self.failed || self.connection.is_handshaking() {
            return true;
        }
        let mut left = ENCIPHERED_MAX;
        while left > 0 && !plain.is_empty() {
            if self.records_left == 0 {
                if self.connection.refresh_traffic_keys().is_err() {
                    return false;
                }
                self.records_left = RECORDS_MAX;
            }
            let mut slices = Vec::with_capacity(SLICES_MAX);
            plain.gather(&mut slices, SLICES_MAX);
            let taken =
                self.connection.writer().write_vectored(&slices).expect("a connection in memory takes bytes");
            assert!(taken > 0, "TLS takes nothing of {} bytes", plain.len());
            plain.advance(taken);
            self.records_left = self.records_left.saturating_sub(taken.div_ceil(RECORD_BYTES) as u32);
            write_all(&mut self.connection, output);
            work::spend_bytes(taken, work::BYTES_STORED);
            left = left.saturating_sub(taken);
        }
        true
    }
}

impl<S: StartTls> Session for TlsSession<S> {
    fn introduce(&mut self, peer: Peer) {
        self.peer = peer;
        self.inside.introduce(peer);
    }

    fn intake(&mut self) -> Intake {
        // What waits for the session inside goes before what comes.
        if self.waits_inside() {
            return Intake::Pause;
        }
        let wanted = self.inside.intake();
        match (&self.tls, wanted) {
            (Some(_), Intake::Payload(buf)) => {
                self.inside.returned(buf, 0);
                Intake::Bytes
            }
            (_, wanted) => wanted,
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        if self.tls.is_some() {
            return self.decipher(bytes);
        }
        let used = self.inside.receive(bytes);
        if self.inside.starts_tls() {
            self.begin();
        }
        used
    }

    fn returned(&mut self, buf: IoBuf, filled: usize) {
        assert!(self.tls.is_none(), "a payload comes beside TLS");
        self.inside.returned(buf, filled);
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        self.inside.poll(context);
        while self.tls.is_some() && self.feed() {
            self.inside.poll(context);
        }
        if self.follow_peer() {
            // What it does at its end is begun by that.
            self.inside.poll(context);
        }
        self.end();
    }

    fn output(&mut self) -> &mut Output {
        let Some(tls) = &mut self.tls else { return self.inside.output() };
        if self.output.is_empty() && !tls.encipher(self.inside.output(), &mut self.output) {
            self.settle(Some("its keys have served for as many records as they may".to_owned()));
            self.end();
        }
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.inside.finished() && self.tls.as_ref().is_none_or(|tls| tls.ended)
    }

    fn hang_up(&mut self) {
        self.inside.hang_up();
        self.output.clear();
        if let Some(tls) = &mut self.tls {
            (tls.failed, tls.ended) = (true, true);
        }
    }

    fn wind_down(&mut self) {
        self.inside.wind_down();
    }

    fn pending(&self) -> usize {
        self.inside.pending()
    }

    fn established(&self) -> bool {
        self.inside.established()
    }

    fn owed(&self) -> bool {
        self.inside.owed()
    }

    fn stays(&self) -> bool {
        self.inside.stays()
    }

    fn ends(&self) -> bool {
        self.inside.ends()
    }
}

/// Where enciphered records are put.
struct Sink<'a>(&'a mut Output);

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.push(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_all(connection: &mut Connection, output: &mut Output) {
    while connection.wants_write() {
        connection.write_tls(&mut Sink(output)).expect("an output takes everything");
    }
}
