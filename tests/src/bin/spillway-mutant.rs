//! The program under test with one deliberate defect, which `SPILLWAY_MUTANT` names: see `spillway_io::mutant`.
//!
//! Only builds with the feature `mutants` of this package have defects, and tests build this program apart from all others.

use std::process::ExitCode;

fn main() -> ExitCode {
    let name = std::env::var(spillway_tests::binary::MUTANT).expect("SPILLWAY_MUTANT names the defect");
    spillway_io::mutant::choose(name);
    spillway::main()
}
