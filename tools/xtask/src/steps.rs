//! The test command: each step named, timed and summed up; the first failure ends it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use spillway_fixture::forget_package;

use crate::cargo::{check_simulator, command, succeed, threads};
use crate::{fuzz, seed, tidy, tools};

type Step = (&'static str, fn(&Path) -> Result<()>);

/// Cheap and telling first. Clippy, tests and docs share the development profile and one target folder.
const STEPS: &[Step] = &[
    ("tools", |_| tools::require(tools::TESTS)),
    ("fmt", |root| succeed(command(root).args(["fmt", "--all", "--check"]))),
    ("tidy", tidy::check),
    ("clippy", clippy),
    ("tests", tests),
    ("threads", threads),
    ("sim", check_simulator),
    ("docs", docs),
];

const FUZZ: Step = ("fuzz", |root| fuzz::run(root, fuzz::SECONDS));

/// Runs every step; `quick` leaves the fuzzing out.
pub(crate) fn run(root: &Path, quick: bool) -> Result<()> {
    let last = if quick { None } else { Some(&FUZZ) };
    let mut taken = Vec::new();
    for (name, step) in STEPS.iter().chain(last) {
        println!("==> {name}");
        let start = Instant::now();
        let result = step(root);
        taken.push((*name, start.elapsed()));
        result.with_context(|| format!("step `{name}` failed after {}", seconds(start.elapsed())))?;
        println!("<== {name}: {}", seconds(start.elapsed()));
    }
    println!("{}", summary(&taken));
    Ok(())
}

fn clippy(root: &Path) -> Result<()> {
    succeed(command(root).args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
    // What only builds with deliberate defects and the checker of threads have; the latter is for tests within libraries.
    for (packages, features, targets) in [
        (&["--package=spillway-simulate", "--package=spillway-tests"][..], "mutants", &["--all-targets"][..]),
        (
            &["--package=spillway-core", "--package=spillway-layers", "--package=spillway-export"],
            crate::cargo::THREADS,
            &["--lib", "--profile=test"],
        ),
    ] {
        let mut clippy = command(root);
        clippy.arg("clippy").args(packages).args(["--features", features]).args(targets);
        succeed(clippy.args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

/// Of the harness of tests: how many run side by side.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

/// Whatever draws its cases in them draws them from the seed.
fn tests(root: &Path) -> Result<()> {
    let seed = seed::of_this_run(root, "test")?;
    // What ignores signals, such as nohup and a script's `&`, hands that on; servers that ignore them are a test of their own.
    let mut tests = Command::new("env");
    forget_package(&mut tests)
        .arg("--default-signal=HUP,INT,QUIT")
        .arg(command(root).get_program())
        .current_dir(root);
    tests
        .args(["test", "--workspace", "--no-fail-fast"])
        .stdin(Stdio::null())
        .env("PROPTEST_RNG_SEED", seed.to_string());
    // Tests with real clients wait most of their time, for what is slow or away on purpose.
    if std::env::var_os(TEST_THREADS).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        tests.env(TEST_THREADS, (2 * processors).to_string());
    }
    succeed(&mut tests).with_context(|| seed::again(seed, "test"))
}

fn docs(root: &Path) -> Result<()> {
    let mut doc = command(root);
    doc.args(["doc", "--workspace", "--no-deps", "--document-private-items"])
        .env("RUSTDOCFLAGS", "-D warnings");
    succeed(&mut doc)
}

fn summary(taken: &[(&str, Duration)]) -> String {
    let rows = taken.iter().map(|(name, time)| format!("    {name:<8} {:>8}", seconds(*time)));
    let total: Duration = taken.iter().map(|(_, time)| *time).sum();
    let rows: Vec<_> = rows.chain([format!("    {:<8} {:>8}", "total", seconds(total))]).collect();
    format!("all steps passed\n{}", rows.join("\n"))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_a_row_for_each_step_and_the_total() {
        let text = summary(&[("fmt", Duration::from_millis(1500)), ("tests", Duration::from_secs(60))]);
        let rows: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>()).collect();
        assert_eq!(rows[1], ["fmt", "1.5", "s"]);
        assert_eq!(rows[3], ["total", "61.5", "s"]);
    }
}
