//! The release build that is packaged, apart from other builds: it names no path of this machine.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::contents::Form;
use crate::cargo::{command, printed, succeed};
use crate::tools;

/// The folder of packages, in the root of the workspace.
pub(super) const FOLDER: &str = "target/package";

/// Builds the program, and the one that writes its man pages; the folder that they are in.
pub(super) fn release(root: &Path, form: Form) -> Result<PathBuf> {
    let triple = triple(form)?;
    if form == Form::Archive {
        tools::require(tools::MUSL)?;
        require_target(&triple)?;
    }
    let target = root.join(FOLDER).join("build");
    for program in [["--bin", "spillway"], ["--example", "pages"]] {
        let mut cargo = command(root);
        cargo.args(["build", "--release", "--package", "spillway"]).args(program).args(["--target", &triple]);
        cargo.arg("--target-dir").arg(&target).env("CARGO_ENCODED_RUSTFLAGS", flags(root)?);
        succeed(&mut cargo)?;
    }
    Ok(target.join(triple).join("release"))
}

/// The target of the program: the one of this machine, or the one that is linked statically.
pub(super) fn triple(form: Form) -> Result<String> {
    match form {
        Form::Debian => Ok(printed(Command::new("rustc").args(["--print", "host-tuple"]))?.trim().to_owned()),
        Form::Archive => Ok(format!("{}-unknown-linux-musl", env::consts::ARCH)),
    }
}

/// Installs Rust's standard library for a target where it is missing.
fn require_target(triple: &str) -> Result<()> {
    let library = printed(Command::new("rustc").args(["--print", "target-libdir", "--target", triple]))?;
    if Path::new(library.trim()).exists() {
        return Ok(());
    }
    let install = succeed(Command::new("rustup").args(["target", "add", triple]));
    install.with_context(|| {
        format!("Rust's standard library for {triple} is missing: install it, then try again")
    })
}

/// Flags for rustc in place of those from outside. Paths in messages of panics begin at the workspace and at cargo's folder.
fn flags(root: &Path) -> Result<String> {
    let home = || env::var("HOME").map(|home| format!("{home}/.cargo"));
    let cargo = env::var("CARGO_HOME").or_else(|_| home()).context("neither CARGO_HOME nor HOME is set")?;
    let remap = |from: &str, to| format!("--remap-path-prefix={from}={to}");
    Ok([remap(&cargo, "/cargo"), remap(&root.to_string_lossy(), "/spillway")].join("\x1f"))
}
