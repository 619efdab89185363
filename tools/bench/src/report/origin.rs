//! What the figures are of: the commit, the host, and the peers' versions.

use std::fs;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

/// What is measured: all but texts, and what makes a page of outcomes. These may change afterwards without a new run.
const MEASURED: [&str; 9] = [
    ".",
    ":!*.md",
    ":!docs",
    ":!tools/bench/src/report/content.rs",
    ":!tools/bench/src/report/fixture.rs",
    ":!tools/bench/src/report/html.rs",
    ":!tools/bench/src/report/judgement.rs",
    ":!tools/bench/src/report/markdown.rs",
    ":!tools/bench/src/report/origin.rs",
];

/// Results of the same origin can stand beside each other.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Origin {
    /// The last one that changed what is measured.
    pub(super) commit: String,
    /// The tree differs from the commit in more than what the report writes.
    pub(super) uncommitted: bool,
    pub(super) processor: String,
    pub(super) cores: usize,
    pub(super) memory_mib: u64,
    pub(super) kernel: String,
    pub(super) system: String,
    pub(super) root: bool,
    /// Of each peer and tool that is there.
    pub(super) versions: Vec<String>,
}

/// Peers and tools, and how each says its version.
const TOOLS: [[&str; 2]; 15] = [
    ["rustc", "--version"],
    ["fio", "--version"],
    ["nbdkit", "--version"],
    ["nbdfuse", "--version"],
    ["nbdcopy", "--version"],
    ["qemu-nbd", "--version"],
    ["qemu-storage-daemon", "--version"],
    ["qemu-system-x86_64", "--version"],
    ["sqlite3", "--version"],
    ["pgbench", "--version"],
    ["valgrind", "--version"],
    ["ceph", "--version"],
    ["mkfs.ext4", "-V"],
    ["perf", "--version"],
    ["git", "--version"],
];

impl Origin {
    /// Of this working tree on this machine.
    pub(super) fn here() -> Result<Self> {
        let changes = git(&["status", "--porcelain", "--", ".", ":!docs/performance.md", ":!docs/pictures"])?;
        Ok(Self {
            commit: git(&[&["log", "-1", "--format=%h", "--abbrev=12", "--"], &MEASURED[..]].concat())?,
            uncommitted: !changes.is_empty(),
            processor: field("/proc/cpuinfo", "model name")?,
            cores: std::thread::available_parallelism()?.get(),
            memory_mib: field("/proc/meminfo", "MemTotal")?.trim_end_matches("kB").trim().parse::<u64>()?
                >> 10,
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().into(),
            system: field("/etc/os-release", "PRETTY_NAME").unwrap_or_default().trim_matches('"').into(),
            root: rustix::process::geteuid().is_root(),
            versions: TOOLS.iter().filter_map(version).collect(),
        })
    }
}

/// The value behind a name, in a file with a pair on each line.
fn field(path: &str, name: &str) -> Result<String> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    let pairs = text.lines().filter_map(|line| line.split_once([':', '=']));
    let value = pairs.filter(|(key, _)| key.trim() == name).map(|(_, value)| value.trim().to_owned()).next();
    value.with_context(|| format!("{path}: {name} is missing"))
}

fn git(words: &[&str]) -> Result<String> {
    let output = Command::new("git").args(words).output().context("git cannot be started")?;
    ensure!(output.status.success(), "git {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

/// The first line that a tool says, with its name. None if it is not there.
fn version([tool, option]: &[&str; 2]) -> Option<String> {
    let output = Command::new(tool).arg(option).stdin(Stdio::null()).output().ok()?;
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let line = said.lines().next()?.trim().to_owned();
    Some(if line.contains(tool) { line } else { format!("{tool} {line}") })
}

/// The present date and time, in UTC.
pub(super) fn date() -> Result<String> {
    let output = Command::new("date")
        .args(["-u", "+%Y-%m-%d %H:%M UTC"])
        .output()
        .context("date cannot be started")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_is_described() {
        let origin = Origin::here().unwrap();
        assert!(origin.commit.len() >= 12 && origin.cores > 0 && origin.memory_mib > 64, "{origin:?}");
        assert!(!origin.processor.is_empty() && origin.kernel.contains('.'), "{origin:?}");
        assert!(origin.versions.iter().any(|version| version.starts_with("rustc ")), "{origin:?}");
        assert!(date().unwrap().ends_with("UTC"));
    }

    #[test]
    fn a_tool_that_is_not_there_has_no_version() {
        assert_eq!(version(&["spillway-no-such-tool", "--version"]), None);
        assert!(field("/proc/meminfo", "Sausages").unwrap_err().to_string().ends_with("is missing"));
    }
}
