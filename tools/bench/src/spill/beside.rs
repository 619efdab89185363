//! Reads of pages in memory beside write-back: 5,000 a second at an even pace, before it and meanwhile.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::device::Device;
use super::medium::text;
use crate::fio::{case, fio};
use crate::results;

/// Reads a second, and the part of the device that they are of, which stays in memory.
const READS: u64 = 5000;
const HOT_BYTES: u64 = 64 << 20;

/// What reads and write-back cost each other.
pub(super) struct Beside {
    /// Of 100 reads 99 take less, microseconds: idle, and during write-back.
    pub(super) p99: [f64; 2],
    /// MiB a second of write-back.
    pub(super) rate: f64,
}

/// Fills the device, and writes back all of it but what is read meanwhile; write-back begins after the time `idle`, in whose second half
/// idle reads are measured. Keeps a log of reads in `folder`.
pub(super) fn measure(device: &Device, folder: &Path, idle: Duration) -> Result<Beside> {
    device.fill(device.bytes)?;
    device.set("writeback_batch_size", "256")?;
    device.set("idle", "all")?;
    let hot = format!("--size={HOT_BYTES} --offset_increment=0");
    fio(&device.contender, &case("hot", "read", 1024, 1, 8), &hot)?;
    let log = folder.join("reads");
    let seconds = idle.as_secs() * 2 + device.bytes.div_ceil(1 << 30) * 4;
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
    ensure!(reader.wait()?.success(), "fio failed");
    let reads = fs::read_to_string(log.with_file_name("reads_clat.1.log"))?;
    let idle = from - idle.as_millis() as u64 / 2..from;
    let mib = (device.bytes - HOT_BYTES) as f64 / (1u64 << 20) as f64;
    Ok(Beside { p99: [p99(&reads, idle)?, p99(&reads, from..until)?], rate: mib / took.as_secs_f64() })
}

fn millis() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64)
}

/// Of 100 reads that ended in these milliseconds, 99 took less: microseconds. Lines of fio's log are time, nanoseconds and more.
fn p99(log: &str, time: Range<u64>) -> Result<f64> {
    let numbers = |line: &str| {
        let mut words = line.split(',').map(|word| word.trim().parse::<u64>().ok());
        words.next().flatten().zip(words.next().flatten())
    };
    let reads = log.lines().filter_map(numbers).filter(|(at, _)| time.contains(at));
    let mut nanos: Vec<u64> = reads.map(|(_, nanos)| nanos).collect();
    nanos.sort_unstable();
    ensure!(nanos.len() > 100, "{} reads in {time:?}", nanos.len());
    Ok(nanos[nanos.len() * 99 / 100] as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_of_100_is_of_the_time_asked_for() {
        let line = |at: u64| format!("{at}, {}, 0, 4096, 0\n", at * 1000);
        let log: String = (0..400).map(line).collect();
        assert!((p99(&log, 100..300).unwrap() - 298.0).abs() < 1e-9);
        assert!(p99(&log, 0..50).is_err());
    }
}
