//! Random work on a file, against a model of its bytes: reads, writes, holes, zeroes, sizes, syncs, and questions about holes.
//!
//! After the idea of fsx. What was done last is printed with the seed where a file shows something else.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;

use crate::hostile::Chance;
use crate::pattern;

/// Longest read or write: more than a mount takes at once.
const LEN_MAX: u64 = 3 << 20;

/// Operations that a failure shows.
const SHOWN: usize = 30;

/// The part of a file that is worked on.
#[derive(Clone, Copy)]
pub enum Part {
    /// From `start` on, `len` bytes of a disk file, whose size is fixed. They hold zeroes.
    Disk {
        /// In bytes.
        start: u64,
        /// In bytes.
        len: u64,
    },
    /// A file that is made, and gets up to so many bytes.
    File(u64),
}

/// A file at work.
pub struct Exerciser {
    path: PathBuf,
    file: File,
    start: u64,
    /// Most bytes of the model.
    most: u64,
    resizes: bool,
    model: Vec<u8>,
    seed: u64,
    chance: Chance,
    done: Vec<String>,
}

impl Exerciser {
    /// Works on `part` of the file at `path`, as `seed` says.
    pub fn new(path: &Path, part: Part, seed: u64) -> Self {
        let (start, most, resizes) = match part {
            Part::Disk { start, len } => (start, len, false),
            Part::File(most) => (0, most, true),
        };
        let model = if resizes { Vec::new() } else { vec![0; most as usize] };
        let (chance, done, path) = (Chance::new(seed), Vec::new(), path.to_owned());
        Self { file: open(&path, resizes), path, start, most, resizes, model, seed, chance, done }
    }

    /// Does so many operations, and compares the whole part.
    pub fn run(&mut self, operations: usize) -> &mut Self {
        for _ in 0..operations {
            self.step();
        }
        self.file.sync_all().expect("a sync");
        self.check();
        self
    }

    /// Opens the file again, and compares the whole part.
    pub fn check_anew(&mut self) {
        self.file = open(&self.path, false);
        self.check();
    }

    /// Closes the file, so that what it lies on can be unmounted.
    pub fn close(&mut self) {
        self.file = File::open("/dev/null").expect("it is there");
    }

    fn check(&self) {
        let mut seen = vec![1; self.model.len() + usize::from(self.resizes)];
        let len = self.read(&mut seen, 0);
        self.compare(&seen[..len], 0, self.model.len());
    }

    fn step(&mut self) {
        match self.chance.below(16) {
            0..5 => self.write(),
            5..10 => self.read_some(),
            10 => self.zero(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            11 => self.zero(FallocateFlags::ZERO_RANGE),
            12 => self.zero(FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE),
            13 => self.resize(),
            14 => self.look_for_holes(),
            _ => self.sync(),
        }
    }

    /// An offset up to `end`, often at or beside a boundary of something, and a length.
    fn range(&mut self, end: u64) -> (u64, u64) {
        let boundary = 1 << [0, 9, 12, 16, 20][self.chance.below(5) as usize];
        let offset = self.chance.below(end + 1) / boundary * boundary + self.chance.below(3);
        let offset = offset.saturating_sub(1).min(end);
        let len = self.chance.spread(LEN_MAX);
        let len = if self.chance.one_in(2) { (len / boundary).max(1) * boundary } else { len };
        (offset, len.min(self.most - offset))
    }

    fn note(&mut self, what: &str, offset: u64, len: u64) {
        self.done.push(format!("{what} {len} at {offset}"));
    }

    fn write(&mut self) {
        let end = if self.resizes { self.most } else { self.model.len() as u64 };
        let (offset, len) = self.range(end);
        self.note("write", offset, len);
        if len == 0 {
            return;
        }
        let bytes = self.bytes(len as usize);
        self.file.write_all_at(&bytes, self.start + offset).expect("a write");
        let (start, stop) = (offset as usize, (offset + len) as usize);
        self.model.resize(self.model.len().max(stop), 0);
        self.model[start..stop].copy_from_slice(&bytes);
    }

    /// Some that compress, and some that do not.
    fn bytes(&mut self, len: usize) -> Vec<u8> {
        match self.chance.below(3) {
            0 => vec![self.chance.bits() as u8 & 3; len],
            _ => pattern::random(self.chance.bits(), 0, len),
        }
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> usize {
        let mut len = 0;
        while len < bytes.len() {
            match self.file.read_at(&mut bytes[len..], self.start + offset + len as u64).expect("a read") {
                0 => break,
                more => len += more,
            }
        }
        len
    }

    fn read_some(&mut self) {
        let (offset, len) = self.range(self.model.len() as u64);
        let len = len.min(self.model.len() as u64 - offset) as usize;
        self.note("read", offset, len as u64);
        let mut seen = vec![1; len];
        let got = self.read(&mut seen, offset);
        self.compare(&seen[..got], offset as usize, len);
    }

    fn compare(&self, seen: &[u8], offset: usize, len: usize) {
        let wanted = &self.model[offset..offset + len];
        if seen == wanted {
            return;
        }
        let differs = seen.iter().zip(wanted).position(|(a, b)| a != b).unwrap_or(seen.len().min(len));
        let last = &self.done[self.done.len().saturating_sub(SHOWN)..];
        panic!(
            "seed {}: {} bytes for {len} at {offset}, which differ from byte {} on, after {} operations:\n{}",
            self.seed,
            seen.len(),
            offset + differs,
            self.done.len(),
            last.join("\n")
        );
    }

    fn zero(&mut self, mode: FallocateFlags) {
        let grows = self.resizes && !mode.contains(FallocateFlags::KEEP_SIZE);
        let end = if grows { self.most } else { self.model.len() as u64 };
        let (offset, len) = self.range(end);
        if len == 0 {
            return;
        }
        self.note(&format!("{mode:?}"), offset, len);
        match fallocate(&self.file, mode, self.start + offset, len) {
            // A device that would have to write zeroes.
            Err(Errno::OPNOTSUPP) if !self.resizes && mode.contains(FallocateFlags::PUNCH_HOLE) => return,
            outcome => outcome.expect("zeroes"),
        }
        let stop = offset + len;
        if grows {
            self.model.resize(self.model.len().max(stop as usize), 0);
        }
        let stop = stop.min(self.model.len() as u64);
        self.model[offset.min(stop) as usize..stop as usize].fill(0);
    }

    /// A disk has the size that it has.
    fn resize(&mut self) {
        let len = self.chance.below(self.most + 1);
        self.note("resize", 0, len);
        let outcome = self.file.set_len(len);
        if self.resizes {
            outcome.expect("a size");
            self.model.resize(len as usize, 0);
        } else if self.file.metadata().expect("a size").len() != len {
            let refused = outcome.expect_err("it changed its size");
            assert_eq!(Errno::from_io_error(&refused), Some(Errno::PERM));
        }
    }

    /// What is said to be a hole reads as zero.
    fn look_for_holes(&mut self) {
        let end = self.model.len() as u64;
        let from = self.chance.below(end + 1);
        self.note("look for a hole", from, 0);
        if from == end {
            return;
        }
        let hole = match seek(&self.file, SeekFrom::Hole(self.start + from)) {
            Ok(hole) => hole - self.start,
            Err(why) => panic!("seed {}: {why} for a hole from {from} on", self.seed),
        };
        if hole >= end {
            return;
        }
        let data = match seek(&self.file, SeekFrom::Data(self.start + hole)) {
            Ok(data) => (data - self.start).min(end),
            Err(Errno::NXIO) => end,
            Err(why) => panic!("seed {}: {why} for data from {hole} on", self.seed),
        };
        let zero = self.model[hole as usize..data as usize].iter().all(|&byte| byte == 0);
        assert!(zero, "seed {}: {hole} to {data} is said to be a hole", self.seed);
    }

    fn sync(&mut self) {
        self.note("sync", 0, 0);
        if self.chance.one_in(2) { self.file.sync_all() } else { self.file.sync_data() }.expect("a sync");
        if self.chance.one_in(2) {
            self.file = open(&self.path, false);
        }
    }
}

fn open(path: &Path, create: bool) -> File {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create);
    options.open(path).unwrap_or_else(|why| panic!("{path:?}: {why}"))
}
