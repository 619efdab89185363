//! Chains of turns, in which the two sides take over from each other.

use std::fmt;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::process::Signal;

use crate::killed::{Served, enough};
use crate::versions::{Blocks, WRITERS};
use crate::{Launch, Scratch, Server};
use spillway_fixture::emulated::{Machine, System};

/// Bytes of the origin and of the cache device. The metadata of small blocks are several runs, and what is written does not fit below the
/// watermarks, so that both sides write back meanwhile.
const ORIGIN: u64 = 16 << 20;
const CACHE: u64 = 24 << 20;

/// Steps of each writer where nobody is killed.
const STEPS: u64 = 400;

const NAME: &str = "kernel";

/// Whose turn it is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// A server of this build.
    Ours,
    /// dm-writecache.
    Kernels,
}

/// How a turn ends, after a look at what the side before has left.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In order, after writes and a flush.
    Stopped,
    /// By SIGKILL of the server, or of the whole machine, while it writes.
    Killed,
    /// In order, after a drain.
    Drained,
}

use End::{Drained, Killed, Stopped};
use Side::{Kernels, Ours};

/// One cache is made by us and drained by the kernel, the other one is made by the kernel and drained by us.
pub const CHAINS: [&[(Side, End)]; 2] = [
    &[
        (Ours, Stopped),
        (Kernels, Killed),
        (Ours, Killed),
        (Kernels, Stopped),
        (Ours, Killed),
        (Kernels, Drained),
    ],
    &[
        (Kernels, Stopped),
        (Ours, Killed),
        (Kernels, Killed),
        (Ours, Stopped),
        (Kernels, Killed),
        (Ours, Drained),
    ],
];

/// Goes through a chain with blocks of `size` bytes, and says each turn. Panics where something differs.
pub fn run(system: &System, size: usize, chain: &[(Side, End)]) {
    let mut fixture = Fixture::new(system, size);
    for (round, &(side, end)) in (0..).zip(chain) {
        // First, so that a failure follows it.
        println!("blocks of {size} bytes, turn {}: {side} reads all of it, then {end}", round + 1);
        match side {
            Ours => fixture.ours(end, round),
            Kernels => fixture.kernels(end, round),
        }
        fixture.look_at_files(end);
    }
}

struct Fixture<'a> {
    system: &'a System,
    launch: Launch,
    origin: PathBuf,
    cache: PathBuf,
    /// Where the kernel puts what it has read.
    read: PathBuf,
    blocks: Blocks,
    served: Served,
}

impl<'a> Fixture<'a> {
    fn new(system: &'a System, size: usize) -> Self {
        let disk = |name: &str, bytes: u64| {
            let path = system.folder().join(name);
            File::create(&path).and_then(|file| file.set_len(bytes)).expect("the folder is ours");
            path
        };
        let (origin, cache, read) = (disk("origin", ORIGIN), disk("cache", CACHE), disk("read", ORIGIN));
        let launch = Launch::cache(Arc::new(Scratch::new()), &origin, &cache).with("--name", NAME);
        let launch = launch.with("--block-size", size.to_string());
        let blocks = Blocks { size, each: ORIGIN / size as u64 / WRITERS };
        Self { system, launch, origin, cache, read, blocks, served: Served::new(blocks) }
    }

    fn ours(&mut self, end: End, round: u64) {
        let launch = self.launch.clone();
        if end == Killed {
            return self.served.kill(launch, round);
        }
        let server = self.served.look(launch);
        match end {
            Drained => _ = server.spillway(&["drain", NAME]).well(),
            _ => self.served.write(&server, round, STEPS),
        }
        stop(server);
    }

    fn kernels(&mut self, end: End, round: u64) {
        sign(&self.cache);
        let identity = identity(&self.cache);
        let (count, job) = match end {
            Stopped => (STEPS, "write"),
            Killed => (u64::from(u32::MAX), "write"),
            Drained => (0, "drain"),
        };
        let Blocks { size, each } = self.blocks;
        let words = format!("job={job} block={size} each={each} round={round} count={count}");
        let machine = Machine::boot(self.system, &[&self.origin, &self.cache, &self.read], &words);
        println!("    {}", machine.says("status"));
        self.served.check(&fs::read(&self.read).expect("the kernel has written it"));
        match end {
            Stopped => self.follow(machine, round, u64::MAX),
            Killed => self.follow(machine, round, enough(round)),
            Drained => self.follow(machine, round, u64::MAX),
        }
        assert!(identity == self::identity(&self.cache), "bytes 32 to 63 of the superblock changed");
    }

    /// Takes note of what the writers in the machine say, until they have done `enough` steps, and then kills it; or until they are done.
    fn follow(&mut self, machine: Machine, round: u64, enough: u64) {
        let writers = self.served.writers();
        let mut steps: Vec<_> = writers.iter().map(|written| written.steps(round)).collect();
        let mut hear = |line: &str| {
            let Some((word, writer)) = line.split_once(' ') else { return };
            match (word, writer.parse::<usize>()) {
                ("step", Ok(writer)) => {
                    writers[writer].done(&steps[writer].next().expect("they have no end"))
                }
                ("flushed", Ok(writer)) => writers[writer].flushed(),
                _ => assert!(word == "ended", "the kernel's side said {line}"),
            }
        };
        let mut last = String::new();
        for _ in 0..enough {
            let Some(line) = machine.line() else {
                assert!(last.starts_with("ended"), "the machine is off after {last:?}");
                return machine.ends();
            };
            hear(&line);
            last = line;
        }
        machine.kill().iter().for_each(|line| hear(line));
    }

    /// What the turn has left: an origin that is complete, or a cache that is needed.
    fn look_at_files(&mut self, end: End) {
        let entries = Entries::of(&self.cache);
        if end == Drained {
            assert_eq!(entries, Entries { committed: 0, others: 0 }, "the drain has left something");
            self.served.check(&fs::read(&self.origin).expect("it is there"));
        } else {
            assert!(entries.committed > 0, "nothing is in the cache: {entries:?}");
        }
    }
}

fn stop(mut server: Server) {
    server.signal(Signal::TERM);
    assert!(server.ends().success(), "the server ended with an error");
}

/// The bytes of the superblock that are not of the kernel's format.
fn identity(cache: &Path) -> [u8; 32] {
    let mut bytes = [0; 32];
    let file = File::open(cache).expect("it is there");
    file.read_exact_at(&mut bytes, 32).expect("it is longer");
    bytes
}

/// Has a cache that was ours before say who has written to its origin, as one over an RBD image does.
fn sign(cache: &Path) {
    if identity(cache).starts_with(b"spillway") {
        let file = File::options().write(true).open(cache).expect("it is there");
        file.write_all_at(&[1, 2, 3, 4, 5, 6, 7, 8], 56).expect("it is longer");
    }
}

/// Entries of a cache that are not free, as the documented format has them.
#[derive(Debug, PartialEq, Eq)]
struct Entries {
    committed: usize,
    others: usize,
}

impl Entries {
    fn of(cache: &Path) -> Self {
        let bytes = fs::read(cache).expect("it is there");
        assert_eq!(bytes[..8], [0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0], "it is no cache");
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (count, sequence) = (number(16) as usize, number(24));
        let used: Vec<u64> =
            (0..count).map(|entry| number(72 + 16 * entry)).filter(|&number| number != u64::MAX).collect();
        let committed = used.iter().filter(|&&number| number < sequence).count();
        Self { committed, others: used.len() - committed }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Ours => "our server",
            Kernels => "the kernel",
        })
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stopped => "writes, flushes and stops",
            Killed => "writes and is killed meanwhile",
            Drained => "drains the cache, so that the origin is complete",
        })
    }
}
