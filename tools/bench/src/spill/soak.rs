//! A working set of four times the memory, that does not compress, written at random by two jobs: the slowest write, the memory, and the
//! speed beside fio's on a plain file.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use super::device::Device;
use super::medium::{Medium, text};
use crate::measure::results;
use crate::measure::table::{Table, once, ratio, row};
use crate::peers::servers::Folder;

/// The memory, and what is written to the device.
const MEMORY: u64 = 256 << 20;
const SET: u64 = 4 * MEMORY;

/// Seconds that the plain file is written for.
const PEER_SECONDS: u64 = 30;

/// Wanted: milliseconds of the slowest write, MiB that may be resident beside the memory, and the part of fio's speed.
const SLOWEST: f64 = 200.0;
const RESIDENT: f64 = (MEMORY >> 20) as f64 + 64.0;
const OF_FIO: f64 = 0.6;

pub(crate) fn run(seconds: u64) -> Result<()> {
    ensure!((10..=86_400).contains(&seconds), "{seconds} seconds: 10 to 86400 are allowed");
    let disk = Folder::on_disk()?;
    let device = Device::start(SET, MEMORY, &Medium::File(disk.0.join("spill"), SET / 2 * 3), super::DEPTH)?;
    let child = device.contender.child.as_ref().context("the server runs")?.id();
    let log = disk.0.join("soak");
    let soak = write(&device.contender.target, &log, seconds)?;
    let resident = resident(child)?;
    let (policy, paused) = (device.get("policy")?, device.get("throttled_time")?);
    let file = disk.0.join("peer");
    let target = |more: &[&str]| -> Result<Vec<String>> {
        let words = ["--ioengine=libaio", "--direct=1"].iter().chain(more).map(|word| (*word).into());
        Ok(words.chain([format!("--filename={}", text(&file)?)]).collect())
    };
    fs::write(&file, [])?;
    fill(&target(&[])?)?;
    let peer = write(&target(&[])?, &disk.0.join("plain"), PEER_SECONDS.min(seconds))?;
    let heads =
        ["slowest write, ms", "resident, MiB", "longest without an answer, s", "writes a second", "of fio's"];
    let row = row![
        once(soak.slowest, 1).at_most(SLOWEST),
        once(resident, 0).at_most(RESIDENT),
        once(soak.gap, 0).at_most(1.0),
        once(soak.rate, 0),
        ratio(&[soak.rate], &[peer.rate]).at_least(OF_FIO),
    ];
    let table = Table {
        title: format!("A working set of {} MiB in {} MiB of memory, {seconds} s", SET >> 20, MEMORY >> 20),
        command: format!("spill soak {seconds}"),
        rounds: None,
        head: heads.map(String::from).into(),
        rows: vec![row],
        notes: vec![
            format!("fio on a plain file: {:.0} writes a second, slowest {:.1} ms.", peer.rate, peer.slowest),
            format!("Paused: {paused} ms. {policy}"),
        ],
    };
    results::show(table)
}

/// Two jobs that write 4 KiB at random, 16 at a time.
struct Written {
    /// Milliseconds.
    slowest: f64,
    /// A second, in the second half.
    rate: f64,
    /// Seconds in a row in which nothing was answered, and 1.
    gap: f64,
}

fn command(target: &[String]) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--thread", "--refill_buffers", "--buffer_compress_percentage=0"]);
    command.args(["--minimal", "--group_reporting", "--norandommap", "--randrepeat=0"]).args(target);
    command.stdin(Stdio::null());
    command
}

fn fill(target: &[String]) -> Result<()> {
    let output = command(target)
        .args(["--rw=write", "--bs=1M", "--iodepth=8"])
        .arg(format!("--size={SET}"))
        .output()?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

fn write(target: &[String], log: &Path, seconds: u64) -> Result<Written> {
    let half = SET / 2;
    let mut command = command(target);
    command
        .args(["--rw=randwrite", "--bs=4k", "--iodepth=16", "--numjobs=2", "--time_based"])
        .args([
            format!("--size={half}"),
            format!("--offset_increment={half}"),
            format!("--runtime={seconds}"),
        ])
        .args(["--log_avg_msec=1000".into(), format!("--write_iops_log={}", text(log)?)]);
    results::command(&command)?;
    let output = command.output().context("fio cannot be started")?;
    let said = String::from_utf8_lossy(&output.stdout);
    let line = said.lines().find(|line| line.starts_with("3;"));
    let Some(line) = line.filter(|_| output.status.success()) else {
        bail!("fio failed: {said}{}", String::from_utf8_lossy(&output.stderr));
    };
    // Columns of fio's terse format, version 3: microseconds of the slowest write.
    let slowest: f64 = line.split(';').nth(79).context("a column")?.parse()?;
    let mut entries = Vec::new();
    for job in 1..=2 {
        let name = log.with_file_name(format!(
            "{}_iops.{job}.log",
            text(log.file_name().map(Path::new).context("a name")?)?
        ));
        entries.extend(fs::read_to_string(name)?.lines().filter_map(entry));
    }
    Ok(Written { slowest: slowest / 1000.0, rate: rate(&entries, seconds), gap: gap(&entries, seconds) })
}

/// A second, and the writes that ended in it: a line of fio's log is milliseconds, writes and more.
fn entry(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split(',').map(|word| word.trim().parse::<u64>().ok());
    words.next().flatten().map(|millis| millis / 1000).zip(words.next().flatten())
}

/// Writes a second in the second half.
fn rate(entries: &[(u64, u64)], seconds: u64) -> f64 {
    let sum: u64 =
        entries.iter().filter(|(second, _)| *second >= seconds / 2).map(|(_, writes)| writes).sum();
    sum as f64 / (seconds - seconds / 2) as f64
}

/// The longest time from one second with an answer to the next.
fn gap(entries: &[(u64, u64)], seconds: u64) -> f64 {
    let mut at: Vec<u64> =
        entries.iter().filter(|(_, writes)| *writes > 0).map(|(second, _)| *second).collect();
    at.extend([0, seconds]);
    at.sort_unstable();
    at.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(seconds) as f64
}

/// MiB that the process has had resident at most.
fn resident(process: u32) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("VmHWM")?;
    let kib: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_without_an_answer_are_found_and_the_second_half_counts() {
        let entries: Vec<_> = ["1000, 10, 1, 4096, 0", "2000, 20, 1, 4096, 0", "5001, 60, 1, 4096, 0"]
            .iter()
            .filter_map(|line| entry(line))
            .collect();
        assert_eq!(entries, [(1, 10), (2, 20), (5, 60)]);
        assert!((gap(&entries, 6) - 3.0).abs() < 1e-9 && (rate(&entries, 6) - 20.0).abs() < 1e-9);
    }
}
