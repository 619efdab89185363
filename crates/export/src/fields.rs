//! Numbers in messages of programs on this machine.

/// Numbers from the front of a message, in the byte order of this machine.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// The numbers in `bytes`.
    pub fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    fn next<const LEN: usize>(&mut self) -> Option<[u8; LEN]> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*number)
    }

    /// The next number of 16 bits; `None` where the message ends.
    pub fn u16(&mut self) -> Option<u16> {
        self.next().map(u16::from_ne_bytes)
    }

    /// The next number of 32 bits; `None` where the message ends.
    pub fn u32(&mut self) -> Option<u32> {
        self.next().map(u32::from_ne_bytes)
    }

    /// The next number of 64 bits; `None` where the message ends.
    pub fn u64(&mut self) -> Option<u64> {
        self.next().map(u64::from_ne_bytes)
    }
}
