//! E1: pages that leave compressed RAM for a file, one I/O a page, 32 pages an I/O as in the source, and as many as we gather.
//!
//! The pages are random, so that none compresses and all are written raw. The peer is fio, which writes as many bytes in order, 1 MiB at a
//! time, eight at once, with O_DIRECT. Both write over what was written before, as far as that can be had: see `medium`.
//!
//! The second table is about reads of pages that stay in memory, before and during a write-back of all others.

mod beside;
mod device;
mod medium;
mod soak;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::fio::server_time;
use crate::nbd::Folder;
use crate::results;
use crate::rounds::{Rounds, drawn_order};
use crate::statistics::median;
use crate::table::{figure, ratio, row};
use beside::Beside;
use device::Device;
use medium::text;
pub(crate) use medium::write_zeroes;

/// Pages of an I/O.
const BATCHES: [u64; 3] = [1, 32, 256];
const GATHERED: usize = 2;

/// Which figure is which: rates, processor time, and from here on.
const PEER: usize = 2 * BATCHES.len();
const BESIDE: usize = PEER + 1;

/// Wanted of what is gathered: times one page an I/O, part of fio's rate, and part of the processor time of one page an I/O.
const FASTER: f64 = 10.0;
const OF_FIO: f64 = 0.9;
const PROCESSOR: f64 = 0.125;

/// Wanted of reads beside write-back: their 99th of 100 is at most so many times that of idle ones, or a millisecond; and write-back
/// keeps this part of its speed.
const SLOWER: f64 = 3.0;
const READ_MICROS: f64 = 1000.0;
const KEPT: f64 = 0.5;

pub(crate) use soak::run as soak;

pub(crate) fn run(rounds: Rounds, gib: u64) -> Result<()> {
    ensure!((1..=64).contains(&gib), "{gib} GiB: 1 to 64 are allowed");
    let bytes = (gib << 30) / rounds.pick(1, 4);
    let disk = Folder::on_disk()?;
    let ([spill, other], media) = medium::pair(&disk.0, [bytes / 4 * 5, bytes])?;
    let device = Device::start(bytes, 2 * bytes + (1 << 30), &spill)?;
    let figures = rounds.measure(|round| {
        let mut figures = vec![f64::NAN; BESIDE + 3];
        for turn in drawn_order(BATCHES.len() + 2, round) {
            match BATCHES.get(turn) {
                Some(&batch) => {
                    let (rate, processor) = write_back(&device, batch)?;
                    (figures[turn], figures[BATCHES.len() + turn]) = (rate, processor);
                }
                None if turn == BATCHES.len() => figures[PEER] = peer(other.path(), bytes)?,
                None => {
                    let Beside { p99: [idle, busy], rate } =
                        beside::measure(&device, &disk.0, Duration::from_secs(rounds.pick(4, 1)))?;
                    figures[BESIDE..].copy_from_slice(&[idle, busy, rate]);
                }
            }
        }
        Ok(figures)
    })?;
    show(&figures, rounds, bytes, &media)
}

fn show(figures: &[Vec<f64>], rounds: Rounds, bytes: u64, media: &str) -> Result<()> {
    let (rates, rest) = figures.split_at(BATCHES.len());
    let (processor, peer) = (&rest[..BATCHES.len()], &figures[PEER]);
    let rows = (0..BATCHES.len()).map(|mode| {
        let faster = ratio(&rates[mode], &rates[0]);
        let of_fio = ratio(&rates[mode], peer);
        let share = ratio(&processor[mode], &processor[0]).decimals(3);
        let [faster, of_fio, share] = match mode {
            GATHERED => [faster.at_least(FASTER), of_fio.at_least(OF_FIO), share.at_most(PROCESSOR)],
            _ => [faster, of_fio, share],
        };
        let pages = BATCHES[mode].to_string();
        row![pages, figure(&rates[mode], 0), faster, of_fio, figure(&processor[mode], 2), share]
    });
    let title = format!("{} MiB of random pages written back, MiB a second", bytes >> 20);
    let heads =
        ["pages an I/O", "written back", "to one page", "of fio, 1 MiB", "processor, s a GiB", "to one page"];
    let fio = format!("fio: {:.0} MiB a second. Both wrote to {media}.", median(peer));
    results::show(rounds.table(&title, &heads, rows.collect()).note(fio))?;
    show_beside(figures, rounds)
}

fn show_beside(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let [idle, busy, rate] = [0, 1, 2].map(|nth| &figures[BESIDE + nth]);
    let most = (SLOWER * median(idle)).max(READ_MICROS);
    let row = row![
        figure(idle, 0),
        figure(busy, 0).at_most(most.round()),
        figure(rate, 0),
        ratio(rate, &figures[GATHERED]).at_least(KEPT),
    ];
    let title = "5,000 reads a second of pages in memory, beside write-back: 99 of 100 take less, us";
    rounds.show(title, &["idle", "during write-back", "write-back, MiB a second", "of alone"], vec![row])
}

/// Fills the device and writes it back, so many pages an I/O: MiB a second, and seconds of the processor for a GiB.
fn write_back(device: &Device, batch: u64) -> Result<(f64, f64)> {
    device.fill()?;
    device.set("writeback_batch_size", &batch.to_string())?;
    device.set("idle", "all")?;
    let processor = || server_time(&device.contender)?.context("the server runs");
    let (start, before) = (Instant::now(), processor()?);
    device.set("writeback", "idle")?;
    let (took, busy): (_, Duration) = (start.elapsed(), processor()? - before);
    device.empty()?;
    let gib = device.bytes as f64 / (1u64 << 30) as f64;
    Ok((gib * 1024.0 / took.as_secs_f64(), busy.as_secs_f64() / gib))
}

/// fio's MiB a second.
fn peer(path: &Path, bytes: u64) -> Result<f64> {
    let file = format!("--filename={}", text(path)?);
    let size = format!("--size={bytes}");
    let mut command = Command::new("fio");
    command.args(["--name=peer", "--rw=write", "--bs=1M", "--iodepth=8", "--ioengine=libaio", "--direct=1"]);
    results::command(&command)?;
    let start = Instant::now();
    let output = command.args([file, size]).stdin(Stdio::null()).output().context("fio cannot be started")?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    Ok(bytes as f64 / (1u64 << 20) as f64 / start.elapsed().as_secs_f64())
}
