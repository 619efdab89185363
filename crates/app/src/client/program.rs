//! Other programs that a command runs.

use std::io::Read;
use std::process::{Command, Output, Stdio};
use std::thread;

use anyhow::{Context, Result};

/// Runs a program to its end; what it printed, or what it said against it.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| cannot_run(command))?;
    said(command, output)
}

/// Runs a program to its end, and shows what it prints as soon as it does; how it went, without that.
pub(super) fn watch(command: &mut Command, mut printed: impl FnMut(&[u8])) -> Result<Output> {
    let started = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = started.with_context(|| cannot_run(command))?;
    let mut stdout = child.stdout.take().expect("it is piped");
    thread::scope(|scope| {
        // What it says against something is read meanwhile.
        let ended = scope.spawn(|| child.wait_with_output());
        let mut bytes = [0; 4096];
        while let Ok(count @ 1..) = stdout.read(&mut bytes) {
            printed(&bytes[..count]);
        }
        ended.join().expect("a wait does not panic").with_context(|| cannot_run(command))
    })
}

fn cannot_run(command: &Command) -> String {
    format!("{} cannot be run", command.get_program().display())
}

/// What it printed, or what it said against it.
pub(super) fn said(command: &Command, output: Output) -> Result<String> {
    let words = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "{}: {}", command.get_program().display(), words.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
