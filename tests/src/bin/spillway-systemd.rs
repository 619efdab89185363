//! `cargo xtask systemd`: the Debian package under systemd, in an emulated machine.
#![forbid(unsafe_code)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use spillway_fixture::emulated::System;
use spillway_tests::systemd::{RECIPE, Root, run};

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!("cargo xtask systemd has no options; KERNEL_DEB=FILE boots the kernel of this package");
        return ExitCode::FAILURE;
    }
    // What differs is said by the panic itself.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let system = System::make(RECIPE);
        println!("services under systemd, with Linux {}", system.release());
        run(&system, &Root::make(&system));
    }));
    if outcome.is_ok() {
        return ExitCode::SUCCESS;
    }
    eprintln!("FAILED: the guest's console and its root are in systemd of cargo's target folder");
    ExitCode::FAILURE
}
