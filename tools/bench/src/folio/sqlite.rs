//! SQLite with its defaults: a journal that is deleted with each commit, and everything synced.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use spillway_core::random::Random;

use crate::measure::results;

/// Rows of the database.
const ROWS: u64 = 20_000;

/// Commits of a program, so that its start counts for little.
const COMMITS: u64 = 50;

/// Makes a database in `folder`.
pub(super) fn create(folder: &Path) -> Result<()> {
    let mut words = String::from("create table rows (number integer primary key, content text);\nbegin;\n");
    for row in 0..ROWS {
        writeln!(words, "insert into rows values ({row}, hex(randomblob(100)));")?;
    }
    say(folder, &(words + "commit;\n"))
}

/// Changes so many rows, each in a commit.
pub(super) fn change(folder: &Path, commits: u64, seed: u64) -> Result<()> {
    let (mut random, mut words) = (Random(seed), String::new());
    for _ in 0..commits {
        let row = random.below(ROWS);
        writeln!(words, "update rows set content = hex(randomblob(100)) where number = {row};")?;
    }
    say(folder, &words)
}

/// Commits a second, for as long as `span`.
pub(super) fn commits_a_second(folder: &Path, span: Duration, seed: u64) -> Result<f64> {
    let (start, mut commits) = (Instant::now(), 0);
    while start.elapsed() < span {
        change(folder, COMMITS, seed << 32 | commits)?;
        commits += COMMITS;
    }
    Ok(commits as f64 / start.elapsed().as_secs_f64())
}

fn say(folder: &Path, words: &str) -> Result<()> {
    let mut command = Command::new("sqlite3");
    results::command(command.arg("-bail"))?;
    command.arg(folder.join("rows.db")).stdin(Stdio::piped());
    let mut child = command.spawn().context("sqlite3 cannot be started: install it")?;
    let written = child.stdin.take().context("it is piped")?.write_all(words.as_bytes());
    ensure!(child.wait()?.success(), "sqlite3 failed in {}", folder.display());
    Ok(written?)
}
