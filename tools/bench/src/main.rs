//! Benchmarks: Spillway beside its peers, as ratios within one run.
//!
//! Machines are noisy, so contenders take turns in rounds, and what is reported is the median over rounds of the ratio
//! inside each round. Every figure of docs/performance.md comes from here.

mod contenders;
mod kernel_zram;
mod lz4;
mod memory;
mod nbd;
mod pages;
mod report;
mod streams;
mod writecache;
mod zram;

use std::process::ExitCode;

use anyhow::{Result, bail};

const USAGE: &str = "\
cargo xtask bench nbd [ROUNDS]        fio over NBD beside nbdkit, qemu-nbd and, as root, the kernel's zram (3 rounds)
cargo xtask bench zram [ROUNDS]       in process: beside the kernel's zram; memory for real pages; streams (E2) (5 rounds)
cargo xtask bench streams [ROUNDS]    the last of these alone
cargo xtask bench writecache [ROUNDS [PART]]
                                      the write cache (E4): memory, large, churn, commits, load (3 rounds)
cargo xtask bench writer              one writer, one stream, for callgrind: see docs/performance.md
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

fn run(words: &[&str]) -> Result<()> {
    match words {
        ["nbd"] => nbd::run(3),
        ["nbd", rounds] => nbd::run(rounds.parse()?),
        ["zram"] => zram::run(5),
        ["zram", rounds] => zram::run(rounds.parse()?),
        ["streams"] => zram::streams_alone(5),
        ["streams", rounds] => zram::streams_alone(rounds.parse()?),
        ["writecache"] => writecache::run(3, None),
        ["writecache", rounds] => writecache::run(rounds.parse()?, None),
        ["writecache", rounds, part] => writecache::run(rounds.parse()?, Some(part)),
        ["writer"] => streams::one_writer(),
        ["--help" | "-h" | "help"] => {
            print!("{USAGE}");
            Ok(())
        }
        _ => bail!("say which benchmark\n\n{USAGE}"),
    }
}
