//! Options, until the client has chosen an export or leaves.
//!
//! The handshake collects one item at a time (client flags, an option's header, its data) and answers each option as it
//! completes. What a client may make us hold is one option's data; longer options are skipped and refused.

use std::sync::Arc;

use spillway_core::session::{Output, Peer};
use spillway_core::work;

use super::config::{Config, TlsPolicy};
use super::memory::{OPTION_LEN_MAX, OPTIONS_UNSENT_MAX};
use super::options::{Refused, no_payload, parse_query, split_queries};
use super::reply::{BASE_ALLOCATION_ID, ReplyStyle};
use super::request::{NegotiatedRules, SKIPPED_LEN_MAX};
use super::wire::{self, OptionHeader, OptionReplyHeader, Reader, flag, handshake_flag, info, opt, rep};
use crate::export::{Connected, Export};
use crate::exports::{Exports, Offer, WeakOffer};

/// Most options of one handshake. Far above any real client; an endless handshake is an attack.
const OPTIONS_MAX: u32 = 4096;

/// Units of work for an export in a list.
const LISTED_UNITS: u32 = 2;

/// Smallest preferred block in bytes: what clients assume where nothing is said.
const PREFERRED_MIN: u64 = 4096;

/// How a handshake goes on.
pub(super) enum Transition {
    /// More bytes are needed, or the output is full.
    More,
    /// The connection ends once the output is sent.
    Close,
    /// TLS begins; then the handshake goes on.
    StartTls,
    /// The client has chosen.
    Transmit(Connected, NegotiatedRules),
}

enum Item {
    ClientFlags,
    OptionHeader,
    OptionData(OptionHeader),
    /// Bytes of a refused option still to be thrown away.
    Skip(u32),
}

/// The handshake of one client.
pub(super) struct Handshake {
    exports: Arc<Exports>,
    config: Config,
    item: Item,
    collected: Vec<u8>,
    options: u32,
    fixed_newstyle: bool,
    no_zeroes: bool,
    replies: ReplyStyle,
    /// For what `base:allocation` was selected last. The device may end while the client goes on negotiating.
    context_of: Option<WeakOffer>,
    pub(super) peer: Peer,
    /// What follows comes through TLS.
    protected: bool,
}

impl Handshake {
    /// Greets the client.
    pub(super) fn new(exports: Arc<Exports>, config: Config, out: &mut Output) -> Self {
        out.push(&wire::greeting(handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES));
        Self {
            exports,
            config,
            item: Item::ClientFlags,
            collected: Vec::new(),
            options: 0,
            fixed_newstyle: false,
            no_zeroes: false,
            replies: ReplyStyle::Simple,
            context_of: None,
            peer: Peer::Unknown,
            protected: false,
        }
    }

    /// Whether the client owes us reading before it may say more.
    pub(super) fn paused(&self, out: &Output) -> bool {
        out.len() > OPTIONS_UNSENT_MAX.min(self.config.held_bytes_max)
    }

    /// Takes bytes; returns how many, and how it goes on.
    pub(super) fn receive(&mut self, bytes: &[u8], out: &mut Output) -> (usize, Transition) {
        let mut at = 0;
        // With no bytes left one more item may be complete: nobody would offer it again.
        while !self.paused(out) && (at == bytes.len() || !work::spent()) {
            if let Item::Skip(left) = &mut self.item {
                let used = (*left as usize).min(bytes.len() - at);
                *left -= used as u32;
                at += used;
                if *left > 0 {
                    break;
                }
                self.item = Item::OptionHeader;
            }
            let used = self.missing().min(bytes.len() - at);
            self.collected.extend_from_slice(&bytes[at..at + used]);
            at += used;
            if self.missing() > 0 {
                break;
            }
            match self.complete(out) {
                Transition::More => {}
                end => return (at, end),
            }
        }
        (at, Transition::More)
    }

    fn missing(&self) -> usize {
        let whole = match &self.item {
            Item::ClientFlags => 4,
            Item::OptionHeader => OptionHeader::LEN,
            Item::OptionData(header) => header.len as usize,
            Item::Skip(_) => 0,
        };
        assert!(self.collected.len() <= whole, "{} bytes of an item of {whole}", self.collected.len());
        whole - self.collected.len()
    }

    /// Acts on an item that is here whole.
    fn complete(&mut self, out: &mut Output) -> Transition {
        work::spend(work::REQUEST);
        let bytes = std::mem::take(&mut self.collected);
        let item = std::mem::replace(&mut self.item, Item::OptionHeader);
        match item {
            Item::ClientFlags => self.client_flags(&bytes),
            Item::OptionHeader => self.option_header(&bytes, out),
            Item::OptionData(header) => self.option(header.option, &bytes, out),
            Item::Skip(_) => Transition::More,
        }
    }

    fn client_flags(&mut self, bytes: &[u8]) -> Transition {
        let flags = Reader(bytes).u32().expect("four bytes were collected");
        let (fixed, no_zeroes) =
            (u32::from(handshake_flag::FIXED_NEWSTYLE), u32::from(handshake_flag::NO_ZEROES));
        self.fixed_newstyle = flags & fixed != 0;
        self.no_zeroes = flags & no_zeroes != 0;
        if flags & !(fixed | no_zeroes) == 0 { Transition::More } else { Transition::Close }
    }

    fn option_header(&mut self, bytes: &[u8], out: &mut Output) -> Transition {
        let Some(header) = OptionHeader::decode(bytes) else { return Transition::Close };
        self.options += 1;
        // A client of the first newstyle cannot read replies to options, and has only one option.
        let readable = self.fixed_newstyle || header.option == opt::EXPORT_NAME;
        if self.options > OPTIONS_MAX || !readable {
            return Transition::Close;
        }
        if header.len <= OPTION_LEN_MAX {
            self.collected.reserve_exact(header.len as usize);
            self.item = Item::OptionData(header);
            return Transition::More;
        }
        if header.option == opt::EXPORT_NAME || u64::from(header.len) > SKIPPED_LEN_MAX {
            return Transition::Close;
        }
        refuse(header.option, (rep::ERR_TOO_BIG, "the option is too long"), out);
        self.item = Item::Skip(header.len);
        Transition::More
    }

    fn option(&mut self, option: u32, data: &[u8], out: &mut Output) -> Transition {
        let bare = self.config.tls == TlsPolicy::Required && !self.protected;
        let answer = match option {
            opt::EXPORT_NAME if bare => return Transition::Close,
            opt::EXPORT_NAME => return self.export_name(data, out),
            opt::ABORT => {
                reply(option, rep::ACK, &[], out);
                return Transition::Close;
            }
            opt::STARTTLS => match self.start_tls(data) {
                Ok(()) => {
                    reply(option, rep::ACK, &[], out);
                    return Transition::StartTls;
                }
                Err(refused) => Err(refused),
            },
            _ if bare => Err((rep::ERR_TLS_REQD, "this server speaks TLS only: ask for it first")),
            opt::GO => match self.go(data, out) {
                Ok((connected, rules)) => return Transition::Transmit(connected, rules),
                Err(refused) => Err(refused),
            },
            opt::INFO => self.describe(option, data, out).map(|_| ()),
            opt::LIST => self.list(data, out),
            opt::STRUCTURED_REPLY => self.structured_reply(data),
            opt::EXTENDED_HEADERS => no_payload(data).map(|()| self.replies = ReplyStyle::Extended),
            opt::LIST_META_CONTEXT => self.list_meta_context(data, out),
            opt::SET_META_CONTEXT => self.set_meta_context(data, out),
            _ => Err((rep::ERR_UNSUP, "unknown option")),
        };
        match answer {
            Ok(()) => reply(option, rep::ACK, &[], out),
            Err(refused) => refuse(option, refused, out),
        }
        Transition::More
    }

    /// What was agreed on before is void: it may have been said by another.
    fn start_tls(&mut self, data: &[u8]) -> Result<(), Refused> {
        no_payload(data)?;
        if self.protected {
            return Err((rep::ERR_INVALID, "TLS is in use already"));
        }
        if self.config.tls == TlsPolicy::Off {
            return Err((rep::ERR_POLICY, "this server does not speak TLS"));
        }
        (self.protected, self.replies, self.context_of) = (true, ReplyStyle::Simple, None);
        Ok(())
    }

    /// The old way to choose, which has no reply for errors: they close the connection.
    fn export_name(&mut self, name: &[u8], out: &mut Output) -> Transition {
        if self.replies == ReplyStyle::Extended {
            return Transition::Close;
        }
        let Some(offer) = self.exports.find(name) else { return Transition::Close };
        let Some(connected) = offer.export().connect(self.peer) else { return Transition::Close };
        let rules = self.rules(&offer);
        out.push(&rules.geometry.size.to_be_bytes());
        out.push(&transmission_flags(&rules).to_be_bytes());
        if !self.no_zeroes {
            out.push(&[0; 124]);
        }
        Transition::Transmit(connected, rules)
    }

    fn go(&mut self, data: &[u8], out: &mut Output) -> Result<(Connected, NegotiatedRules), Refused> {
        // Counted in before it is described, so that what is described stays true.
        let (name, _) = parse_query(data)?;
        let connected = self.find(name)?.export().connect(self.peer).ok_or((
            rep::ERR_UNKNOWN,
            "the export is held by another client, kept for a block device, being changed, or being stopped",
        ))?;
        let offer = self.describe(opt::GO, data, out)?;
        if !Arc::ptr_eq(offer.export(), connected.export()) {
            return Err((rep::ERR_UNKNOWN, "the export is being changed"));
        }
        reply(opt::GO, rep::ACK, &[], out);
        let rules = self.rules(&offer);
        Ok((connected, rules))
    }

    /// Sends what the client wants to know of an export, for `OPT_INFO` and `OPT_GO`.
    fn describe(&self, option: u32, data: &[u8], out: &mut Output) -> Result<Offer, Refused> {
        let (name, wanted) = parse_query(data)?;
        let offer = self.find(name)?;
        let (export, rules) = (offer.export(), self.rules(&offer));
        let size = rules.geometry.size.to_be_bytes();
        let flags = transmission_flags(&rules).to_be_bytes();
        reply(option, rep::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags], out);
        if wanted.contains(&info::NAME) {
            reply(option, rep::INFO, &[&info::NAME.to_be_bytes(), offer.name().as_bytes()], out);
        }
        if wanted.contains(&info::DESCRIPTION) && !export.description().is_empty() {
            let text = export.description().as_bytes();
            reply(option, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), text], out);
        }
        // Sent unasked as well: it is enforced whether the client asked or not.
        let sizes = self.block_sizes(export);
        reply(option, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()], out);
        Ok(offer)
    }

    /// The words are the same for every wrong name, whatever is hidden.
    fn find(&self, name: &[u8]) -> Result<Offer, Refused> {
        self.exports.find(name).ok_or((rep::ERR_UNKNOWN, "no such export"))
    }

    fn block_sizes(&self, export: &Export) -> [[u8; 4]; 3] {
        let minimum = spillway_core::SECTOR as u32;
        let preferred = export.device().preferred_block().bytes().max(PREFERRED_MIN) as u32;
        [minimum, preferred, self.config.payload_len_max].map(u32::to_be_bytes)
    }

    fn rules(&self, offer: &Offer) -> NegotiatedRules {
        NegotiatedRules {
            geometry: offer.geometry(),
            replies: self.replies,
            base_allocation: self.context_of.as_ref().is_some_and(|selected| selected.is(offer)),
            payload_len_max: self.config.payload_len_max,
        }
    }

    fn list(&self, data: &[u8], out: &mut Output) -> Result<(), Refused> {
        no_payload(data)?;
        for offer in self.exports.listed() {
            work::spend(LISTED_UNITS);
            let (name, description) = (offer.name().as_bytes(), offer.export().description().as_bytes());
            let name_len = (name.len() as u32).to_be_bytes();
            reply(opt::LIST, rep::SERVER, &[&name_len, name, description], out);
        }
        Ok(())
    }

    fn structured_reply(&mut self, data: &[u8]) -> Result<(), Refused> {
        no_payload(data)?;
        if self.replies == ReplyStyle::Extended {
            return Err((rep::ERR_EXT_HEADER_REQD, "extended headers are in use already"));
        }
        self.replies = ReplyStyle::Structured;
        Ok(())
    }

    fn list_meta_context(&self, data: &[u8], out: &mut Output) -> Result<(), Refused> {
        let (_, queries) = self.parse_queries(data)?;
        let all = queries.is_empty();
        if all || queries.iter().any(|query| [b"base:".as_slice(), BASE_ALLOCATION].contains(query)) {
            reply(opt::LIST_META_CONTEXT, rep::META_CONTEXT, &[&[0; 4], BASE_ALLOCATION], out);
        }
        Ok(())
    }

    fn set_meta_context(&mut self, data: &[u8], out: &mut Output) -> Result<(), Refused> {
        // Whatever was selected before is gone, even if this option fails.
        self.context_of = None;
        let (offer, queries) = self.parse_queries(data)?;
        if queries.contains(&BASE_ALLOCATION) {
            let id = BASE_ALLOCATION_ID.to_be_bytes();
            reply(opt::SET_META_CONTEXT, rep::META_CONTEXT, &[&id, BASE_ALLOCATION], out);
            self.context_of = Some(offer.downgrade());
        }
        Ok(())
    }

    fn parse_queries<'a>(&self, data: &'a [u8]) -> Result<(Offer, Vec<&'a [u8]>), Refused> {
        if self.replies == ReplyStyle::Simple {
            return Err((rep::ERR_INVALID, "structured replies come first"));
        }
        let (name, queries) = split_queries(data).ok_or((rep::ERR_INVALID, "the lengths do not add up"))?;
        let too_long = |text: &[u8]| text.len() > wire::STRING_LEN_MAX;
        if too_long(name) || queries.iter().any(|query| too_long(query)) {
            return Err((rep::ERR_TOO_BIG, "a name or query is too long"));
        }
        if queries.iter().any(|query| !query.contains(&b':')) {
            return Err((rep::ERR_INVALID, "a query is NAMESPACE:NAME"));
        }
        Ok((self.find(name)?, queries))
    }
}

const BASE_ALLOCATION: &[u8] = wire::BASE_ALLOCATION.as_bytes();

/// What the export can do, for clients. Ways to write are not offered on a read-only export.
fn transmission_flags(rules: &NegotiatedRules) -> u16 {
    let geometry = &rules.geometry;
    let mut flags = flag::HAS_FLAGS;
    if !geometry.write_through {
        flags |= flag::SEND_FLUSH | flag::SEND_FUA;
    }
    // The state of a device is shared by all connections, and a flush of one covers what all had acknowledged.
    flags |= flag::CAN_MULTI_CONN | flag::SEND_CACHE;
    if geometry.read_only {
        flags |= flag::READ_ONLY;
    } else {
        flags |= flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
    }
    if geometry.discards && !geometry.read_only {
        flags |= flag::SEND_TRIM;
    }
    if geometry.rotational {
        flags |= flag::ROTATIONAL;
    }
    if rules.replies != ReplyStyle::Simple {
        flags |= flag::SEND_DF;
    }
    flags
}

fn reply(option: u32, reply: u32, data: &[&[u8]], out: &mut Output) {
    let len = data.iter().map(|part| part.len()).sum::<usize>() as u32;
    out.push(&OptionReplyHeader { option, reply, len }.encode());
    data.iter().for_each(|part| out.push(part));
}

fn refuse(option: u32, (error, message): Refused, out: &mut Output) {
    reply(option, error, &[message.as_bytes()], out);
}
