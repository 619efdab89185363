//! Starts of RAM disks whose spill file keeps what they store, against the bytes that they hold. In process, on tmpfs.
//!
//! A start reads a list for each segment of 4 MiB, and gives each page its slot. Beside it stands a read of the whole file, which is the least
//! that a start would take that looked at the pages. No part of the report: its memory is more than most machines have.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures_util::future::join_all;
use spillway_core::random::Random;
use spillway_core::size::human;
use spillway_core::{Answer, BlockDevice, Budget, IoBuf, OpenStorage, Request, Seam, Works};
use spillway_io::{FileOptions, MmapRegions, Workers};
use spillway_layers::open_context::{BackingDevice, Open, OpenContext, OpenDevice};
use spillway_layers::zram::Config;

use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::table::{figure, ratio, row};
use crate::peers::pages::PAGE;
use crate::peers::servers::Folder;
use crate::writecache::on_worker;

const GIB: u64 = 1 << 30;

/// Bytes that a device holds.
const SIZES: [u64; 3] = [GIB, 4 * GIB, 16 * GIB];

/// Memory of a device: what it holds is in its file.
const MEMORY: u64 = GIB;

/// Left to the system.
const SPARE: u64 = GIB;

/// Bytes of a spill file when it is made.
const MADE_BYTES: u64 = 32 << 20;

/// Wanted of each start, in seconds.
const START: f64 = 2.0;

/// How a device is filled: bytes of a request, and requests at a time.
const REQUEST_BYTES: usize = 1 << 20;
const LANES: u64 = 8;

pub(super) fn measure(workers: &Workers, rounds: Rounds) -> Result<()> {
    let folder = Folder::new()?;
    let room = room(&folder.0)?;
    let (mut rows, mut too_large) = (Vec::new(), Vec::new());
    for &bytes in &SIZES[..rounds.pick(SIZES.len(), 1)] {
        if room < bytes + bytes / 16 + MEMORY + SPARE {
            too_large.push(human(bytes));
            continue;
        }
        let disk = Disk::fill(workers, &folder.0, bytes)?;
        let figures = rounds.measure(|_| Ok(vec![disk.restart()?, disk.read_file()?]))?;
        let [start, read] = &figures[..] else { unreachable!("two figures") };
        rows.push(row![
            human(bytes),
            figure(start, 2).at_most(START),
            figure(start, 0).times(1e9 / disk.pages() as f64),
            figure(read, 2),
            ratio(start, read).no_claim(),
        ]);
    }
    let head = ["held", "start, s", "ns a page", "reading its file, s", "start to that"];
    let title = "The start of a RAM disk that holds noise, all of it in its spill file on tmpfs";
    let table = rounds.table(title, &head, rows);
    results::show(match too_large[..] {
        [] => table,
        _ => table.note(format!("No memory, or no room in /dev/shm, for {}.", too_large.join(", "))),
    })
}

/// Bytes that files in `folder` and this process may take.
fn room(folder: &Path) -> Result<u64> {
    let known = fs::read_to_string("/proc/meminfo")?;
    let line = known.lines().find_map(|line| line.strip_prefix("MemAvailable:")).context("MemAvailable")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    let system = rustix::fs::statvfs(folder)?;
    Ok((kib << 10).min(system.f_bavail * system.f_frsize))
}

/// A RAM disk that is stopped, and its spill file, which is gone afterwards.
struct Disk<'a> {
    workers: &'a Workers,
    config: Config,
    file: FileOptions,
}

impl<'a> Disk<'a> {
    /// One that was stopped when it was full.
    fn fill(workers: &'a Workers, folder: &Path, bytes: u64) -> Result<Self> {
        let path = folder.join("spill");
        let file = FileOptions { path: path.clone(), create: Some(MADE_BYTES), ..FileOptions::default() };
        let config = Config { disksize: bytes, spill: Some(path), keep: true, ..Config::default() };
        let mut disk = Self { workers, config, file };
        let (opened, _) = disk.start()?;
        let device = opened.device.clone();
        on_worker(workers, move || write_noise(device, bytes));
        disk.stop(opened)?;
        // From now on a start without all of it is refused.
        disk.config.require_kept = true;
        Ok(disk)
    }

    fn pages(&self) -> u64 {
        self.config.disksize / PAGE as u64
    }

    /// Starts it and stops it again; the seconds of the start.
    fn restart(&self) -> Result<f64> {
        let (opened, seconds) = self.start()?;
        let wanted = format!("has the {} pages", self.pages());
        let notes = opened.notes.join("; ");
        self.stop(opened)?;
        ensure!(notes.contains(&wanted), "the start does not say that it {wanted}: {notes}");
        Ok(seconds)
    }

    /// The open device, and the seconds from its file, open and locked, to that.
    fn start(&self) -> Result<(OpenDevice, f64)> {
        let storage = spillway_io::open(&self.file)?.storage;
        let open = move |_: &BackingDevice| {
            Answer::Done(Ok(OpenStorage { storage: storage.clone(), notes: Vec::new() }))
        };
        let context = OpenContext {
            name: "ram0".into(),
            env: self.workers.env(),
            regions: Arc::new(MmapRegions),
            budget: Budget::new(MEMORY),
            memory_nodes: Vec::new(),
            open_file: Arc::new(open),
            works: Works::default(),
        };
        let config = self.config.clone();
        let (opened, took) = on_worker(self.workers, move || async move {
            let start = Instant::now();
            let opened = config.open((), &context).await;
            (opened, start.elapsed())
        });
        Ok((opened?, took.as_secs_f64()))
    }

    /// Ends the device, all of which is in its file then.
    fn stop(&self, opened: OpenDevice) -> Result<()> {
        let suspend = opened.suspend.clone().context("a RAM disk has an end")?;
        Ok(on_worker(self.workers, move || async move { suspend.suspend().await })?)
    }

    /// Seconds of a read of all of its file.
    fn read_file(&self) -> Result<f64> {
        let (mut file, mut buf) = (fs::File::open(&self.file.path)?, vec![0; REQUEST_BYTES]);
        let start = Instant::now();
        while file.read(&mut buf)? > 0 {}
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file.path);
    }
}

/// Fills a device of `bytes` with what does not compress.
async fn write_noise(device: Arc<dyn BlockDevice>, bytes: u64) {
    let seam = Seam::new(device);
    let write = async |lane: u64| {
        let (mut buf, mut random) = (IoBuf::new(REQUEST_BYTES), Random(lane));
        buf.chunks_mut(8).for_each(|word| word.copy_from_slice(&random.draw().to_le_bytes()));
        let len = REQUEST_BYTES as u64;
        for at in (lane * len..bytes).step_by((LANES * len) as usize) {
            let reply = seam.submit(Request::write(at, buf)).await;
            assert_eq!(reply.result, Ok(()));
            buf = reply.buf;
        }
    };
    join_all((0..LANES).map(write)).await;
}
