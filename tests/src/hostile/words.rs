//! Words of NBD's handshake, and the flags of its commands.

const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";

/// Options of the protocol.
pub(super) mod option {
    pub(in crate::hostile) const EXPORT_NAME: u32 = 1;
    pub(in crate::hostile) const LIST: u32 = 3;
    pub(in crate::hostile) const STARTTLS: u32 = 5;
    pub(in crate::hostile) const INFO: u32 = 6;
    pub(in crate::hostile) const GO: u32 = 7;
    pub(in crate::hostile) const STRUCTURED_REPLY: u32 = 8;
    pub(in crate::hostile) const LIST_META_CONTEXT: u32 = 9;
    pub(in crate::hostile) const SET_META_CONTEXT: u32 = 10;
    pub(in crate::hostile) const EXTENDED_HEADERS: u32 = 11;
}

/// Flags of commands.
pub(super) mod flag {
    pub(in crate::hostile) const FUA: u16 = 1;
    pub(in crate::hostile) const NO_HOLE: u16 = 2;
    pub(in crate::hostile) const DF: u16 = 4;
    pub(in crate::hostile) const REQ_ONE: u16 = 8;
    pub(in crate::hostile) const FAST_ZERO: u16 = 16;
    pub(in crate::hostile) const PAYLOAD_LEN: u16 = 32;
}

/// What the client says first: fixed newstyle, no zeroes.
pub(super) fn client_flags() -> Vec<u8> {
    3u32.to_be_bytes().to_vec()
}

/// An option with its data.
pub(super) fn option(number: u32, bytes: &[u8]) -> Vec<u8> {
    [option_header(number, bytes.len() as u32), bytes.to_vec()].concat()
}

/// What starts an option whose data has `len` bytes.
pub(super) fn option_header(number: u32, len: u32) -> Vec<u8> {
    [&OPTION_MAGIC[..], &number.to_be_bytes(), &len.to_be_bytes()].concat()
}

/// Data of an option about contexts.
pub(super) fn queries(export: &str, asked: &[&str]) -> Vec<u8> {
    let mut words = text(export);
    words.extend((asked.len() as u32).to_be_bytes());
    asked.iter().for_each(|query| words.extend(text(query)));
    words
}

pub(super) fn text(words: &str) -> Vec<u8> {
    [&(words.len() as u32).to_be_bytes()[..], words.as_bytes()].concat()
}
