//! A file system for a block device, made by the system's programs where nothing is that they know.

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::client::program::run;

/// Exit code of blkid where it recognises nothing.
const NOTHING_FOUND: i32 = 2;

/// Bytes at either end of a device where file systems are recognised.
const PROBED_LEN: u64 = 1 << 20;

/// Makes a file system of a kind; by `force` also over another one.
pub(super) fn make_file_system(kind: &str, device: &Path, force: bool) -> Result<()> {
    if !force {
        expect_blank(device)?;
    }
    // What was there was looked at: the programs would ask a terminal, or refuse.
    let insist: &[&str] = match kind {
        "ext2" | "ext3" | "ext4" => &["-q", "-F"],
        "xfs" | "btrfs" => &["-q", "-f"],
        _ => &[],
    };
    run(Command::new(format!("mkfs.{kind}")).args(insist).arg(device)).map(drop)
}

pub(super) fn expect_blank(device: &Path) -> Result<()> {
    // To blkid, what cannot be read is blank.
    expect_readable(device).with_context(|| format!("{} cannot be read", device.display()))?;
    let mut command = Command::new("blkid");
    let probe = command.args(["--probe", "--output", "value", "--match-tag", "TYPE"]).arg(device).output();
    let probe = probe.context("blkid cannot be run")?;
    let found = String::from_utf8_lossy(&probe.stdout).trim().to_owned();
    let what = if found.is_empty() { "something that is recognised" } else { &found };
    let words = String::from_utf8_lossy(&probe.stderr);
    anyhow::ensure!(words.is_empty(), "blkid: {}", words.trim());
    anyhow::ensure!(
        probe.status.code() == Some(NOTHING_FOUND),
        "the device holds {what}: --force overwrites it"
    );
    Ok(())
}

/// Reads both ends, where file systems have what they are known by.
fn expect_readable(device: &Path) -> std::io::Result<()> {
    let mut file = File::open(device)?;
    let size = file.seek(SeekFrom::End(0))?;
    let len = size.min(PROBED_LEN);
    let mut end = vec![0; len as usize];
    file.read_exact_at(&mut end, 0)?;
    file.read_exact_at(&mut end, size - len)
}
