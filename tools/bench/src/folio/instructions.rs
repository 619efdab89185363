//! What a read of 4 KiB that hits costs in instructions, counted by callgrind, beside a look-up in a sharded hash table and a copy.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::hits::{CONTENDERS, contender, read_at_random};
use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::table::{once, ratio, row};
use crate::peers::servers::Folder;

/// Few pages, which stay in the processor's caches: instructions do not depend on that.
const PAGES: u64 = 256;
const READS: u64 = 20_000;

/// Reads that can be counted from outside.
pub(crate) fn read_hits(name: &str) -> Result<()> {
    read_at_random(&*contender(name, PAGES)?, 1, READS, PAGES);
    Ok(())
}

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let counts = CONTENDERS.into_iter().map(|name| counted(name, &folder.0)).collect::<Result<Vec<_>>>()?;
    let [cache, hashed, copies] = counts[..] else { unreachable!("a count of each") };
    let row = row![
        once(cache, 0),
        once(hashed, 0),
        once(copies, 0),
        ratio(&[cache], &[hashed]).at_most(1.5),
        ratio(&[cache - copies], &[hashed - copies]),
    ];
    let head = ["page cache", "sharded hash table", "the copy alone", "to the table", "without the copy"];
    rounds.show_once("Reads of 4 KiB that hit: instructions of a read", &head, vec![row])
}

/// Instructions of a read of one contender.
fn counted(name: &str, folder: &Path) -> Result<f64> {
    let file = folder.join(name);
    let mut command = Command::new("valgrind");
    results::command(command.args(["--tool=callgrind", "--toggle-collect=*read_at_random*"]))?;
    command.arg(format!("--callgrind-out-file={}", file.display()));
    command.arg(std::env::current_exe()?).args(["hits", name]).stdin(Stdio::null());
    let output = command.output().context("valgrind cannot be started: install it")?;
    ensure!(output.status.success(), "valgrind: {}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&file)?;
    let total = text.lines().find_map(|line| line.strip_prefix("summary: "));
    let total: u64 = total.context("a summary")?.trim().parse()?;
    ensure!(total > 0, "the reads of {name} were not found");
    Ok(total as f64 / READS as f64)
}
