//! `cargo xtask guest`: a guest of QEMU has devices by vhost-user.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use spillway_fixture::emulated::System;
use spillway_tests::guest::{
    DURABLE, FORGETFUL, RECIPE, STACKS, SURVIVORS, Stack, cuts, files, kills, losses, stops,
};

const USAGE: &str = "\
cargo xtask guest [PART ...]    a guest with Debian's kernel
    files       two file systems, discards, and a device that grows
    kills       servers that are killed while the guest writes, of whose stacks nothing is lost
    stops       the same with servers that stop in order, on the other stacks
    losses      servers that are killed, of whose stacks something is lost: the guest is told
    cuts        guest, server and disks lose their power; as root
    KERNEL_DEB=FILE     boot the kernel of this package of Debian in place of the newest one of the configured archive";

const PARTS: [&str; 5] = ["files", "kills", "stops", "losses", "cuts"];

fn main() -> ExitCode {
    let parts: Vec<String> = std::env::args().skip(1).collect();
    if parts.iter().any(|part| !PARTS.contains(&&**part)) {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    }
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    // What differs is said by the panic itself.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let system = System::make(RECIPE);
        println!("a guest with Linux {}", system.release());
        let run = |part: &str, stacks: &[Stack], check: fn(&System, Stack)| {
            if wants(part) {
                println!("{part}");
                stacks.iter().for_each(|&stack| check(&system, stack));
            }
        };
        run("files", &STACKS, files);
        run("kills", &SURVIVORS, kills);
        run("stops", &FORGETFUL, stops);
        run("losses", &FORGETFUL, losses);
        run("cuts", &DURABLE, cuts);
    }));
    if outcome.is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!("FAILED: the guest's console is in guest of cargo's target folder");
    ExitCode::FAILURE
}
