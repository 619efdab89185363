//! The program under test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Set to test a program built elsewhere.
const OVERRIDE: &str = "SPILLWAY_BIN";

static BINARY: OnceLock<PathBuf> = OnceLock::new();

/// The path of `spillway`, built on first use with the profile and the target folder of the tests themselves.
pub fn path() -> &'static Path {
    BINARY.get_or_init(|| std::env::var_os(OVERRIDE).map_or_else(build, PathBuf::from))
}

/// The path of the same program with an allocator that counts, which cargo builds together with the tests.
pub(crate) fn counted() -> PathBuf {
    let running = std::env::current_exe().expect("the kernel knows the running program");
    // A test lies in TARGET/PROFILE/deps, a program in TARGET/PROFILE.
    let places = running.ancestors().skip(1).take(2).map(|folder| folder.join("spillway-counted"));
    let found = places.into_iter().find(|path| path.is_file());
    found.expect("spillway-counted is built: cargo build --package spillway-tests --bins")
}

fn build() -> PathBuf {
    let test = std::env::current_exe().expect("the kernel knows the running program");
    let profile = test.ancestors().nth(2).expect("tests lie in TARGET/PROFILE/deps");
    let target = profile.parent().expect("tests lie in TARGET/PROFILE/deps");
    let mut cargo = Command::new(env!("CARGO"));
    // The whole workspace is named so that dependencies get the features that `cargo test --workspace` gave them.
    cargo.args(["build", "--quiet", "--workspace", "--bin", "spillway", "--target-dir"]).arg(target);
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    let status = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).stdin(Stdio::null()).status();
    let status = status.expect("cargo, which built this test, can be started again");
    assert!(status.success(), "cannot build spillway: {status}");
    profile.join("spillway")
}
