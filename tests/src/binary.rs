//! The program under test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use spillway_fixture::forget_package;

/// Set to test a program built elsewhere.
const OVERRIDE: &str = "SPILLWAY_BIN";

/// Names the defect that the program of `mutant` has.
pub const MUTANT: &str = "SPILLWAY_MUTANT";

static BINARY: OnceLock<PathBuf> = OnceLock::new();
static DEFECTIVE: OnceLock<PathBuf> = OnceLock::new();
static PACKAGED: OnceLock<PathBuf> = OnceLock::new();

/// The path of `spillway`, built on first use with the profile and the target folder of the tests themselves.
pub fn path() -> &'static Path {
    BINARY.get_or_init(|| {
        std::env::var_os(OVERRIDE)
            .map_or_else(|| build(&["--bin", "spillway"]).join("spillway"), PathBuf::from)
    })
}

/// The path of the same program with an allocator that counts, which cargo builds together with the tests.
pub(crate) fn counted() -> PathBuf {
    let running = std::env::current_exe().expect("the kernel knows the running program");
    // A test lies in TARGET/PROFILE/deps, a program in TARGET/PROFILE.
    let places = running.ancestors().skip(1).take(2).map(|folder| folder.join("spillway-counted"));
    let found = places.into_iter().find(|path| path.is_file());
    found.expect("spillway-counted is built: cargo build --package spillway-tests --bins")
}

/// The path of the same program with deliberate defects, built on first use. No other program gets its features: what a build of its own
/// compiles for them lies beside what others have.
pub(crate) fn mutant() -> &'static Path {
    DEFECTIVE.get_or_init(|| {
        build(&["--bin", "spillway-mutant", "--features", "spillway-tests/mutants"]).join("spillway-mutant")
    })
}

/// The folder with the program and the one for its man pages, and with `xtask`, which makes packages of them; built on first use.
pub fn to_package() -> &'static Path {
    PACKAGED.get_or_init(|| build(&["--bin", "spillway", "--bin", "xtask", "--example", "pages"]))
}

/// Builds the programs that the options name; the folder that they are in.
fn build(options: &[&str]) -> PathBuf {
    let running = std::env::current_exe().expect("the kernel knows the running program");
    // A test lies in TARGET/PROFILE/deps, a program in TARGET/PROFILE.
    let mut places = running.ancestors().skip(1);
    let profile = places.find(|place| !place.ends_with("deps")).expect("it lies in a folder");
    let target = profile.parent().expect("it lies in TARGET/PROFILE");
    let mut cargo = Command::new(env!("CARGO"));
    // The whole workspace is named so that dependencies get the features that `cargo test --workspace` gave them.
    forget_package(&mut cargo)
        .args(["build", "--quiet", "--workspace", "--target-dir"])
        .arg(target)
        .args(options);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).status();
    let status = status.expect("cargo, which built this test, can be started again");
    assert!(status.success(), "cannot build {}: {status}", options.join(" "));
    profile.to_path_buf()
}
