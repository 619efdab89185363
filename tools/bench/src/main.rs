//! Benchmarks: Spillway beside its peers, as ratios within one run.
//!
//! Machines are noisy, so contenders take turns in rounds, and what is reported is the median over rounds of the ratio
//! inside each round. Every figure of docs/performance.md comes from here.

mod allocator;
mod bursts;
mod contenders;
mod empty;
mod fio;
mod folio;
mod fuse;
mod fwrite;
mod kernel_zram;
mod lz4;
mod memory;
mod mounted;
mod nbd;
mod pages;
mod report;
#[cfg(feature = "count-locks")]
mod scale;
mod spill;
mod streams;
mod tls;
mod vhost;
mod writecache;
mod zones;
mod zram;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
cargo xtask bench nbd [ROUNDS]        fio over NBD beside nbdkit, qemu-nbd, a server without storage and, as root,
                                      the kernel's zram (5 rounds)
cargo xtask bench tls [ROUNDS]        nbdcopy over NBD in TLS beside nbdkit (5 rounds)
cargo xtask bench vhost [ROUNDS [PART]]
                                      vhost-user beside NBD, qemu-storage-daemon and, as root, the
                                      kernel's zram (5 rounds; part: fairness)
cargo xtask bench fuse [ROUNDS]       fio on loop devices over files: a mount beside nbdfuse over nbdkit; as root (5 rounds)
cargo xtask bench zram [ROUNDS [PART]]  in process: beside bare lz4 and the kernel's zram; bursts that are deferred; memory for
                                      real pages, and once they are recompressed (5 rounds; part: codec, bursts, memory or
                                      recompress)
cargo xtask bench spill [ROUNDS [GIB]]
                                      pages written back to a file on the disk, beside fio (E1) (5 rounds, 4 GiB)
cargo xtask bench spill soak [SECONDS]
                                      a working set of 4 times the memory (300 s)
cargo xtask bench streams [ROUNDS [PART]]
                                      writers and compression streams (E2): inside, fwrite, locks (5 rounds)
cargo xtask bench folio [ROUNDS [PART]]
                                      the page cache (E3): bytes, sectors, database, hits, instructions, eviction,
                                      memory, nbd (5 rounds)
cargo xtask bench writecache [ROUNDS [PART]]
                                      the write cache (E4): memory, large, churn, commits, load (5 rounds)
cargo xtask bench zones [ROUNDS [PART]]
                                      dirty limits for each zone (E5): model, in virtual time; store, with the page cache (5 rounds)
cargo xtask bench scale [ROUNDS]      throughput against workers, and locks a request, of zram and the write cache
cargo xtask bench writer              one writer, one stream, for callgrind: see docs/performance.md
cargo xtask bench hits CONTENDER      reads of 4 KiB that hit, for callgrind: cache, table or copies
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(feature = "count-locks")]
fn scale(rounds: usize) -> Result<()> {
    scale::run(rounds)
}

#[cfg(not(feature = "count-locks"))]
fn scale(_: usize) -> Result<()> {
    bail!("locks are counted in a build with the feature count-locks only: use `cargo xtask bench scale`")
}

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["nbd"] => nbd::run(5),
        ["nbd", rounds] => nbd::run(rounds.parse()?),
        ["tls"] => tls::run(5),
        ["tls", rounds] => tls::run(rounds.parse()?),
        ["vhost"] => vhost::run(5, None),
        ["vhost", rounds] => vhost::run(rounds.parse()?, None),
        ["vhost", rounds, part] => vhost::run(rounds.parse()?, Some(part)),
        ["fuse"] => fuse::run(5),
        ["fuse", rounds] => fuse::run(rounds.parse()?),
        ["zram"] => zram::run(5, None),
        ["zram", rounds] => zram::run(rounds.parse()?, None),
        ["zram", rounds, part] => zram::run(rounds.parse()?, Some(part)),
        ["spill"] => spill::run(5, 4),
        ["spill", "soak"] => spill::soak(300),
        ["spill", "soak", seconds] => spill::soak(seconds.parse()?),
        ["spill", rounds] => spill::run(rounds.parse()?, 4),
        ["spill", rounds, gib] => spill::run(rounds.parse()?, gib.parse()?),
        ["streams"] => streams::run(5, None),
        ["streams", rounds] => streams::run(rounds.parse()?, None),
        ["streams", rounds, part] => streams::run(rounds.parse()?, Some(part)),
        ["folio"] => folio::run(5, None),
        ["folio", rounds] => folio::run(rounds.parse()?, None),
        ["folio", rounds, part] => folio::run(rounds.parse()?, Some(part)),
        ["writecache"] => writecache::run(5, None),
        ["writecache", rounds] => writecache::run(rounds.parse()?, None),
        ["writecache", rounds, part] => writecache::run(rounds.parse()?, Some(part)),
        ["zones"] => zones::run(5, None),
        ["zones", rounds] => zones::run(rounds.parse()?, None),
        ["zones", rounds, part] => zones::run(rounds.parse()?, Some(part)),
        ["scale"] => scale(5),
        ["scale", rounds] => scale(rounds.parse()?),
        ["writer"] => streams::one_writer(),
        ["hits", contender] => folio::read_hits(contender),
        // A contender of `nbd`.
        ["empty", socket, size] => empty::serve(socket.as_ref(), size.parse()?),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("say which benchmark\n\n{USAGE}"),
    }
}
