//! Options, exports and who is connected.

use super::super::wire::{OptionHeader, greeting, info, opt};
use super::super::{NbdSession, TlsPolicy};
use super::client::{queries, query_payload};
use super::*;
use crate::tls::StartTls;
use spillway_core::session::{Intake, Session};

fn ack() -> (u32, Vec<u8>) {
    (rep::ACK, vec![])
}

/// The only reply's type.
fn refusal(client: &mut Client, option: u32, data: &[u8]) -> u32 {
    let replies = client.option(option, data);
    assert_eq!(replies.len(), 1, "{replies:?}");
    replies[0].0
}

#[test]
fn go_tells_all_that_was_asked_for() {
    let device = TestDevice::new(SIZE);
    let exports = Arc::new(Exports::new());
    let export = Export::new("disk", Aligned::new(device)).unwrap().with_description("a disk").unwrap();
    exports.add(export).unwrap();
    let mut client = Client::greeted(&exports);
    let wanted = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 99];
    let replies = client.option(opt::GO, &query_payload("", &wanted));
    let size = SIZE.to_be_bytes();
    let flags = (flag::HAS_FLAGS
        | flag::SEND_FLUSH
        | flag::SEND_FUA
        | flag::SEND_TRIM
        | flag::SEND_WRITE_ZEROES
        | flag::CAN_MULTI_CONN
        | flag::SEND_CACHE
        | flag::SEND_FAST_ZERO)
        .to_be_bytes();
    let sizes = [512u32, 4096, 32 << 20].map(u32::to_be_bytes).concat();
    let expected = [
        (rep::INFO, [&[0, 0], &size[..], &flags].concat()),
        (rep::INFO, b"\0\x01disk".to_vec()),
        (rep::INFO, b"\0\x02a disk".to_vec()),
        (rep::INFO, [&[0, 3][..], &sizes].concat()),
        ack(),
    ];
    assert_eq!(replies, expected);
    client.ask(cmd::FLUSH, 0, 0, 0);
    assert_eq!(client.reply().error, 0);
}

#[test]
fn info_describes_without_connecting() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    assert_eq!(client.option(opt::INFO, &query_payload("disk", &[])).len(), 3);
    assert_eq!(exports.find(b"disk").unwrap().export().clients(), 0);
    assert_eq!(client.option(opt::INFO, &query_payload("disk", &[1, 2, 3])).len(), 4);
}

#[test]
fn flags_follow_the_device_and_the_replies() {
    let (device, exports) = one_export();
    let flags_of = |client: &mut Client| {
        let replies = client.option(opt::INFO, &query_payload("", &[]));
        u16::from_be_bytes([replies[0].1[10], replies[0].1[11]])
    };
    let mut client = Client::greeted(&exports);
    assert_eq!(flags_of(&mut client) & (flag::SEND_DF | flag::ROTATIONAL), 0);
    client.option(opt::STRUCTURED_REPLY, &[]);
    assert_ne!(flags_of(&mut client) & flag::SEND_DF, 0);
    device.change(|geometry| {
        geometry.rotational = true;
        geometry.discards = false;
    });
    assert_ne!(flags_of(&mut client) & flag::ROTATIONAL, 0);
    assert_eq!(flags_of(&mut client) & flag::SEND_TRIM, 0);
    device.change(|geometry| geometry.read_only = true);
    let writing = flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    assert_eq!(flags_of(&mut client) & (writing | flag::READ_ONLY), flag::READ_ONLY);
}

#[test]
fn export_name_enters_without_a_reply_header() {
    for (client_flags, zeroes) in [(1u32, 124), (3, 0), (0, 124)] {
        let (_, exports) = one_export();
        let mut client = Client::connect(&exports);
        client.send(&client_flags.to_be_bytes());
        client.take(18);
        client.send_option(opt::EXPORT_NAME, b"disk");
        assert_eq!(client.take(8), SIZE.to_be_bytes());
        client.take(2 + zeroes);
        assert!(client.received.is_empty());
        assert_eq!(client.fetch(0, 512), [0; 512]);
    }
}

#[test]
fn export_name_of_nothing_closes() {
    let (_, exports) = one_export();
    for name in [&b"other"[..], &[0xff; 5000], &[b'x'; 100_000]] {
        let mut client = Client::greeted(&exports);
        client.send_option(opt::EXPORT_NAME, name);
        assert!(client.session.finished() && client.received.is_empty());
    }
}

#[test]
fn unknown_client_flags_and_bad_magic_close() {
    let (_, exports) = one_export();
    let mut client = Client::connect(&exports);
    client.send(&7u32.to_be_bytes());
    assert!(client.session.finished());
    let mut client = Client::greeted(&exports);
    client.send(&[0; 16]);
    assert!(client.session.finished());
    assert_eq!(client.session.receive(&[1; 999]), 999, "the rest goes nowhere");
}

#[test]
fn a_client_of_the_first_newstyle_has_one_option() {
    let (_, exports) = one_export();
    let mut client = Client::connect(&exports);
    client.send(&2u32.to_be_bytes());
    assert_eq!(client.take(18), greeting(3));
    client.send_option(opt::LIST, &[]);
    assert!(client.session.finished() && client.received.is_empty());
}

#[test]
fn abort_is_acknowledged() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    assert_eq!(client.option(opt::ABORT, &[]), [ack()]);
    assert!(client.session.finished());
}

#[test]
fn list_names_what_is_served() {
    let exports = Arc::new(Exports::new());
    for (name, size) in [("one", SIZE), ("none", 0), ("two", SIZE)] {
        let export = Export::new(name, Aligned::new(TestDevice::new(size))).unwrap();
        exports.add(export.with_description("d").unwrap()).unwrap();
    }
    let mut client = Client::greeted(&exports);
    let entry = |name: &str| (rep::SERVER, [b"\0\0\0\x03", name.as_bytes(), b"d"].concat());
    assert_eq!(client.option(opt::LIST, &[]), [entry("one"), entry("two"), ack()]);
    assert_eq!(refusal(&mut client, opt::LIST, b"x"), rep::ERR_INVALID);
    assert_eq!(refusal(&mut client, opt::GO, &query_payload("none", &[])), rep::ERR_UNKNOWN);
    assert_eq!(refusal(&mut client, opt::GO, &query_payload("", &[])), rep::ERR_UNKNOWN, "which of the two?");
    assert_eq!(client.option(opt::GO, &query_payload("two", &[])).last(), Some(&ack()));
    assert_eq!(exports.find(b"two").unwrap().export().clients(), 1);
}

#[test]
fn malformed_options_are_refused_and_the_next_one_is_understood() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    let mut too_many = query_payload("disk", &[]);
    too_many[9] = 7;
    let cases: [(u32, Vec<u8>, u32); 12] = [
        (4, vec![], rep::ERR_UNSUP),
        (77, vec![1, 2, 3], rep::ERR_UNSUP),
        (opt::STARTTLS, vec![], rep::ERR_POLICY),
        (opt::STARTTLS, vec![0], rep::ERR_INVALID),
        (opt::GO, vec![], rep::ERR_INVALID),
        (opt::GO, vec![0, 0, 0, 0], rep::ERR_INVALID),
        (opt::GO, vec![0xff; 6], rep::ERR_INVALID),
        (opt::INFO, too_many, rep::ERR_INVALID),
        (opt::INFO, query_payload("nobody", &[]), rep::ERR_UNKNOWN),
        (opt::INFO, query_payload(&"x".repeat(4097), &[]), rep::ERR_TOO_BIG),
        (opt::STRUCTURED_REPLY, vec![0], rep::ERR_INVALID),
        (opt::EXTENDED_HEADERS, vec![0], rep::ERR_INVALID),
    ];
    for (option, data, expected) in cases {
        assert_eq!(refusal(&mut client, option, &data), expected, "option {option} {data:?}");
    }
    assert_eq!(client.option(opt::GO, &query_payload("disk", &[])).last(), Some(&ack()));
}

#[test]
fn where_tls_is_required_nothing_is_told_before_it() {
    let (_, exports) = one_export();
    let required = Config { tls: TlsPolicy::Required, ..Config::default() };
    let mut client = Client::with_config(&exports, required).greet();
    for (option, data) in [
        (opt::LIST, vec![]),
        (opt::INFO, query_payload("disk", &[])),
        (opt::GO, query_payload("disk", &[])),
        (opt::STRUCTURED_REPLY, vec![]),
        (opt::EXTENDED_HEADERS, vec![]),
        (opt::LIST_META_CONTEXT, queries("disk", &[])),
        (opt::SET_META_CONTEXT, queries("disk", &[])),
        (77, vec![]),
    ] {
        assert_eq!(refusal(&mut client, option, &data), rep::ERR_TLS_REQD, "option {option}");
    }
    assert_eq!(refusal(&mut client, opt::STARTTLS, &[0]), rep::ERR_INVALID);
    assert_eq!(exports.find(b"disk").unwrap().export().clients(), 0);
    let mut old = Client::with_config(&exports, required).greet();
    old.send_option(opt::EXPORT_NAME, b"disk");
    assert!(old.session.finished(), "this option has no other refusal");
    client.send_option(opt::ABORT, &[]);
    assert!(client.session.finished());
}

/// The session without TLS around it.
fn session(tls: TlsPolicy) -> NbdSession {
    let mut session = NbdSession::new(one_export().1, Config { tls, ..Config::default() });
    assert_eq!(session.receive(&[0, 0, 0, 3]), 4);
    session
}

#[test]
fn tls_begins_right_behind_the_option_and_makes_all_before_it_void() {
    let option =
        |option, data: &[u8]| [&OptionHeader { option, len: data.len() as u32 }.encode()[..], data].concat();
    for tls in [TlsPolicy::Optional, TlsPolicy::Required] {
        let mut session = session(tls);
        if tls == TlsPolicy::Optional {
            let selected = queries("disk", &["base:allocation"]);
            let before =
                [option(opt::STRUCTURED_REPLY, &[]), option(opt::SET_META_CONTEXT, &selected)].concat();
            assert_eq!(session.receive(&before), before.len());
        }
        let start = option(opt::STARTTLS, &[]);
        assert_eq!(session.receive(&[&start[..], &option(opt::LIST, &[])].concat()), start.len());
        assert!(session.starts_tls() && !session.starts_tls(), "it says so once");
        session.output().clear();
        // Contexts need structured replies, which were agreed on before.
        let selected = option(opt::SET_META_CONTEXT, &queries("disk", &["base:allocation"]));
        assert_eq!(session.receive(&[&selected[..], &start].concat()), selected.len() + start.len());
        let said = session.output().take();
        let refusals = said.windows(4).filter(|word| *word == rep::ERR_INVALID.to_be_bytes());
        assert_eq!(refusals.count(), 2, "{said:?}");
        assert!(!session.starts_tls(), "TLS begins once");
    }
}

#[test]
fn oversize_options_are_skipped_and_absurd_ones_close() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    assert_eq!(refusal(&mut client, opt::GO, &vec![0; 70_000]), rep::ERR_TOO_BIG);
    assert_eq!(client.option(opt::LIST, &[]).len(), 2);
    client.send(&OptionHeader { option: opt::INFO, len: u32::MAX }.encode());
    assert!(client.session.finished());
}

#[test]
fn an_endless_handshake_is_ended() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    for _ in 0..5000 {
        client.send_option(99, &[]);
    }
    assert!(client.session.finished());
}

#[test]
fn a_handshake_pauses_while_its_replies_are_not_read() {
    let exports = Arc::new(Exports::new());
    for index in 0..100 {
        let export = Export::new(format!("disk{index}"), Aligned::new(TestDevice::new(SIZE))).unwrap();
        exports.add(export).unwrap();
    }
    let config = Config { held_bytes_max: 100_000, ..Config::default() };
    let mut client = Client::with_config(&exports, config).greet();
    client.reads = false;
    for _ in 0..1000 {
        client.send_option(opt::LIST, &[]);
    }
    assert!(client.session.output().len() < 110_000);
    assert!(matches!(client.session.intake(), Intake::Pause));
    client.reads = true;
    client.drive();
    for _ in 0..1000 {
        assert_eq!(client.option_replies(opt::LIST).len(), 101);
    }
}

#[test]
fn metadata_contexts_are_listed_and_selected() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    let (list, set) = (opt::LIST_META_CONTEXT, opt::SET_META_CONTEXT);
    assert_eq!(refusal(&mut client, list, &queries("", &[])), rep::ERR_INVALID, "no structured replies yet");
    assert_eq!(refusal(&mut client, set, &queries("", &["base:allocation"])), rep::ERR_INVALID);
    client.option(opt::STRUCTURED_REPLY, &[]);
    let context = |id: u8| (rep::META_CONTEXT, [&[0, 0, 0, id][..], b"base:allocation"].concat());
    assert_eq!(client.option(list, &queries("", &[])), [context(0), ack()]);
    assert_eq!(client.option(list, &queries("disk", &["x-y:z", "base:"])), [context(0), ack()]);
    assert_eq!(client.option(list, &queries("disk", &["qemu:dirty-bitmap:x"])), [ack()]);
    assert_eq!(client.option(set, &queries("", &["base:"])), [ack()], "names are exact here");
    assert_eq!(client.option(set, &queries("", &["x:y", "base:allocation"])), [context(1), ack()]);
    assert_eq!(refusal(&mut client, set, &queries("nobody", &["base:allocation"])), rep::ERR_UNKNOWN);
    assert_eq!(refusal(&mut client, set, &queries("", &["allocation"])), rep::ERR_INVALID);
    assert_eq!(refusal(&mut client, set, &queries("", &[&"x:".repeat(2100)])), rep::ERR_TOO_BIG);
    assert_eq!(refusal(&mut client, list, &[0; 7]), rep::ERR_INVALID);
    assert_eq!(refusal(&mut client, list, &[0xff; 100]), rep::ERR_INVALID);
}

#[test]
fn a_failed_selection_selects_nothing() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    client.option(opt::STRUCTURED_REPLY, &[]);
    client.style = Style::Structured;
    client.option(opt::SET_META_CONTEXT, &queries("", &["base:allocation"]));
    client.option(opt::SET_META_CONTEXT, &[]);
    client.option(opt::GO, &query_payload("", &[]));
    let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 4096);
    assert_eq!(client.error_of(cookie), errno::EINVAL);
}

#[test]
fn a_selection_for_another_export_does_not_count() {
    let exports = Arc::new(Exports::new());
    for name in ["one", "two"] {
        exports.add(Export::new(name, Aligned::new(TestDevice::new(SIZE))).unwrap()).unwrap();
    }
    let mut client = Client::greeted(&exports);
    client.option(opt::STRUCTURED_REPLY, &[]);
    client.style = Style::Structured;
    client.option(opt::SET_META_CONTEXT, &queries("one", &["base:allocation"]));
    client.option(opt::GO, &query_payload("two", &[]));
    let cookie = client.ask(cmd::BLOCK_STATUS, 0, 0, 4096);
    assert_eq!(client.error_of(cookie), errno::EINVAL);
}

#[test]
fn extended_headers_take_precedence() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    assert_eq!(client.option(opt::STRUCTURED_REPLY, &[]), [ack()]);
    assert_eq!(client.option(opt::EXTENDED_HEADERS, &[]), [ack()]);
    assert_eq!(refusal(&mut client, opt::STRUCTURED_REPLY, &[]), rep::ERR_EXT_HEADER_REQD);
    client.send_option(opt::EXPORT_NAME, b"disk");
    assert!(client.session.finished(), "extended headers and the old way in exclude each other");
}

#[test]
fn a_reserved_export_has_no_clients_and_gets_none() {
    let (device, exports) = one_export();
    let export = exports.find(b"").unwrap().export().clone();
    let client = Client::transmitting(&exports, Style::Simple);
    assert_eq!(export.clients(), 1);
    assert!(export.reserve().is_err(), "a client is connected");
    drop(client);
    let reserved = export.reserve().unwrap();
    assert!(export.reserve().is_err() && export.clients() == 0);
    let mut client = Client::greeted(&exports);
    assert_eq!(refusal(&mut client, opt::GO, &query_payload("disk", &[])), rep::ERR_UNKNOWN);
    device.change(|geometry| geometry.size = 2 * SIZE);
    drop(reserved);
    assert_eq!(client.option(opt::GO, &query_payload("disk", &[])).last(), Some(&ack()));
    assert_eq!(client.fetch(SIZE, 512), [0; 512]);
}

#[test]
fn exports_come_and_go() {
    let (_, exports) = one_export();
    let mut client = Client::transmitting(&exports, Style::Simple);
    let again = Export::new("disk", Aligned::new(TestDevice::new(SIZE))).unwrap();
    let error = exports.add(again).err().unwrap();
    assert_eq!(error.kind, spillway_core::Kind::Busy);
    assert!(error.message().contains("'disk'"));
    exports.remove("disk").unwrap();
    assert!(exports.remove("disk").is_none() && exports.find(b"disk").is_none());
    assert_eq!(client.fetch(0, 512), [0; 512], "who is connected stays so");
}

#[test]
fn bad_names_are_refused() {
    for bad in ["a\0b".to_owned(), "x".repeat(4097)] {
        assert!(Export::new(bad.clone(), Aligned::new(TestDevice::new(SIZE))).is_err());
        let export = Export::new("x", Aligned::new(TestDevice::new(SIZE))).unwrap();
        assert!(export.with_description(bad).is_err());
    }
}

#[test]
fn winding_down_ends_a_handshake() {
    let (_, exports) = one_export();
    let mut client = Client::greeted(&exports);
    client.session.wind_down();
    assert!(client.session.finished());
}
