//! The handshake with servers that say all sorts of things.

use spillway_core::session::Output;

use super::super::negotiation::{Described, Negotiation, NegotiationStep};
use crate::nbd::wire::{self, OptionHeader, OptionReplyHeader, flag, handshake_flag, info, opt, rep};

/// A server's replies, by the option that each is to.
#[derive(Clone)]
pub(super) struct Server {
    structured: u32,
    export: Vec<u8>,
    blocks: Vec<u8>,
    /// The last reply to `OPT_GO`, and its words.
    end: (u32, &'static str),
}

impl Server {
    pub(super) fn of(size: u64, flags: u16, blocks: [u32; 3]) -> Self {
        let export = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags.to_be_bytes()].concat();
        let blocks = blocks.iter().fold(info::BLOCK_SIZE.to_be_bytes().to_vec(), |mut bytes, block| {
            bytes.extend(block.to_be_bytes());
            bytes
        });
        Self { structured: rep::ACK, export, blocks, end: (rep::ACK, "") }
    }

    pub(super) fn replies(&self, option: u32) -> Vec<u8> {
        let reply = |reply: u32, data: &[u8]| {
            let header = OptionReplyHeader { option, reply, len: data.len() as u32 };
            [&header.encode()[..], data].concat()
        };
        let context = [&7u32.to_be_bytes()[..], wire::BASE_ALLOCATION.as_bytes()].concat();
        match option {
            opt::STRUCTURED_REPLY => reply(self.structured, &[]),
            opt::SET_META_CONTEXT => [reply(rep::META_CONTEXT, &context), reply(rep::ACK, &[])].concat(),
            opt::GO => {
                let (end, words) = self.end;
                [reply(rep::INFO, &self.export), reply(rep::INFO, &self.blocks), reply(end, words.as_bytes())]
                    .concat()
            }
            option => panic!("option {option} is not asked for"),
        }
    }
}

/// Shakes hands, with the server's bytes in pieces of `piece`.
fn shake_hands(server: &Server, piece: usize) -> Result<Described, String> {
    let (mut negotiation, mut out) = (Negotiation::new("x", false), Output::default());
    let mut bytes = wire::greeting(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES).to_vec();
    loop {
        for part in std::mem::take(&mut bytes).chunks(piece) {
            let (used, step) = negotiation.receive(part, &mut out);
            match step {
                NegotiationStep::More => assert_eq!(used, part.len()),
                NegotiationStep::Done(described) => return Ok(described),
                NegotiationStep::Refused(why) => return Err(why),
                NegotiationStep::StartTls => unreachable!("nobody asked for it"),
            }
        }
        let asked = out.take();
        let options = if asked.starts_with(&3u32.to_be_bytes()) { &asked[4..] } else { &asked[..] };
        let header = OptionHeader::decode(options).expect("an option is asked for");
        bytes = server.replies(header.option);
    }
}

#[test]
fn what_a_server_says_of_an_export_is_taken_from_pieces_of_any_length() {
    let server = Server::of(1 << 20, flag::HAS_FLAGS | flag::SEND_FLUSH, [512, 4096, 1 << 20]);
    for piece in [1, 2, 3, 7, 19, 20, 21, 1000] {
        let described = shake_hands(&server, piece).unwrap();
        assert_eq!((described.size, described.block, described.preferred), (1 << 20, 512, 4096));
        assert_eq!((described.payload_len_max, described.allocation), (1 << 20, Some(7)));
        assert!(described.has(flag::SEND_FLUSH) && described.structured && !described.has(flag::SEND_TRIM));
    }
    let simple = Server { structured: rep::ERR_UNSUP, ..server };
    let described = shake_hands(&simple, 8).unwrap();
    assert!(!described.structured && described.allocation.is_none());
}

#[test]
fn what_a_server_refuses_or_cannot_mean_is_told_in_words() {
    let plain = Server::of(1 << 20, flag::HAS_FLAGS, [1, 4096, 1 << 20]);
    let end = |reply, words| Server { end: (reply, words), ..plain.clone() };
    for (server, why) in [
        (end(rep::ERR_UNKNOWN, "no\nsuch"), "no such export (nosuch)"),
        (end(rep::ERR_TLS_REQD, ""), "TLS"),
        (end(rep::ERR_UNSUP, ""), "too old"),
        (Server::of(1 << 63, flag::HAS_FLAGS, [1, 4096, 1 << 20]), "more than a device may have"),
        (Server::of(1 << 20, flag::HAS_FLAGS, [3, 4096, 1 << 20]), "blocks of 3 bytes"),
        (Server::of(1 << 20, flag::HAS_FLAGS, [1 << 20, 1 << 20, 1 << 20]), "blocks of 1048576 bytes"),
        (Server::of(1 << 20, flag::HAS_FLAGS, [4096, 4096, 512]), "at least 4096"),
        (Server::of(1 << 20, flag::HAS_FLAGS, [1, 4096, 256]), "at least 512"),
        (Server::of(1 << 20, 0, [1, 4096, 1 << 20]), "how large"),
        (Server { export: vec![0; 5], ..plain.clone() }, "too few bytes"),
        (Server { blocks: vec![0, 3, 0], ..plain.clone() }, "too few bytes"),
    ] {
        let refusal = shake_hands(&server, 5).expect_err(why);
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn what_is_no_nbd_server_is_not_spoken_to() {
    for (bytes, why) in [
        (b"HTTP/1.1 400 Bad Request".to_vec(), "does not greet"),
        (b"NBDMAGIC\x00\x00\x42\x02\x81\x86\x12\x53\x00\x00".to_vec(), "old handshake"),
        (wire::greeting(0).to_vec(), "old handshake"),
        ([&wire::greeting(1)[..], &[0; 20]].concat(), "replies to no option"),
    ] {
        let (mut negotiation, mut out) = (Negotiation::new("x", false), Output::default());
        let (_, step) = negotiation.receive(&bytes, &mut out);
        let NegotiationStep::Refused(refusal) = step else { panic!("{why}: it is spoken to") };
        assert!(refusal.contains(why), "{refusal}");
    }
}

#[test]
fn tls_is_asked_for_first_and_what_comes_with_the_answer_is_left() {
    let (mut negotiation, mut out) = (Negotiation::new("x", true), Output::default());
    let greeting = wire::greeting(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES);
    assert!(matches!(negotiation.receive(&greeting, &mut out), (18, NegotiationStep::More)));
    let option = |option: u32| OptionHeader { option, len: 0 }.encode().to_vec();
    assert_eq!(out.take()[4..], option(opt::STARTTLS));
    let reply = |option: u32, reply: u32| OptionReplyHeader { option, reply, len: 0 }.encode().to_vec();
    let early = reply(opt::STRUCTURED_REPLY, rep::ACK);
    let answer = [reply(opt::STARTTLS, rep::ACK), early].concat();
    let (used, step) = negotiation.receive(&answer, &mut out);
    assert!(
        used == OptionReplyHeader::LEN && matches!(step, NegotiationStep::StartTls),
        "{used} bytes are taken"
    );
    assert_eq!(out.take(), option(opt::STRUCTURED_REPLY), "it goes through TLS");
    for (reply_kind, words) in
        [(rep::ERR_POLICY, "no TLS"), (rep::ERR_UNSUP, "no TLS"), (rep::SERVER, "protocol")]
    {
        let mut negotiation = Negotiation::new("x", true);
        negotiation.receive(&greeting, &mut out);
        let (_, step) = negotiation.receive(&reply(opt::STARTTLS, reply_kind), &mut out);
        assert!(matches!(step, NegotiationStep::Refused(why) if why.contains(words)), "{reply_kind}");
    }
}
