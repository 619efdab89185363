//! Runs the fuzz targets for a fixed time: both sides of NBD, HTTP, the messages of a mount, a guest's front end
//! and its rings, the metadata of a write cache, and spill files.
//!
//! They are a workspace of their own, built with coverage by the stable compiler: its folder's cargo configuration says
//! how, so cargo is started there, and flags from outside are kept away. What it finds is left in `tools/fuzz/artifacts`.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::cargo::{command, succeed};

/// What CI spends on them.
pub(crate) const SECONDS: u64 = 64;

/// A target, how many quarters of the time it gets, and what helps it.
type Target = (&'static str, u64, &'static [&'static str]);

/// Two rows that run side by side, each of one target after the other.
const ROWS: [&[Target]; 2] = [
    &[
        ("nbd_session", 2, &["-max_len=65536", "-dict=nbd.dict"]),
        ("nbd_client", 1, &["-max_len=16384", "-dict=nbd.dict"]),
        ("vhost_user", 1, &["-max_len=16384"]),
    ],
    &[
        ("fuse_session", 1, &["-max_len=16384"]),
        ("write_cache", 1, &["-max_len=16384"]),
        ("spill", 1, &["-max_len=16384"]),
        ("http_session", 1, &["-max_len=16384"]),
    ],
];

/// Builds and runs the targets; a crash, a hang, a leak of memory or a build error is an error.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<()> {
    succeed(fuzzer(root).args(["build", "--release", "--quiet", "--bins"]))?;
    let run = |row: &[Target]| {
        row.iter()
            .try_for_each(|(name, quarters, options)| target(root, name, seconds * quarters / 4, options))
    };
    std::thread::scope(|scope| {
        let rows = ROWS.map(|row| scope.spawn(move || run(row)));
        rows.into_iter().try_for_each(|row| row.join().expect("a row ends"))
    })
}

/// The cargo of their folder.
fn fuzzer(root: &Path) -> Command {
    let mut cargo = command(&root.join("tools/fuzz"));
    cargo.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    cargo
}

fn target(root: &Path, name: &str, seconds: u64, options: &[&str]) -> Result<()> {
    let folder = root.join("tools/fuzz");
    let corpus = format!("corpus/{name}");
    for made in ["artifacts", &corpus] {
        let made = folder.join(made);
        std::fs::create_dir_all(&made).with_context(|| made.display().to_string())?;
    }
    let mut fuzz = fuzzer(root);
    fuzz.args(["run", "--release", "--quiet", "--bin", name, "--"]);
    fuzz.arg(format!("-max_total_time={seconds}"));
    fuzz.args(options).args(["-print_funcs=0", "-timeout=10", "-rss_limit_mb=2048"]);
    fuzz.args(["-print_final_stats=1", "-verbosity=0", "-artifact_prefix=artifacts/", &corpus]);
    succeed(&mut fuzz)
}
