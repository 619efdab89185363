//! Runs the fuzz target of the NBD parser for a fixed time.
//!
//! The target is a workspace of its own, built with coverage by the stable compiler: its folder's cargo configuration says
//! how, so cargo is started there, and flags from outside are kept away. What it finds is left in `tools/fuzz/artifacts`.

use std::path::Path;

use anyhow::{Context, Result};

use crate::cargo::{command, succeed};

/// What CI spends on it.
pub(crate) const SECONDS: u64 = 60;

/// Builds and runs the target; a crash, a hang, a leak of memory or a build error is an error.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<()> {
    let folder = root.join("tools/fuzz");
    for made in ["artifacts", "corpus"] {
        let made = folder.join(made);
        std::fs::create_dir_all(&made).with_context(|| made.display().to_string())?;
    }
    let mut fuzz = command(&folder);
    fuzz.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR").args(["run", "--release", "--quiet", "--"]);
    fuzz.arg(format!("-max_total_time={seconds}"));
    fuzz.args(["-max_len=65536", "-timeout=10", "-rss_limit_mb=2048", "-dict=nbd.dict"]);
    fuzz.args(["-print_final_stats=1", "-verbosity=0", "-artifact_prefix=artifacts/", "corpus"]);
    succeed(&mut fuzz)
}
