//! `cargo xtask kernel`: Linux's dm-writecache and the write cache take over each other's caches.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use spillway_fixture::emulated::System;
use spillway_tests::kernel::{CHAINS, RECIPE, run};

const USAGE: &str = "\
cargo xtask kernel [BLOCK_SIZE ...]     with caches of these block sizes: 512 to 4096 bytes, a power of two; 512 and 4096 by default
    KERNEL_DEB=FILE     boot the kernel of this package of Debian in place of the newest one of the configured archive";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let sizes =
        if words.is_empty() { Ok(vec![512, 4096]) } else { words.iter().map(|word| size(word)).collect() };
    match sizes {
        Ok(sizes) => check(&sizes),
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            ExitCode::FAILURE
        }
    }
}

fn size(word: &str) -> Result<usize, String> {
    let size = word.parse().ok().filter(|size: &usize| size.is_power_of_two() && (512..=4096).contains(size));
    size.ok_or_else(|| format!("block size: not a power of two from 512 to 4096 ({word})"))
}

fn check(sizes: &[usize]) -> ExitCode {
    // What differs is said by the panic itself.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let system = System::make(RECIPE);
        for &size in sizes {
            CHAINS.iter().for_each(|chain| run(&system, size, chain));
        }
        println!(
            "dm-writecache of Linux {} and Spillway take over from each other, in order and after kills in mid-write",
            system.release()
        );
    }));
    if outcome.is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!("FAILED: the disks and the kernel's console are in kernel-writecache of cargo's target folder");
    ExitCode::FAILURE
}
