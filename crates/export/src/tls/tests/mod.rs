//! A conversation inside TLS, against rustls's client in memory.

mod keys;
mod turns;

use std::io::{Read, Write};
use std::sync::Arc;
use std::task::{Context, Waker};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, DEFAULT_VERSIONS, RootCertStore, SupportedProtocolVersion};
use spillway_core::session::{Intake, Output, Session};
use spillway_core::{IoBuf, Kind, work};

use super::*;

/// An authority, and what it signs.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

struct Signed {
    pem: String,
    der: CertificateDer<'static>,
    key: KeyPair,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        Signed { pem: signed.pem(), der: signed.der().clone(), key }
    }

    fn server(&self, clients: Clients) -> Result<Certificates, spillway_core::Error> {
        Certificates::new(&self.pem_of(&self.sign("server.test")), clients)
    }

    fn pem_of(&self, signed: &Signed) -> Pem {
        Pem {
            certificate: signed.pem.clone().into_bytes(),
            key: signed.key.serialize_pem().into_bytes(),
            authority: Some(self.pem.clone().into_bytes()),
        }
    }

    fn client(&self, shows: Option<&Signed>) -> ClientConnection {
        connect(self.client_config(DEFAULT_VERSIONS, shows))
    }

    fn client_config(
        &self,
        versions: &[&'static SupportedProtocolVersion],
        shows: Option<&Signed>,
    ) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        let issuer = CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap();
        roots.add(issuer).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots);
        match shows {
            None => builder.with_no_client_auth(),
            Some(signed) => {
                let key = PrivateKeyDer::try_from(signed.key.serialize_der()).unwrap();
                builder.with_client_auth_cert(vec![signed.der.clone()], key).unwrap()
            }
        }
    }
}

fn connect(config: ClientConfig) -> ClientConnection {
    ClientConnection::new(Arc::new(config), ServerName::try_from("server.test").unwrap()).unwrap()
}

use rustls::pki_types::pem::PemObject;

/// Begins TLS behind `!`, and sends back what it takes: single bytes, or payloads of this length.
#[derive(Default)]
struct Echo {
    output: Output,
    starts: bool,
    payload_len: usize,
    /// Takes so many bytes in all, and then nothing.
    most: Option<usize>,
    over: bool,
    /// Over with the next poll.
    winds_down: bool,
    abandoned: bool,
    taken: Vec<u8>,
}

impl Echo {
    fn room(&self) -> usize {
        self.most.map_or(usize::MAX, |most| most - self.taken.len())
    }

    fn take(&mut self, bytes: &[u8]) {
        self.taken.extend_from_slice(bytes);
        self.output.push(bytes);
    }
}

impl StartTls for Echo {
    fn starts_tls(&mut self) -> bool {
        std::mem::take(&mut self.starts)
    }

    fn fail(&mut self, _: &str) {
        self.hang_up();
    }

    fn is_abandoned(&self) -> bool {
        self.abandoned
    }
}

impl Session for Echo {
    fn intake(&mut self) -> Intake {
        match self.payload_len {
            _ if self.room() == 0 || self.over => Intake::Pause,
            0 => Intake::Bytes,
            len => Intake::Payload(IoBuf::new(len)),
        }
    }

    fn receive(&mut self, bytes: &[u8]) -> usize {
        if self.payload_len > 0 {
            return 0;
        }
        let bytes = &bytes[..bytes.len().min(self.room())];
        let end = bytes.iter().position(|byte| *byte == b'!').map_or(bytes.len(), |at| at + 1);
        self.take(&bytes[..end]);
        self.starts |= bytes[..end].ends_with(b"!");
        end
    }

    fn returned(&mut self, buf: IoBuf, filled: usize) {
        let bytes = buf[..filled].to_vec();
        self.take(&bytes);
    }

    fn poll(&mut self, _: &mut Context<'_>) {
        self.over |= self.winds_down;
    }

    fn output(&mut self) -> &mut Output {
        &mut self.output
    }

    fn finished(&self) -> bool {
        self.over
    }

    fn hang_up(&mut self) {
        self.over = true;
        self.output.clear();
    }

    fn wind_down(&mut self) {
        self.winds_down = true;
    }

    fn pending(&self) -> usize {
        0
    }
}

fn sent(session: &mut TlsSession<Echo>) -> Vec<u8> {
    let mut all = Vec::new();
    while !session.output().is_empty() {
        all.extend(session.output().take());
    }
    all
}

fn poll(session: &mut TlsSession<Echo>) {
    session.poll(&mut Context::from_waker(Waker::noop()));
}

/// Gives the session these bytes in pieces, as its driver does; what it does not take is left.
fn give(session: &mut TlsSession<Echo>, bytes: &[u8], step: usize) -> Vec<u8> {
    let mut left = bytes.to_vec();
    for _ in 0..=2 * bytes.len() / step + 2 {
        let _turn = work::turn(work::TURN);
        if matches!(session.intake(), Intake::Bytes) && !left.is_empty() {
            let used = session.receive(&left[..step.min(left.len())]);
            left.drain(..used);
        }
        poll(session);
    }
    left
}

/// A session that was asked for TLS in plain, and has said so.
fn asked(certificates: Certificates) -> TlsSession<Echo> {
    let mut session = TlsSession::new(Echo::default(), Arc::new(certificates));
    assert!(give(&mut session, b"a!", 1).is_empty());
    assert_eq!(sent(&mut session), b"a!", "the answer comes in plain");
    session
}

/// Has client and session speak until neither says anything more; what the client read, and what it fails with.
fn converse(
    session: &mut TlsSession<Echo>,
    client: &mut ClientConnection,
    step: usize,
) -> Result<Vec<u8>, rustls::Error> {
    let mut read = Vec::new();
    loop {
        let mut to_server = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut to_server).unwrap();
        }
        let left = give(session, &to_server, step);
        assert!(left.is_empty() || session.finished(), "{} bytes are not taken", left.len());
        poll(session);
        let to_client = sent(session);
        let quiet = to_server.is_empty() && to_client.is_empty();
        let mut rest = &to_client[..];
        while !rest.is_empty() && client.read_tls(&mut rest).unwrap() > 0 {
            client.process_new_packets()?;
            let _ = client.reader().read_to_end(&mut read);
        }
        if quiet {
            return Ok(read);
        }
    }
}

#[test]
fn what_is_said_in_tls_reaches_the_session_and_comes_back() {
    let authority = Authority::new();
    let said: Vec<u8> = (0..200_000u32).map(|at| (at % 251) as u8 & 0x5f).collect();
    for (step, payload_len) in [(1, 0), (7, 100), (4096, 1 << 16), (1 << 20, 0), (1 << 20, 5000)] {
        let said = if step == 1 { &said[..2000] } else { &said[..] };
        let mut session = asked(authority.server(Clients::Any).unwrap());
        let mut client = authority.client(None);
        assert!(converse(&mut session, &mut client, step).unwrap().is_empty());
        session.inside().payload_len = payload_len;
        let mut read = Vec::new();
        for part in said.chunks(10_000) {
            client.writer().write_all(part).unwrap();
            read.extend(converse(&mut session, &mut client, step).unwrap());
        }
        assert!(read == said && session.inside().taken[2..] == *said, "in steps of {step}");
    }
}

#[test]
fn plain_bytes_behind_the_question_are_no_part_of_what_is_protected() {
    let mut session =
        TlsSession::new(Echo::default(), Arc::new(Authority::new().server(Clients::Any).unwrap()));
    give(&mut session, b"a!injected by another who sits between the two", 1 << 10);
    assert_eq!(session.inside().taken, b"a!");
    poll(&mut session);
    let said = sent(&mut session);
    assert!(session.finished() && said.starts_with(b"a!"), "{said:?}");
}

#[test]
fn any_bytes_in_place_of_tls_end_the_conversation_or_wait_for_more() {
    let mut random = spillway_core::random::Random(3);
    let authority = Authority::new();
    for _ in 0..200 {
        let mut session = asked(authority.server(Clients::Any).unwrap());
        let mut bytes = vec![0; 1 + random.below(2000) as usize];
        random.fill(&mut bytes);
        if random.below(2) == 0 {
            bytes.splice(..0, [22, 3, 1, 0]);
        }
        let left = give(&mut session, &bytes, 1 + random.below(300) as usize);
        assert!(session.finished() || left.is_empty());
        assert_eq!(session.inside().taken, b"a!");
    }
}

#[test]
fn a_session_that_pauses_is_given_nothing_until_it_takes_again() {
    let authority = Authority::new();
    let mut session = asked(authority.server(Clients::Any).unwrap());
    let mut client = authority.client(None);
    converse(&mut session, &mut client, 1 << 20).unwrap();
    session.inside().most = Some(100);
    client.writer().write_all(&[7; 60_000]).unwrap();
    let mut bytes = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut bytes).unwrap();
    }
    let left = give(&mut session, &bytes, 1 << 20);
    assert!(
        left.len() > 30_000 && matches!(session.intake(), Intake::Pause),
        "{} bytes are left",
        left.len()
    );
    assert_eq!(session.inside().taken.len(), 100);
    session.inside().most = None;
    poll(&mut session);
    assert!(session.inside().taken.len() > 10_000, "what had waited is taken without further bytes");
    assert!(give(&mut session, &left, 1 << 20).is_empty());
    assert_eq!(session.inside().taken.len(), 2 + 60_000);
}

#[test]
fn the_end_is_told_and_a_change_of_certificates_is_for_those_who_come() {
    let authority = Authority::new();
    let certificates = Arc::new(authority.server(Clients::Any).unwrap());
    let mut session = TlsSession::new(Echo::default(), certificates.clone());
    give(&mut session, b"!", 1);
    sent(&mut session);
    let mut client = authority.client(None);
    converse(&mut session, &mut client, 1 << 20).unwrap();
    session.wind_down();
    assert!(!session.finished(), "the peer is told first");
    poll(&mut session);
    let mut rest = &sent(&mut session)[..];
    client.read_tls(&mut rest).unwrap();
    assert!(client.process_new_packets().unwrap().peer_has_closed() && session.finished());
    let other = Authority::new();
    certificates.replace(&other.pem_of(&other.sign("server.test"))).unwrap();
    for (who, knows) in [(&authority, false), (&other, true)] {
        let mut session = TlsSession::new(Echo::default(), certificates.clone());
        give(&mut session, b"!", 1);
        sent(&mut session);
        assert_eq!(converse(&mut session, &mut who.client(None), 1 << 20).is_ok(), knows);
    }
}

/// What a client who shows this gets back of what it says.
fn let_in(server: Certificates, client: &mut ClientConnection) -> bool {
    let mut session = asked(server);
    client.writer().write_all(b"hello").unwrap();
    let outcome = converse(&mut session, client, 1 << 20);
    assert_eq!(session.inside().taken.len() > 2, outcome.as_deref() == Ok(b"hello"), "{outcome:?}");
    outcome.as_deref() == Ok(b"hello")
}

#[test]
fn clients_who_have_to_say_who_they_are_are_let_in_by_authority_and_name() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (known, stranger) = (authority.sign("vm7.test"), other.sign("vm7.test"));
    let named = |name: &str| Clients::Named(vec!["vm1.test".into(), name.into()]);
    for (clients, shows, expected) in [
        (Clients::Any, None, true),
        (Clients::Known, Some(&known), true),
        (Clients::Known, None, false),
        (Clients::Known, Some(&stranger), false),
        (named("VM7.test"), Some(&known), true),
        (named("vm8.test"), Some(&known), false),
        (named("vm7.test"), None, false),
        (named("vm7.test"), Some(&stranger), false),
    ] {
        let server = authority.server(clients.clone()).unwrap();
        assert_eq!(let_in(server, &mut authority.client(shows)), expected, "{clients:?}");
    }
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let authority = Authority::new();
    let (one, two) = (authority.sign("server.test"), authority.sign("server.test"));
    let pem = |certificate: &str, key: &str, authority: Option<&str>| Pem {
        certificate: certificate.into(),
        key: key.into(),
        authority: authority.map(Into::into),
    };
    let key = one.key.serialize_pem();
    for (files, clients, file) in [
        (pem("", &key, None), Clients::Any, "server-cert.pem: there is no certificate"),
        (pem(&key, &key, None), Clients::Any, "server-cert.pem: there is no certificate"),
        (pem(&one.pem, "x", None), Clients::Any, "server-key.pem"),
        (pem(&one.pem, &two.key.serialize_pem(), None), Clients::Any, "server-cert.pem and server-key.pem"),
        (pem(&one.pem, &key, None), Clients::Known, "ca-cert.pem: it is needed"),
        (pem(&one.pem, &key, Some("")), Clients::Known, "ca-cert.pem: there is no certificate"),
    ] {
        let error = Certificates::new(&files, clients).err().expect(file);
        assert!(error.kind == Kind::Invalid && error.message().contains(file), "{file}: {error}");
    }
}
