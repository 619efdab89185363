//! Other programs that a command runs.

use std::process::{Command, Output, Stdio};

use anyhow::{Context, Result};

/// Runs a program to its end; what it printed, or what it said against it.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let (_, output) = finish(command.stdin(Stdio::null()))?;
    said(command, output)
}

/// Runs a program to its end; which process it was, and how it went.
pub(super) fn finish(command: &mut Command) -> Result<(u32, Output)> {
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let ended = started.and_then(|child| Ok((child.id(), child.wait_with_output()?)));
    ended.with_context(|| format!("{} cannot be run", command.get_program().display()))
}

/// What it printed, or what it said against it.
pub(super) fn said(command: &Command, output: Output) -> Result<String> {
    let words = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", command.get_program().display(), words.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
