//! Keys that have served for as many records as they may, and peers who say that nothing more comes.

use rustls::crypto::cipher::{OutboundChunks, OutboundPlainMessage};
use rustls::version::{TLS12, TLS13};
use rustls::{ConnectionTrafficSecrets, ContentType, ProtocolVersion, SupportedCipherSuite};

use super::*;

/// Records for which the keys of these servers serve.
const RECORDS: u32 = 16;

/// A session whose keys are nearly used up, and a client of that version, which have shaken hands.
fn conversation(version: &'static SupportedProtocolVersion) -> (TlsSession<Echo>, ClientConnection) {
    let authority = Authority::new();
    let mut session = asked(authority.server(Clients::Any).unwrap());
    let mut config = authority.client_config(&[version], None);
    config.enable_secret_extraction = true;
    let mut client = connect(config);
    converse(&mut session, &mut client, 1 << 20).unwrap();
    session.wear_keys(RECORDS);
    (session, client)
}

#[test]
fn keys_that_are_used_up_are_changed_or_end_the_conversation() {
    for (version, changed) in [(&TLS13, true), (&TLS12, false)] {
        let (mut session, mut client) = conversation(version);
        let mut read = 0;
        for _ in 0..3 * RECORDS {
            session.inside().output.push(&[7; 1000]);
            read += converse(&mut session, &mut client, 1 << 20).unwrap().len();
        }
        let expected = if changed { 3 * RECORDS } else { RECORDS };
        assert_eq!(read, expected as usize * 1000);
        assert!(session.finished() != changed && session.inside().over != changed);
    }
}

/// A record of one byte, with which a message that asks for other keys would begin.
fn beginning(client: ClientConnection) -> Vec<u8> {
    let Some(SupportedCipherSuite::Tls13(suite)) = client.negotiated_cipher_suite() else {
        panic!("the client speaks TLS 1.3")
    };
    let (number, secrets) = client.dangerous_extract_secrets().unwrap().tx;
    let (ConnectionTrafficSecrets::Aes128Gcm { key, iv }
    | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
    | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv }) = secrets
    else {
        panic!("the suite is one of ring's")
    };
    let payload = OutboundChunks::Single(&[0x18]);
    let message =
        OutboundPlainMessage { typ: ContentType::Handshake, version: ProtocolVersion::TLSv1_2, payload };
    suite.aead_alg.encrypter(key, iv).encrypt(message, number).unwrap().encode()
}

#[test]
fn a_peer_in_mid_message_that_keeps_keys_from_being_changed_ends_its_conversation() {
    let (mut session, client) = conversation(&TLS13);
    assert!(give(&mut session, &beginning(client), 1 << 20).is_empty() && !session.finished());
    session.inside().output.push(&vec![7; 2 * RECORDS as usize * 16_384]);
    assert!(sent(&mut session).len() < 2 * RECORDS as usize * 16_384);
    assert!(session.finished() && session.inside().over);
}

#[test]
fn a_peer_from_whom_nothing_more_comes_is_answered_and_left() {
    let (mut session, mut client) = conversation(&TLS13);
    session.inside().most = Some(50);
    client.writer().write_all(&[7; 100]).unwrap();
    client.send_close_notify();
    let mut said = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut said).unwrap();
    }
    let left = give(&mut session, &said, 1 << 20);
    assert!(!session.finished() && session.inside().taken.len() == 50, "what was sent is not taken whole");
    session.inside().most = None;
    assert!(give(&mut session, &left, 1 << 20).is_empty() && session.inside().taken.len() == 102);
    let mut said = sent(&mut session);
    poll(&mut session);
    said.extend(sent(&mut session));
    let mut answer = &said[..];
    while !answer.is_empty() {
        client.read_tls(&mut answer).unwrap();
        client.process_new_packets().unwrap();
    }
    assert!(session.finished() && client.process_new_packets().unwrap().peer_has_closed());
}

/// Nothing more comes that would have it polled.
#[test]
fn what_a_session_does_at_the_end_of_its_peer_is_begun_at_once() {
    let (mut session, mut client) = conversation(&TLS13);
    client.send_close_notify();
    let mut said = Vec::new();
    while client.wants_write() {
        client.write_tls(&mut said).unwrap();
    }
    let _turn = work::turn(work::TURN);
    assert!(matches!(session.intake(), Intake::Bytes));
    assert_eq!(session.receive(&said), said.len());
    poll(&mut session);
    assert!(session.finished(), "it waits for a poll that does not come");
}

/// A request of a connection that counts as lost must not land behind newer ones, once its server reads again.
#[test]
fn what_was_enciphered_is_not_sent_by_a_session_that_is_abandoned() {
    let authority = Authority::new();
    for abandoned in [false, true] {
        let mut session = asked(authority.server(Clients::Any).unwrap());
        converse(&mut session, &mut authority.client(None), 1 << 20).unwrap();
        session.inside().output.push(&[7; 10_000]);
        assert!(session.output().len() > 10_000, "it waits for the peer");
        (session.inside().over, session.inside().abandoned) = (true, abandoned);
        poll(&mut session);
        assert!(session.finished() && session.output().is_empty() == abandoned);
    }
}

#[test]
fn a_session_that_is_abandoned_when_tls_fails_waits_for_no_peer() {
    let authority = Authority::new();
    for abandoned in [false, true] {
        let mut session = asked(authority.server(Clients::Any).unwrap());
        converse(&mut session, &mut authority.client(None), 1 << 20).unwrap();
        session.inside().output.push(&[7; 10_000]);
        assert!(session.output().len() > 10_000, "it waits for the peer");
        session.inside().abandoned = abandoned;
        let no_record = [23, 3, 3, 0, 20].into_iter().chain([1; 20]).collect::<Vec<u8>>();
        give(&mut session, &no_record, 1 << 20);
        poll(&mut session);
        assert!(session.finished() && session.output().is_empty() == abandoned);
    }
}
