//! Options, until the server has let us in to an export.

use spillway_core::SECTOR;
use spillway_core::session::Output;

use crate::nbd::wire::{
    self, HeaderStyle, OptionHeader, OptionReplyHeader, Reader, flag, handshake_flag, info, opt, rep,
};

/// Longest reply to an option, in bytes: the longest string of the protocol, and what may stand before it.
const REPLY_LEN_MAX: u32 = wire::STRING_LEN_MAX as u32 + 64;

/// Most replies to one option: a server that describes an export without end is broken.
const REPLIES_MAX: u32 = 64;

/// Longest payload in bytes where the server says nothing: what every server takes.
const PAYLOAD_LEN_MAX: u32 = 32 << 20;

/// Largest block in bytes that a server may ask for.
const BLOCK_MAX: u32 = 64 << 10;

/// What a server has said of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Described {
    /// Bytes.
    pub(super) size: u64,
    /// See [`flag`].
    pub(super) flags: u16,
    /// Bytes: requests are whole blocks.
    pub(super) block: u32,
    /// Bytes of a request that the server likes best.
    pub(super) preferred: u32,
    /// Bytes of a payload, at most.
    pub(super) payload_len_max: u32,
    /// The number of `base:allocation`, where it was selected.
    pub(super) allocation: Option<u32>,
    /// Whether replies to reads come in chunks.
    pub(super) structured: bool,
}

impl Described {
    /// Of a server that says nothing.
    pub(super) const NOTHING: Self = Self {
        size: 0,
        flags: 0,
        block: 1,
        preferred: 4096,
        payload_len_max: PAYLOAD_LEN_MAX,
        allocation: None,
        structured: false,
    };

    /// Whether the export can do what `flag` stands for.
    pub(super) fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// What is expected next.
#[derive(Clone, Copy)]
enum Item {
    Greeting,
    ReplyHeader,
    ReplyData(OptionReplyHeader),
}

/// How it goes on.
pub(super) enum NegotiationStep {
    More,
    /// TLS begins: what was put out meanwhile goes through it.
    StartTls,
    Done(Described),
    /// The server will not have us, in words.
    Refused(String),
}

/// The handshake with one server.
pub(super) struct Negotiation {
    export: String,
    item: Item,
    collected: Vec<u8>,
    /// The option that was sent last.
    option: u32,
    replies: u32,
    described: Described,
    /// TLS is asked for before anything else.
    tls: bool,
    /// The server has just agreed.
    starts_tls: bool,
}

impl Negotiation {
    /// With a server whose greeting is to come, for the export of that name.
    pub(super) fn new(export: &str, tls: bool) -> Self {
        Self {
            export: export.to_owned(),
            tls,
            starts_tls: false,
            item: Item::Greeting,
            collected: Vec::new(),
            option: 0,
            replies: 0,
            described: Described::NOTHING,
        }
    }

    /// Takes bytes; returns how many, and how it goes on.
    pub(super) fn receive(&mut self, bytes: &[u8], out: &mut Output) -> (usize, NegotiationStep) {
        let mut at = 0;
        loop {
            let wanted = self.item_len() - self.collected.len();
            let used = wanted.min(bytes.len() - at);
            self.collected.extend_from_slice(&bytes[at..at + used]);
            at += used;
            if used < wanted {
                return (at, NegotiationStep::More);
            }
            let item = std::mem::take(&mut self.collected);
            match self.complete(&item, out) {
                Ok(None) if std::mem::take(&mut self.starts_tls) => {
                    return (at, NegotiationStep::StartTls);
                }
                Ok(None) => {}
                Ok(Some(described)) => return (at, NegotiationStep::Done(described)),
                Err(words) => return (at, NegotiationStep::Refused(words)),
            }
        }
    }

    fn item_len(&self) -> usize {
        match self.item {
            Item::Greeting => 18,
            Item::ReplyHeader => OptionReplyHeader::LEN,
            Item::ReplyData(header) => header.len as usize,
        }
    }

    fn complete(&mut self, item: &[u8], out: &mut Output) -> Result<Option<Described>, String> {
        match self.item {
            Item::Greeting => self.greeted(item, out).map(|()| None),
            Item::ReplyHeader => {
                let header =
                    OptionReplyHeader::decode(item).ok_or("it replies to no option: no NBD server?")?;
                self.replies += 1;
                if header.option != self.option || header.len > REPLY_LEN_MAX || self.replies > REPLIES_MAX {
                    return Err("it breaks the protocol in its handshake".to_owned());
                }
                self.item = Item::ReplyData(header);
                Ok(None)
            }
            Item::ReplyData(header) => {
                self.item = Item::ReplyHeader;
                self.replied(header.reply, item, out)
            }
        }
    }

    fn greeted(&mut self, bytes: &[u8], out: &mut Output) -> Result<(), String> {
        let mut reader = Reader(bytes);
        let (magic, second, flags) = (reader.u64(), reader.u64(), reader.u16());
        if magic != Some(wire::INIT_MAGIC) {
            return Err("it does not greet as an NBD server does".to_owned());
        }
        let flags = flags.expect("the greeting was collected whole");
        if second != Some(wire::OPTION_MAGIC) || flags & handshake_flag::FIXED_NEWSTYLE == 0 {
            return Err(
                "it speaks only the old handshake of NBD: use a server that has fixed newstyle".to_owned()
            );
        }
        let ours = u32::from(flags & (handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES));
        out.push(&ours.to_be_bytes());
        self.item = Item::ReplyHeader;
        self.ask(if self.tls { opt::STARTTLS } else { opt::STRUCTURED_REPLY }, &[], out);
        Ok(())
    }

    fn ask(&mut self, option: u32, data: &[u8], out: &mut Output) {
        (self.option, self.replies) = (option, 0);
        out.push(&OptionHeader { option, len: data.len() as u32 }.encode());
        out.push(data);
    }

    /// The name of the export with its length before it.
    fn name(&self) -> Vec<u8> {
        [&(self.export.len() as u32).to_be_bytes(), self.export.as_bytes()].concat()
    }

    fn ask_for_allocation(&mut self, out: &mut Output) {
        let query = wire::BASE_ALLOCATION.as_bytes();
        let (one, len) = (1u32.to_be_bytes(), (query.len() as u32).to_be_bytes());
        let data = [&self.name(), &one[..], &len, query].concat();
        self.ask(opt::SET_META_CONTEXT, &data, out);
    }

    fn ask_to_go(&mut self, out: &mut Output) {
        let data = [&self.name(), &1u16.to_be_bytes()[..], &info::BLOCK_SIZE.to_be_bytes()].concat();
        self.ask(opt::GO, &data, out);
    }

    fn replied(&mut self, reply: u32, data: &[u8], out: &mut Output) -> Result<Option<Described>, String> {
        let failed = reply & 1 << 31 != 0;
        match self.option {
            opt::STARTTLS if reply == rep::ACK => {
                self.starts_tls = true;
                self.ask(opt::STRUCTURED_REPLY, &[], out);
            }
            opt::STARTTLS if !failed => return Err("it breaks the protocol in its handshake".to_owned()),
            opt::STRUCTURED_REPLY if failed => self.ask_to_go(out),
            opt::STRUCTURED_REPLY => {
                self.described.structured = true;
                self.ask_for_allocation(out);
            }
            opt::SET_META_CONTEXT if reply == rep::META_CONTEXT => self.note_context(data)?,
            opt::SET_META_CONTEXT => self.ask_to_go(out),
            _ if failed => return Err(self.refusal(reply, data)),
            _ if reply == rep::INFO => self.note(data)?,
            _ => return self.admitted().map(Some),
        }
        Ok(None)
    }

    fn note_context(&mut self, data: &[u8]) -> Result<(), String> {
        let number = Reader(data).u32().ok_or("it selects a metadata context without a number")?;
        if data[4..] == *wire::BASE_ALLOCATION.as_bytes() {
            self.described.allocation = Some(number);
        }
        Ok(())
    }

    fn note(&mut self, data: &[u8]) -> Result<(), String> {
        let mut reader = Reader(data);
        let kind = reader.u16();
        let noted = match kind {
            Some(info::EXPORT) => reader.u64().zip(reader.u16()).map(|(size, flags)| {
                (self.described.size, self.described.flags) = (size, flags);
            }),
            Some(info::BLOCK_SIZE) => {
                reader.u32().zip(reader.u32()).zip(reader.u32()).map(|(sizes, most)| {
                    (self.described.block, self.described.preferred) = sizes;
                    self.described.payload_len_max = most;
                })
            }
            _ => Some(()),
        };
        noted.ok_or_else(|| "it describes the export in too few bytes".to_owned())
    }

    fn admitted(&self) -> Result<Described, String> {
        let Described { size, flags, block, preferred, payload_len_max, .. } = self.described;
        if flags & flag::HAS_FLAGS == 0 {
            return Err("it does not say how large the export is".to_owned());
        }
        if size > spillway_core::block::DEVICE_BYTES_MAX {
            return Err(format!("it says that the export has {size} bytes, more than a device may have"));
        }
        let plausible = block.is_power_of_two() && preferred.is_power_of_two();
        let least = block.max(SECTOR as u32);
        if !plausible || block > BLOCK_MAX || payload_len_max < least {
            return Err(format!(
                "it asks for blocks of {block} bytes, {preferred} preferred, at most {payload_len_max}; \
                 allowed are powers of two up to {BLOCK_MAX}, and payloads of at least {least}"
            ));
        }
        Ok(self.described)
    }

    fn refusal(&self, reply: u32, data: &[u8]) -> String {
        let words = String::from_utf8_lossy(data);
        let words = words.chars().filter(|character| !character.is_control()).collect::<String>();
        let why = match reply {
            rep::ERR_POLICY | rep::ERR_UNSUP if self.option == opt::STARTTLS => "it speaks no TLS",
            rep::ERR_UNKNOWN => "it has no such export",
            rep::ERR_UNSUP => "it is too old: it does not know NBD_OPT_GO",
            rep::ERR_TLS_REQD => "it wants TLS: use nbds: in place of nbd:",
            rep::ERR_POLICY => "its policy forbids it",
            rep::ERR_SHUTDOWN => "it is shutting down",
            _ => "it refuses the export",
        };
        if words.is_empty() { why.to_owned() } else { format!("{why} ({words})") }
    }
}

/// The header of a request, in the compact style.
pub(super) fn request(command: u16, flags: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HeaderStyle::Compact.request_len());
    let header = wire::RequestHeader { flags, command, cookie, offset, length };
    header.encode(HeaderStyle::Compact, &mut bytes);
    bytes
}
