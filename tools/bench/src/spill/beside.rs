//! Reads of pages in memory beside write-back: 5,000 a second at an even pace, before it and meanwhile.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

use super::device::Device;
use super::medium::text;
use crate::measure::results;
use crate::peers::fio::{case, fio};

/// Reads a second, and the part of the device that they are of, which stays in memory.
const READS: u64 = 5000;
const HOT_BYTES: u64 = 64 << 20;

/// The most seconds of reads, and those of each GiB that is written back beside them: they are told to end with it.
const READING: u64 = 120;
const READING_A_GIB: u64 = 4;

/// One write-back, and the reads before it and meanwhile.
pub(super) struct Beside {
    /// Nanoseconds of each read: idle, and during write-back.
    reads: [Vec<u64>; 2],
    mib: f64,
    took: Duration,
}

impl Beside {
    /// Of 100 reads of all write-backs together 99 take less, microseconds: idle, and meanwhile; and MiB a second of write-back.
    pub(super) fn figures(all: &[Self]) -> Result<[f64; 3]> {
        let p99 = |kind: usize| p99(all.iter().flat_map(|one| &one.reads[kind]).copied().collect());
        let (mib, took) = (all.iter().map(|one| one.mib), all.iter().map(|one| one.took));
        Ok([p99(0)?, p99(1)?, mib.sum::<f64>() / took.sum::<Duration>().as_secs_f64()])
    }
}

/// Fills the device, and writes back all of it but what is read meanwhile; write-back begins after the time `idle`, in whose last two
/// thirds idle reads are measured. Keeps a log of reads in `folder`.
pub(super) fn measure(device: &Device, folder: &Path, idle: Duration) -> Result<Beside> {
    device.fill(device.bytes)?;
    device.set("writeback_batch_size", "256")?;
    device.set("idle", "all")?;
    let hot = format!("--size={HOT_BYTES} --offset_increment=0");
    fio(&device.contender, &case("hot", "read", 1024, 1, 8), &hot)?;
    let log = folder.join("reads");
    let seconds = READING + READING_A_GIB * (device.bytes >> 30);
    let mut reader = Command::new("fio");
    reader
        .args(["--name=job", "--thread", "--rw=randread", "--bs=4k", "--iodepth=16", "--norandommap"])
        .args(["--time_based", "--log_unix_epoch=1", "--minimal"])
        .args([format!("--runtime={seconds}"), format!("--rate_iops={READS}"), format!("--size={HOT_BYTES}")])
        .arg(format!("--write_lat_log={}", text(&log)?))
        .args(&device.contender.target);
    results::command(&reader)?;
    let reader = reader.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    let mut reader = reader.context("fio cannot be started")?;
    sleep(idle);
    let (from, start) = (millis(), Instant::now());
    device.set("writeback", "idle")?;
    let (took, until) = (start.elapsed(), millis());
    ensure!(reader.try_wait()?.is_none(), "write-back took longer than the reads: {took:?}");
    kill_process(Pid::from_child(&reader), Signal::INT)?;
    // Its code says that it was told to end.
    reader.wait()?;
    let log = fs::read_to_string(log.with_file_name("reads_clat.1.log"))?;
    let idle = from - idle.as_millis() as u64 * 2 / 3..from;
    let mib = (device.bytes - HOT_BYTES) as f64 / (1u64 << 20) as f64;
    Ok(Beside { reads: [idle, from..until].map(|time| reads(&log, &time)), mib, took })
}

fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// Nanoseconds of the reads that ended in these milliseconds. Lines of fio's log are time, nanoseconds and more.
fn reads(log: &str, time: &Range<u64>) -> Vec<u64> {
    let numbers = |line: &str| {
        let mut words = line.split(',').map(|word| word.trim().parse::<u64>().ok());
        words.next().flatten().zip(words.next().flatten())
    };
    let reads = log.lines().filter_map(numbers).filter(|(at, _)| time.contains(at));
    reads.map(|(_, nanos)| nanos).collect()
}

/// Of 100 reads 99 took less: microseconds.
fn p99(mut nanos: Vec<u64>) -> Result<f64> {
    nanos.sort_unstable();
    ensure!(nanos.len() > 100, "{} reads are too few", nanos.len());
    Ok(nanos[nanos.len() * 99 / 100] as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_of_100_is_of_the_time_asked_for() {
        let line = |at: u64| format!("{at}, {}, 0, 4096, 0\n", at * 1000);
        let log: String = (0..400).map(line).collect();
        assert!((p99(reads(&log, &(100..300))).unwrap() - 298.0).abs() < 1e-9);
        assert!(p99(reads(&log, &(0..50))).is_err());
    }

    #[test]
    fn reads_of_all_write_backs_count_together() {
        let one = |nanos: u64, took| Beside {
            reads: [vec![1000; 80], vec![nanos; 80]],
            mib: 300.0,
            took: Duration::from_secs(took),
        };
        let [idle, busy, rate] = Beside::figures(&[one(2000, 1), one(7000, 2)]).unwrap();
        assert_eq!([idle, busy, rate].map(f64::round), [1.0, 7.0, 200.0]);
        assert!(Beside::figures(&[one(2000, 1)]).is_err(), "too few");
    }
}
