//! Benchmarks: Spillway beside its peers, as ratios within one run.
//!
//! Machines are noisy, so contenders take turns in rounds (`measure::rounds`), and a ratio is the median over rounds of the ratio
//! inside each round (`table`). Every figure of docs/performance.md comes from here: benchmarks hand their tables to `results`.
//!
//! | part | holds |
//! | --- | --- |
//! | `measure` | rounds, figures and tables |
//! | `peers` | contenders, and the tools that they are driven with |
//! | `nbd`, `tls`, `vhost`, `fuse`, `network` | servers beside their peers |
//! | `spill`, `streams`, `folio`, `writecache`, `zones` | the experiments E1 to E5 |
//! | `zram`, `scaling`, `profile` | layers in this process, what grows with what, and where time goes |
//! | `report` | all of these from one commit, as a page and as docs/performance.md |

mod folio;
mod fuse;
mod measure;
mod nbd;
mod network;
mod peers;
mod profile;
mod report;
mod scaling;
mod spill;
mod streams;
mod tls;
mod vhost;
mod writecache;
mod zones;
mod zram;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use measure::interrupt;
use measure::rounds::Rounds;
use scaling::{connections, growth, scale};

const USAGE: &str = "\
Each takes its ROUNDS (5), then a PART by its name (all); --quick makes runs and sets short.

cargo xtask bench report [PART] [--check] [--fresh]
                                      all of these from one commit, and what they come to, in target/report/index.html and
                                      docs/performance.md; goes on where it was interrupted; --check fails if a bound is missed
cargo xtask bench nbd                 fio over NBD beside nbdkit, qemu-nbd, a server without storage and, as root,
                                      the kernel's zram
cargo xtask bench tls                 nbdcopy over NBD in TLS beside nbdkit
cargo xtask bench vhost               vhost-user beside NBD, qemu-storage-daemon and, as root, the kernel's zram:
                                      throughput; fairness beside a busy neighbour
cargo xtask bench fuse                fio on loop devices over files: a mount beside nbdfuse over nbdkit; as root
cargo xtask bench zram                in process: codec beside bare lz4 and the kernel's zram; bursts that are deferred;
                                      memory for real pages; recompress; filesystem: a clone, an archive and a build;
                                      keep: starts with up to 16 GiB in a spill file (not in the report)
cargo xtask bench spill [ROUNDS [GIB]]
                                      pages written back to a file on the disk, beside fio (E1) (4 GiB)
cargo xtask bench spill soak [SECONDS]
                                      a working set of 4 times the memory (300 s)
cargo xtask bench spill kernel [ROUNDS]
                                      the kernel's zram with a backing device, in an emulated machine
cargo xtask bench streams             writers and compression streams (E2): inside, fwrite, locks
cargo xtask bench folio               the page cache (E3): bytes, sectors, databases on this disk, database on a slow
                                      store, hits, instructions, eviction, memory, nbd
cargo xtask bench writecache          the write cache (E4): memory, large, churn, commits, load; kernel:
                                      dm-writecache in an emulated machine
cargo xtask bench zones               dirty limits for each zone (E5), with the page cache: store; with ROUNDS given, a
                                      model of the source's machine in virtual time: model
cargo xtask bench network             origins on a Ceph cluster and on NBD servers beside librbd, qemu-nbd and the same servers
                                      by themselves: cache, image, server
cargo xtask bench scale               throughput against workers, and locks a request, of zram and the write cache
cargo xtask bench connections         throughput against connections of NBD to one device, and devices with one each
cargo xtask bench growth              the cost of a request against the size of a device, and the data it holds
cargo xtask bench profile             where the server's time goes, by perf; flame graphs are in the report
cargo xtask bench writer              one writer, one stream, for callgrind: see docs/performance.md
cargo xtask bench hits CONTENDER      reads of 4 KiB that hit, for callgrind: cache, table or copies
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match interrupt::keep().and_then(|()| run(&words)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            if interrupt::came() { interrupt::CODE.into() } else { ExitCode::FAILURE }
        }
    }
}

/// A benchmark: its name, its parts if they have names, and how a part is run.
type Bench = (&'static str, &'static [&'static str], fn(Rounds) -> Result<()>);

const BENCHES: [Bench; 13] = [
    ("nbd", &[], nbd::run),
    ("tls", &[], tls::run),
    ("vhost", &["throughput", "fairness"], vhost::run),
    ("fuse", &[], fuse::run),
    ("zram", &["codec", "bursts", "memory", "recompress", "filesystem", "keep"], zram::run),
    ("streams", &["inside", "fwrite", "locks"], streams::run),
    ("folio", &folio::PARTS, folio::run),
    ("writecache", &["memory", "large", "churn", "commits", "load", "kernel"], writecache::run),
    ("zones", &["store"], zones::run),
    ("network", &network::PARTS, network::run),
    ("connections", &[], connections::run),
    ("growth", &[], growth::run),
    ("profile", &[], profile::run),
];

fn run(words: &[&str]) -> Result<()> {
    let quick = words.contains(&"--quick");
    let words: Vec<&str> = words.iter().copied().filter(|word| *word != "--quick").collect();
    let number = |word: Option<&&str>, preset: usize| -> Result<usize> {
        word.map_or(Ok(preset), |word| word.parse().with_context(|| format!("{word:?} is no number")))
    };
    let rounds = |name, rest: &[&str]| {
        Ok::<_, anyhow::Error>(Rounds::new(number(rest.first(), 5)?, name).quick(quick))
    };
    match &words[..] {
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            Ok(())
        }
        ["report", rest @ ..] => report::run(rest, quick),
        ["spill", "soak", rest @ ..] if rest.len() < 2 => {
            spill::soak(number(rest.first(), if quick { 15 } else { 300 })? as u64)
        }
        ["spill", "kernel", rest @ ..] if rest.len() < 2 => spill::kernel(rounds("spill kernel", rest)?),
        ["spill", rest @ ..] if rest.len() < 3 => {
            spill::run(rounds("spill", rest)?, number(rest.get(1), 4)? as u64)
        }
        ["zones", count, "model"] => zones::model(rounds("zones", &[*count])?.part("model")),
        ["scale", rest @ ..] if rest.len() < 2 => scale::run(rounds("scale", rest)?),
        ["writer"] => streams::one_writer(),
        ["hits", contender] => folio::read_hits(contender),
        // A contender of `nbd`.
        ["empty", socket, size] => nbd::empty::serve(socket.as_ref(), size.parse()?),
        [name, rest @ ..] if rest.len() < 3 => {
            let bench = BENCHES.iter().find(|(bench, ..)| bench == name);
            let Some((name, parts, run)) = bench else { bail!("there is no benchmark {name:?}\n\n{USAGE}") };
            rounds(name, rest)?.parts(parts, rest.get(1).copied())?.into_iter().try_for_each(run)
        }
        _ => bail!("say which benchmark\n\n{USAGE}"),
    }
}
