//! Starting cargo and other programs from the root of the workspace.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use spillway_fixture::forget_package;

use crate::seed;

/// The cargo that runs this program, or the one in the path.
pub(crate) fn command(root: &Path) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    forget_package(&mut command).current_dir(root).stdin(Stdio::null());
    command
}

/// Runs `command` to its end; anything but success is an error that shows the command.
pub(crate) fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    ensure!(status.success(), "{} ended with {status}", shown(command));
    Ok(())
}

/// Runs `command` and returns what it printed; anything but success is an error that shows the command.
pub(crate) fn printed(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let output = command.output().with_context(|| format!("cannot start {shown}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{shown} ended with {}: {}", output.status, said.trim());
    String::from_utf8(output.stdout).with_context(|| format!("{shown} printed no text"))
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Features of a build for the models of threads.
pub(crate) const THREADS: &str = "spillway-core/shuttle,spillway-layers/shuttle,spillway-export/shuttle";

/// The models of threads, with their checker and deliberate defects built in.
pub(crate) fn threads(root: &Path) -> Result<()> {
    let seed = seed::of_this_run(root, "threads")?;
    let packages = ["spillway-core", "spillway-layers", "spillway-export"];
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    let features = ["--features", THREADS, "threads::"];
    let mut models = command(root);
    models.args(["test", "--quiet", "--lib"]).args(packages).args(features).env(seed::SEED, seed.to_string());
    succeed(&mut models).with_context(|| seed::again(seed, "threads"))
}

/// Makes the tables of options and attributes in the manual as declared.
pub(crate) fn manual(root: &Path) -> Result<()> {
    let program = ["run", "--quiet", "--package", "spillway", "--example", "manual", "--", "docs"];
    succeed(command(root).args(program))
}

/// The package that runs the simulated world, with its deliberate defects built in.
const SIMULATE: &[&str] = &["--quiet", "--package", "spillway-simulate", "--features", "mutants"];

/// The simulated world; built for release where `--release` is among the words.
pub(crate) fn simulate(root: &Path, words: &[&str]) -> Result<()> {
    let profile = if words.contains(&"--release") { "release" } else { "dev" };
    let words: Vec<&str> = words.iter().copied().filter(|word| *word != "--release").collect();
    let run = ["run", "--profile", profile];
    let mut simulate = command(root);
    simulate.args(run).args(SIMULATE).arg("--").args(&words);
    if is_check(&words) {
        simulate.arg("--seed").arg(seed::of_this_run(root, "sim --check")?.to_string());
    }
    succeed(&mut simulate)
}

/// Whether it is a check that names no seed.
fn is_check(words: &[&str]) -> bool {
    words.contains(&"--check") && !words.iter().any(|word| word.starts_with("--seed") || *word == "--help")
}

/// The tests of the simulator's program, which exists with its defects only, and its check. Those of its library are tests of the workspace.
pub(crate) fn check_simulator(root: &Path) -> Result<()> {
    succeed(command(root).arg("test").args(SIMULATE).arg("--bins"))?;
    simulate(root, &["--check"])
}

/// Hostile clients against servers whose memory is counted, both in a release build.
pub(crate) fn hostile(root: &Path, words: &[&str]) -> Result<()> {
    let package = ["--release", "--quiet", "--package", "spillway-tests"];
    succeed(command(root).arg("build").args(package).arg("--bins"))?;
    succeed(command(root).arg("run").args(package).args(["--bin", "spillway-hostile", "--"]).args(words))
}

/// The kernel's dm-writecache in an emulated machine, and servers built as the tests have them.
pub(crate) fn kernel(root: &Path, words: &[&str]) -> Result<()> {
    emulated(root, "spillway-kernel", words)
}

/// A guest that has devices by vhost-user, in an emulated machine, and servers built as the tests have them.
pub(crate) fn guest(root: &Path, words: &[&str]) -> Result<()> {
    emulated(root, "spillway-vm", words)
}

/// The Debian package under systemd, in an emulated machine.
pub(crate) fn systemd(root: &Path, words: &[&str]) -> Result<()> {
    emulated(root, "spillway-systemd", words)
}

fn emulated(root: &Path, program: &str, words: &[&str]) -> Result<()> {
    let package = ["--quiet", "--package", "spillway-tests"];
    succeed(command(root).arg("build").args(package).arg("--bins"))?;
    succeed(command(root).arg("run").args(package).args(["--bin", program, "--"]).args(words))
}

/// The benchmarks, in a release build. They take the place of this process, so that a signal to it is one to them.
pub(crate) fn bench(root: &Path, words: &[&str]) -> Result<()> {
    let features = if words.first() == Some(&"scale") { "count-locks" } else { "" };
    let program =
        ["run", "--release", "--quiet", "--package", "spillway-bench", "--features", features, "--"];
    let mut bench = command(root);
    let why = bench.args(program).args(words).exec();
    Err(why).with_context(|| format!("cannot start {}", shown(&bench)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_gets_a_seed_where_it_names_none() {
        assert!(is_check(&["--check"]));
        for words in [
            &["--check", "--seed", "7"][..],
            &["--seed=7", "--check"],
            &["--crashes", "9"],
            &["--help", "--check"],
        ] {
            assert!(!is_check(words), "{words:?}");
        }
    }
}
