//! E1: pages that leave compressed RAM for a file, one I/O a page, 32 pages an I/O as in the source, and as many as we gather.
//!
//! The pages are random, so that none compresses and all are written raw. The peer is fio, which writes as many bytes in order, 1 MiB at a
//! time, eight at once, with O_DIRECT, into a file of the same file system that was written before. The file system gives room to
//! the spill file while it is written: what is freed of it is punched.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::fio::{Contender, case, fio, server_time};
use crate::nbd::{Folder, binary, server};
use crate::report::{Rounds, at_least, at_most, drawn_order, median, ratio, table};

/// Pages of an I/O.
const BATCHES: [u64; 3] = [1, 32, 256];
const GATHERED: usize = 2;

/// Wanted of what is gathered: times one page an I/O, part of fio's rate, and part of the processor time of one page an I/O.
const FASTER: f64 = 10.0;
const OF_FIO: f64 = 0.9;
const PROCESSOR: f64 = 0.125;

pub(crate) fn run(count: usize, gib: u64) -> Result<()> {
    ensure!((1..=64).contains(&gib), "{gib} GiB: 1 to 64 are allowed");
    let rounds = Rounds::new(count, "spill");
    let device = Device::start(gib << 30)?;
    let figures = rounds.measure(|round| {
        eprintln!("round {round} of {count}");
        let mut figures = vec![f64::NAN; 2 * BATCHES.len() + 1];
        for turn in drawn_order(BATCHES.len() + 1, round) {
            match BATCHES.get(turn) {
                Some(&batch) => {
                    let (rate, processor) = device.write_back(batch)?;
                    (figures[turn], figures[BATCHES.len() + turn]) = (rate, processor);
                }
                None => figures[2 * BATCHES.len()] = device.peer()?,
            }
        }
        Ok(figures)
    })?;
    show(&figures, rounds, gib);
    Ok(())
}

fn show(figures: &[Vec<f64>], rounds: Rounds, gib: u64) {
    let (rates, rest) = figures.split_at(BATCHES.len());
    let (processor, peer) = (&rest[..BATCHES.len()], &rest[BATCHES.len()]);
    let rows = (0..BATCHES.len()).map(|mode| {
        let (faster, share) = (ratio(&rates[mode], &rates[0]), ratio(&processor[mode], &processor[0]));
        let of_fio = ratio(&rates[mode], peer);
        let wanted = mode == GATHERED;
        vec![
            BATCHES[mode].to_string(),
            format!("{:.0}", median(&rates[mode])),
            if wanted { at_least(faster, FASTER) } else { format!("{faster:.2}") },
            if wanted { at_least(of_fio, OF_FIO) } else { format!("{of_fio:.2}") },
            format!("{:.2}", median(&processor[mode])),
            if wanted { at_most(share, 3, "", PROCESSOR) } else { format!("{share:.3}") },
        ]
    });
    let title = rounds.title(&format!("{gib} GiB of random pages written back, MiB a second"));
    let heads =
        ["pages an I/O", "written back", "to one page", "of fio, 1 MiB", "processor, s a GiB", "to one page"];
    table(&title, &heads, &rows.collect::<Vec<_>>());
    println!("\nfio: {:.0} MiB a second.", median(peer));
}

/// A RAM disk that spills, and the folder of its spill file.
struct Device {
    contender: Contender,
    spillway: PathBuf,
    bytes: u64,
    sockets: Folder,
    disk: DiskFolder,
}

impl Device {
    fn start(bytes: u64) -> Result<Self> {
        let (sockets, disk) = (Folder::new()?, DiskFolder::new()?);
        let (spillway, spill) = (binary()?, disk.0.join("spill"));
        let numbers = [bytes, bytes * 2 + (1 << 30), bytes / 4 * 5].map(|bytes| bytes.to_string());
        let [size, memory, room] = numbers.each_ref().map(String::as_str);
        let words = [text(&spillway)?, "ram", "--size", size, "--memory", memory, "--name", "ram0"];
        let more = ["--spill", text(&spill)?, "--spill-size", room, "--socket", "SOCKET"];
        let contender = server("spillway", &sockets.0, "ram0", &[&words[..], &more].concat())?;
        Ok(Self { contender, spillway, bytes, sockets, disk })
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        let mut command = Command::new(&self.spillway);
        command.args(["set", "ram0", name, value]).env("XDG_RUNTIME_DIR", &self.sockets.0);
        let output = command.stdin(Stdio::null()).output()?;
        ensure!(output.status.success(), "set {name}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// Fills the device and writes it back, so many pages an I/O: MiB a second, and seconds of the processor for a GiB.
    fn write_back(&self, batch: u64) -> Result<(f64, f64)> {
        let bytes = self.bytes;
        let random = format!("--size={bytes} --offset_increment=0 --buffer_compress_percentage=0");
        fio(&self.contender, &case("fill", "write", 1024, 1, 8), &random)?;
        self.set("writeback_batch_size", &batch.to_string())?;
        self.set("idle", "all")?;
        let processor = || server_time(&self.contender)?.context("the server runs");
        let (start, before) = (Instant::now(), processor()?);
        self.set("writeback", "idle")?;
        let (took, busy): (_, Duration) = (start.elapsed(), processor()? - before);
        self.set("reset", "1")?;
        self.set("disksize", &bytes.to_string())?;
        let gib = bytes as f64 / (1u64 << 30) as f64;
        Ok((gib * 1024.0 / took.as_secs_f64(), busy.as_secs_f64() / gib))
    }

    /// fio's MiB a second.
    fn peer(&self) -> Result<f64> {
        let file = format!("--filename={}", text(&self.disk.0.join("peer"))?);
        let size = format!("--size={}", self.bytes);
        let mut command = Command::new("fio");
        command.args([
            "--name=peer",
            "--rw=write",
            "--bs=1M",
            "--iodepth=8",
            "--ioengine=libaio",
            "--direct=1",
        ]);
        let start = Instant::now();
        let output =
            command.args([file, size]).stdin(Stdio::null()).output().context("fio cannot be started")?;
        ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
        Ok(self.bytes as f64 / (1u64 << 20) as f64 / start.elapsed().as_secs_f64())
    }
}

/// A private folder on the disk that holds temporary files.
struct DiskFolder(PathBuf);

impl DiskFolder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("spillway-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

impl Drop for DiskFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is text")
}
