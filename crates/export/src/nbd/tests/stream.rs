//! However the bytes of a conversation are cut, it goes the same way.

use spillway_core::random::Random;
use spillway_core::session::Session;

use super::super::wire::{HeaderStyle, OptionHeader, RequestHeader, opt};
use super::client::{queries, query_payload};
use super::*;

/// The bytes of a conversation that uses everything.
pub(super) fn conversation(style: Style, random: &mut Random) -> Vec<u8> {
    let mut bytes = 3u32.to_be_bytes().to_vec();
    let mut option = |option: u32, data: &[u8]| {
        bytes.extend(OptionHeader { option, len: data.len() as u32 }.encode());
        bytes.extend(data);
    };
    option(opt::LIST, &[]);
    option(99, b"unknown");
    match style {
        Style::Simple => {}
        Style::Structured => option(opt::STRUCTURED_REPLY, &[]),
        Style::Extended => option(opt::EXTENDED_HEADERS, &[]),
    }
    option(opt::LIST_META_CONTEXT, &queries("disk", &[]));
    option(opt::SET_META_CONTEXT, &queries("disk", &["base:allocation"]));
    option(opt::INFO, &query_payload("other", &[1, 2, 3]));
    option(opt::GO, &query_payload("disk", &[3]));
    for cookie in 0..200 {
        request(style, cookie, random, &mut bytes);
    }
    bytes
}

fn request(style: Style, cookie: u64, random: &mut Random, bytes: &mut Vec<u8>) {
    let command = random.below(9) as u16;
    let command = if command == cmd::DISC { cmd::WRITE } else { command };
    let longest = if random.below(10) == 0 { 600 } else { 20 };
    let length = (random.below(longest) * 512).saturating_sub(random.below(30) / 29);
    let offset = random.below(2 * SIZE / 512) * 256 / 512 * 512;
    let mut flags = if random.below(4) == 0 { random.below(64) as u16 } else { 0 };
    if style == Style::Extended {
        flags &= !cmd_flag::PAYLOAD_LEN;
        flags |= if command == cmd::WRITE { cmd_flag::PAYLOAD_LEN } else { 0 };
    }
    let headers = if style == Style::Extended { HeaderStyle::Extended } else { HeaderStyle::Compact };
    let fill = random.draw() as u8;
    RequestHeader { flags, command, cookie, offset, length }.encode(headers, bytes);
    if command == cmd::WRITE {
        bytes.resize(bytes.len() + length as usize, fill);
    }
}

#[test]
fn bytes_one_by_one_are_the_same_as_all_at_once() {
    for style in STYLES {
        let bytes = conversation(style, &mut Random(7));
        let mut expected = Vec::new();
        for piece in [usize::MAX, 1, 2, 27, 29, 4096, 70_000] {
            let (_, exports) = one_export();
            let mut client = Client::connect(&exports);
            client.piece = piece;
            client.send(&bytes);
            let received: Vec<u8> = client.received.drain(..).collect();
            assert!(client.in_transit.is_empty() && !client.session.finished());
            if expected.is_empty() {
                expected = received;
            } else {
                assert!(received == expected, "{style:?} in pieces of {piece}");
            }
        }
        assert!(expected.len() > 10_000);
    }
}
