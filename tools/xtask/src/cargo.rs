//! Starting cargo and other programs from the root of the workspace.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// The cargo that runs this program, or the one in the path.
pub(crate) fn command(root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(root).stdin(Stdio::null());
    command
}

/// Runs `command` to its end; anything but success is an error that shows the command.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    ensure!(status.success(), "{} ended with {status}", shown(command));
    Ok(())
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Features of a build for the models of threads.
pub(crate) const THREADS: &str = "spillway-core/shuttle,spillway-layers/shuttle";

/// The models of threads, with their checker and deliberate defects built in.
pub(crate) fn threads(root: &Path) -> Result<()> {
    let packages = ["--package", "spillway-core", "--package", "spillway-layers", "--lib"];
    let features = ["--features", THREADS, "threads::"];
    succeed(command(root).args(["test", "--quiet"]).args(packages).args(features))
}

/// The simulated world, with its deliberate defects built in; after the word `--release` built for release.
pub(crate) fn simulate(root: &Path, words: &[&str]) -> Result<()> {
    let (profile, words) = match words {
        ["--release", rest @ ..] => ("release", rest),
        _ => ("dev", words),
    };
    let package =
        ["--quiet", "--package", "spillway-simulate", "--features", "mutants", "--profile", profile];
    succeed(command(root).arg("run").args(package).arg("--").args(words))
}

/// Hostile clients against servers whose memory is counted, both in a release build.
pub(crate) fn hostile(root: &Path, words: &[&str]) -> Result<()> {
    let package = ["--release", "--quiet", "--package", "spillway-tests"];
    succeed(command(root).arg("build").args(package).arg("--bins"))?;
    succeed(command(root).arg("run").args(package).args(["--bin", "spillway-hostile", "--"]).args(words))
}

/// The benchmarks, in a release build.
pub(crate) fn bench(root: &Path, words: &[&str]) -> Result<()> {
    let features = if words.first() == Some(&"scale") { "count-locks" } else { "" };
    let program =
        ["run", "--release", "--quiet", "--package", "spillway-bench", "--features", features, "--"];
    succeed(command(root).args(program).args(words))
}
