//! The binary that ships.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    spillway::main()
}
