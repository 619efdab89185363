//! Blocks of a device whose writes were acknowledged, and those that a flush has covered too.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::pattern;
use crate::raw::{Client, command};

/// Bytes of a block.
const BLOCK: usize = 4096;

/// Bytes of a part of the device, of which each has one writer.
pub const PART: usize = 4 << 20;

/// How a client gets at the device.
pub enum Way {
    /// Over NBD.
    Socket(Client),
    /// By its file in a mount.
    File(File),
}

impl Way {
    /// Over a socket.
    pub fn by_socket(socket: &Path) -> io::Result<Self> {
        Client::try_open(socket, "").map(Self::Socket)
    }

    /// By a file.
    pub fn by_file(file: &Path) -> io::Result<Self> {
        File::options().read(true).write(true).open(file).map(Self::File)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Socket(client) => client.try_write(at, bytes),
            Self::File(file) => file.write_all_at(bytes, at),
        }
    }

    fn read(&mut self, at: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        match self {
            Self::Socket(client) => client.try_read(at, &mut bytes)?,
            Self::File(file) => file.read_exact_at(&mut bytes, at)?,
        }
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Socket(client) => client.try_ask(command::FLUSH, 0, 0),
            Self::File(file) => file.sync_data(),
        }
    }
}

/// What one writer knows of its part of the device.
pub struct Acknowledged {
    part: u64,
    blocks: Vec<u64>,
    /// How many of them a flush has covered.
    durable: usize,
}

impl Acknowledged {
    /// Nothing is written yet.
    pub fn new(part: u64) -> Self {
        Self { part, blocks: Vec::new(), durable: 0 }
    }

    fn place(&self, block: u64) -> u64 {
        self.part * PART as u64 + block * BLOCK as u64
    }

    fn content(&self, block: u64) -> Vec<u8> {
        pattern::random(self.part, self.place(block), BLOCK)
    }

    /// Writes blocks that come next, reads one and flushes. Ends with the first error.
    pub fn write_some(&mut self, way: &mut Way) -> io::Result<()> {
        for _ in 0..4 {
            let block = self.blocks.last().map_or(0, |last| last + 1);
            way.write(self.place(block), &self.content(block))?;
            self.blocks.push(block);
        }
        let old = self.blocks[self.blocks.len() / 2];
        let found = way.read(self.place(old), BLOCK)?;
        assert!(
            found == self.content(old),
            "block {old} of part {} is read as it was not written",
            self.part
        );
        way.flush()?;
        self.durable = self.blocks.len();
        Ok(())
    }

    /// All acknowledged blocks are there.
    pub fn check(&self, way: &mut Way) {
        for &block in &self.blocks {
            let found = way.read(self.place(block), BLOCK).expect("a read");
            assert!(found == self.content(block), "block {block} of part {} is lost", self.part);
        }
    }

    /// The server has said that it could not keep more than what was flushed.
    pub fn keep_durable(&mut self) {
        self.blocks.truncate(self.durable);
    }

    /// All acknowledged blocks are in the file of the device.
    pub fn check_file(&self, file: &Path) {
        let file = fs::read(file).expect("the file exists");
        for &block in &self.blocks {
            let at = self.place(block) as usize;
            let found = &file[at..at + BLOCK];
            assert!(found == self.content(block), "block {block} of part {} is not in the file", self.part);
        }
    }
}
