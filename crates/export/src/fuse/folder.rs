//! Names in a folder, as READDIR has them.

use spillway_core::IoBuf;

use super::stat::Stat;

/// Bytes of an entry in front of its name.
const ENTRY_LEN: usize = 24;

/// A list of names while it is written.
pub(super) struct Listing {
    buf: IoBuf,
    len: usize,
    /// Entries before this one are left out: the program has them.
    from: u64,
    count: u64,
    full: bool,
}

impl Listing {
    /// A list of at most `len_max` bytes that begins with the entry `from`.
    pub(super) fn new(from: u64, len_max: usize) -> Self {
        Self { buf: IoBuf::new(len_max), len: 0, from, count: 0, full: false }
    }

    /// Appends an entry, unless the list is full.
    pub(super) fn add(&mut self, number: u64, stat: &Stat, name: &str) {
        self.count += 1;
        let whole = (ENTRY_LEN + name.len()).next_multiple_of(8);
        self.full |= self.count > self.from && self.len + whole > self.buf.len();
        if self.full || self.count <= self.from {
            return;
        }
        let entry = &mut self.buf[self.len..self.len + whole];
        entry.fill(0);
        entry[..8].copy_from_slice(&number.to_ne_bytes());
        entry[8..16].copy_from_slice(&self.count.to_ne_bytes());
        entry[16..20].copy_from_slice(&(name.len() as u32).to_ne_bytes());
        entry[20..24].copy_from_slice(&stat.kind().to_ne_bytes());
        entry[ENTRY_LEN..ENTRY_LEN + name.len()].copy_from_slice(name.as_bytes());
        self.len += whole;
    }

    /// The bytes of the list.
    pub(super) fn finish(mut self) -> IoBuf {
        self.buf.narrow(0, self.len);
        self.buf
    }
}
