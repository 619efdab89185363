//! How clients come in: in plain, or in TLS by rustls, on a socket whose bytes a hostile client can still touch.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::version::{TLS12, TLS13};
use rustls::{ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion};

use super::Chance;
use super::words::{client_flags, option, option_header};
use crate::raw::{self, Client};
use crate::{Authority, PATIENCE, Scratch};

/// How long the server may take for a part of a handshake with a hostile client.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The answer of a server that begins TLS: magic, option, acknowledgement, no data.
const BEGINS: [u8; 20] = [0, 3, 0xe8, 0x89, 4, 0x55, 0x65, 0xa9, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0, 0];

/// A connection in TLS. Writing never waits for reading, nor reading for writing.
pub(super) struct Tls {
    pub(super) stream: UnixStream,
    pub(super) connection: ClientConnection,
}

impl Tls {
    /// Sends what is enciphered. `WouldBlock` leaves the rest for the next time.
    fn push(&mut self) -> io::Result<()> {
        while self.connection.wants_write() {
            self.connection.write_tls(&mut self.stream)?;
        }
        Ok(())
    }

    /// Takes what has come; how many bytes that were.
    fn pull(&mut self) -> io::Result<usize> {
        let count = self.connection.read_tls(&mut self.stream)?;
        let taken = self.connection.process_new_packets();
        taken.map_err(|why| io::Error::new(ErrorKind::InvalidData, why))?;
        Ok(count)
    }

    fn shake_hands(mut self) -> io::Result<Self> {
        loop {
            self.push()?;
            if !self.connection.is_handshaking() {
                return Ok(self);
            }
            if self.pull()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

impl Read for Tls {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(bytes) {
                Err(why) if why.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            if self.pull()? == 0 {
                return Ok(0);
            }
        }
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push()?;
        let count = self.connection.writer().write(bytes)?;
        match self.push() {
            Err(why) if why.kind() == ErrorKind::WouldBlock => Ok(count),
            pushed => pushed.map(|()| count),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.push()
    }
}

/// A connection of either kind.
pub(super) enum Wire {
    Plain(UnixStream),
    Tls(Box<Tls>),
}

impl Wire {
    /// The socket below.
    pub(super) fn stream(&self) -> &UnixStream {
        match self {
            Wire::Plain(stream) => stream,
            Wire::Tls(tls) => &tls.stream,
        }
    }
}

impl Read for Wire {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.read(bytes),
            Wire::Tls(tls) => tls.read(bytes),
        }
    }
}

impl Write for Wire {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Wire::Plain(stream) => stream.write(bytes),
            Wire::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Wire::Plain(stream) => stream.flush(),
            Wire::Tls(tls) => tls.flush(),
        }
    }
}

/// Where a server is, and whether it speaks TLS.
#[derive(Clone)]
pub(super) struct Door {
    socket: PathBuf,
    /// For TLS 1.2 and 1.3.
    trust: Option<[Arc<ClientConfig>; 2]>,
}

impl Door {
    /// Without TLS.
    pub(super) fn plain(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), trust: None }
    }

    /// With TLS: puts the files of the server into `folder`.
    pub(super) fn with_tls(socket: &Path, folder: &Scratch) -> Self {
        let authority = Authority::new();
        authority.sign(folder, "server", "localhost", 2100);
        let trust = [&TLS12, &TLS13].map(|version| Arc::new(config(&authority, version)));
        Self { socket: socket.to_owned(), trust: Some(trust) }
    }

    /// Whether there is TLS behind it.
    pub(super) fn has_tls(&self) -> bool {
        self.trust.is_some()
    }

    /// Connects and says nothing.
    pub(super) fn knock(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(HANDSHAKE))?;
        stream.set_write_timeout(Some(HANDSHAKE))?;
        Ok(stream)
    }

    /// Connects and asks for TLS, with `more` bytes behind; TLS begins with the next byte from the server.
    pub(super) fn ask(&self, more: &[u8]) -> io::Result<UnixStream> {
        let mut stream = self.knock()?;
        starttls(&mut stream, more)?;
        Ok(stream)
    }

    /// What begins a conversation in TLS of a version that `chance` draws.
    pub(super) fn connection(&self, chance: &mut Chance) -> ClientConnection {
        let trust = self.trust.as_ref().expect("the server speaks TLS");
        of(&chance.pick(trust))
    }

    /// Connects, with a whole handshake of TLS.
    pub(super) fn enter_tls(&self, chance: &mut Chance) -> io::Result<Tls> {
        let connection = self.connection(chance);
        Tls { stream: self.ask(&[])?, connection }.shake_hands()
    }

    /// A client that behaves: in TLS where there is TLS.
    pub(super) fn client(&self, export: &str) -> io::Result<Client<Wire>> {
        let mut stream = raw::connect(&self.socket)?;
        assert_eq!(stream.read_timeout()?, Some(PATIENCE), "every answer has to come in time");
        let wire = match &self.trust {
            None => {
                stream.read_exact(&mut [0; 18])?;
                stream.write_all(&client_flags())?;
                Wire::Plain(stream)
            }
            Some([_, newest]) => {
                starttls(&mut stream, &[])?;
                Wire::Tls(Box::new(Tls { stream, connection: of(newest) }.shake_hands()?))
            }
        };
        Client::enter(wire, export)
    }
}

/// Has TLS begin on a new connection.
fn starttls(stream: &mut UnixStream, more: &[u8]) -> io::Result<()> {
    stream.read_exact(&mut [0; 18])?;
    stream.write_all(&[&client_flags()[..], &option_header(option::STARTTLS, 0), more].concat())?;
    let mut answer = [0; 20];
    stream.read_exact(&mut answer)?;
    if answer == BEGINS { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
}

fn of(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("a name");
    ClientConnection::new(config.clone(), name).expect("a name that fits")
}

fn config(authority: &Authority, version: &'static SupportedProtocolVersion) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("a certificate");
    roots.add(certificate).expect("an authority");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_protocol_versions(&[version]).expect("a version that ring has");
    builder.with_root_certificates(roots).with_no_client_auth()
}
