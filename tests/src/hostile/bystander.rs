//! A client that behaves, on a range of its own: every answer comes, every byte is its own, and what was flushed outlives the server.

use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

use super::Chance;
use super::door::{Door, Wire};
use super::stacks::{Export, Keeps};
use crate::pattern;
use crate::raw::{Client, command, errno};

/// Bytes at the end of each export that belong to the bystander alone.
pub(super) const RANGE: u64 = 4 << 20;

const BLOCK: u64 = 4096;

/// Between two requests, so that the others have the processors most of the time.
const THOUGHT: Duration = Duration::from_millis(1);

/// The slowest answers that a bystander got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slowest {
    /// To a read of 4 KiB.
    pub read: Duration,
    /// To a write of 4 KiB.
    pub write: Duration,
    /// To a flush.
    pub flush: Duration,
}

impl Slowest {
    /// The slower of both, for each kind.
    pub fn or(self, other: Self) -> Self {
        Self {
            read: self.read.max(other.read),
            write: self.write.max(other.write),
            flush: self.flush.max(other.flush),
        }
    }
}

/// What may be found in a block.
#[derive(Clone, Debug)]
struct Block {
    /// What a read may show now: one version, or two after a write that failed.
    now: Vec<u64>,
    /// What may be found after a crash, in the order of writing.
    kept: Vec<u64>,
}

/// The client with what it knows. It outlives connections and servers.
pub(super) struct Bystander {
    export: Export,
    blocks: Vec<Block>,
    chance: Chance,
    version: u64,
    pub(super) slowest: Slowest,
    pub(super) requests: u64,
}

impl Bystander {
    /// A client of an export that reads as zeroes, which are version 0.
    pub(super) fn new(export: Export, chance: Chance) -> Self {
        let blocks = vec![Block { now: vec![0], kept: vec![0] }; (RANGE / BLOCK) as usize];
        Self { export, blocks, chance, version: 0, slowest: Slowest::default(), requests: 0 }
    }

    /// Connects; before the others come, who take all the connections that there are.
    pub(super) fn enter(&self, door: &Door) -> Client<Wire> {
        door.client(self.export.name).expect("the server lets in who comes first")
    }

    /// Reads, writes and flushes until `over`. An error is a connection that ended; a broken promise panics.
    pub(super) fn live(&mut self, mut client: Client<Wire>, over: impl Fn() -> bool) -> io::Result<()> {
        loop {
            self.step(&mut client)?;
            self.requests += 1;
            if over() {
                return Ok(());
            }
            std::thread::sleep(THOUGHT);
        }
    }

    fn step(&mut self, client: &mut Client<Wire>) -> io::Result<()> {
        let block = self.chance.below(self.blocks.len() as u64) as usize;
        match self.chance.below(16) {
            0 => self.flush(client),
            1..7 => self.write(client, block),
            _ => self.read(client, block),
        }
    }

    /// A server that was killed and begins anew holds what it promised to keep.
    pub(super) fn finds_everything(&mut self, door: &Door) {
        let mut client = self.enter(door);
        for block in &mut self.blocks {
            let kept = std::mem::take(&mut block.kept);
            block.now = if self.export.keeps == Keeps::Nothing { vec![0] } else { kept };
        }
        for block in 0..self.blocks.len() {
            let read = self.read_anew(&mut client, block);
            read.expect("a server without other clients answers");
            self.blocks[block].kept = self.blocks[block].now.clone();
        }
        self.flush(&mut client).expect("a server without other clients answers");
    }

    /// Looks at a block after a crash. A write that no flush has covered may be there in part, by units of the export; then it is done anew, so
    /// that the block is of one version again.
    fn read_anew(&mut self, client: &mut Client<Wire>, block: usize) -> io::Result<()> {
        let (offset, unit) = (self.offset(block), self.export.unit);
        let bytes = self.fetch(client, block)?;
        let kept = &self.blocks[block].now;
        if let Some(version) = whole(kept, &bytes, offset) {
            self.blocks[block].now = vec![version];
            return Ok(());
        }
        let versions: Vec<Vec<u8>> = kept.iter().map(|&version| contents(version, offset)).collect();
        for (number, found) in bytes.chunks_exact(unit).enumerate() {
            let range = number * unit..(number + 1) * unit;
            assert!(
                versions.iter().any(|version| version[range.clone()] == *found),
                "a bystander's block at {offset} holds none of {kept:?} from its byte {} on",
                range.start
            );
        }
        self.write(client, block)
    }

    fn read(&mut self, client: &mut Client<Wire>, block: usize) -> io::Result<()> {
        let (offset, bytes) = (self.offset(block), self.fetch(client, block)?);
        let now = &mut self.blocks[block].now;
        let found = whole(now, &bytes, offset);
        *now = vec![found.unwrap_or_else(|| panic!("a bystander's block at {offset} holds none of {now:?}"))];
        Ok(())
    }

    fn fetch(&mut self, client: &mut Client<Wire>, block: usize) -> io::Result<Vec<u8>> {
        let offset = self.offset(block);
        let begin = Instant::now();
        client.send(command::READ, offset, BLOCK as u32)?;
        let (error, _) = client.reply()?;
        assert!(error == 0, "a bystander's read of {offset} fails with {error}");
        let mut bytes = vec![0; BLOCK as usize];
        client.stream.read_exact(&mut bytes)?;
        self.slowest.read = self.slowest.read.max(begin.elapsed());
        Ok(bytes)
    }

    fn write(&mut self, client: &mut Client<Wire>, block: usize) -> io::Result<()> {
        let offset = self.offset(block);
        self.version += 1;
        let version = self.version;
        // From here on it may be found after a crash, answered or not.
        self.blocks[block].kept.push(version);
        let begin = Instant::now();
        client.send(command::WRITE, offset, BLOCK as u32)?;
        client.stream.write_all(&contents(version, offset))?;
        let (error, _) = client.reply()?;
        self.slowest.write = self.slowest.write.max(begin.elapsed());
        let full = error == errno::ENOSPC && self.export.keeps == Keeps::Nothing;
        assert!(error == 0 || full, "a bystander's write of {offset} fails with {error}");
        let known = &mut self.blocks[block];
        match error {
            0 => known.now = vec![version],
            _ => known.now.push(version),
        }
        if self.export.keeps == Keeps::Acknowledged {
            known.kept = vec![version];
        }
        Ok(())
    }

    fn flush(&mut self, client: &mut Client<Wire>) -> io::Result<()> {
        let begin = Instant::now();
        client.send(command::FLUSH, 0, 0)?;
        let (error, _) = client.reply()?;
        self.slowest.flush = self.slowest.flush.max(begin.elapsed());
        assert!(error == 0, "a bystander's flush fails with {error}");
        self.blocks.iter_mut().for_each(|block| block.kept = block.now.clone());
        Ok(())
    }

    fn offset(&self, block: usize) -> u64 {
        self.export.size - RANGE + block as u64 * BLOCK
    }
}

/// Which of the versions it is.
fn whole(versions: &[u64], bytes: &[u8], offset: u64) -> Option<u64> {
    versions.iter().copied().find(|&version| bytes == contents(version, offset))
}

fn contents(version: u64, offset: u64) -> Vec<u8> {
    match version {
        0 => vec![0; BLOCK as usize],
        _ => pattern::random(version, offset, BLOCK as usize),
    }
}
