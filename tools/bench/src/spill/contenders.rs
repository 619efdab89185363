//! Who writes pages: ours, by pages an I/O and I/Os in flight; fio by the same; and the kernel's zram, where it has write-back.
//!
//! Ours with one page an I/O is the source's "before": one I/O at a time, as the kernel's attribute has it. What batching brings is seen
//! with one I/O in flight, what depth brings with batches, and what depth would bring to single pages with fio.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::device::Device;
use super::medium::{Medium, text};
use crate::measure::rounds::Rounds;
use crate::peers::account;
use crate::peers::fio::{processor_time, server_time};
use crate::peers::kernel_zram::KernelZram;

/// One of them.
#[derive(Clone, Copy)]
pub(super) enum Contender {
    Ours { pages: u64, depth: usize },
    Fio { kib: u64, depth: usize },
    Kernel,
}

use Contender::{Fio, Kernel, Ours};

pub(super) const ALL: [Contender; 10] = [
    Ours { pages: 1, depth: 1 },
    Ours { pages: 32, depth: 1 },
    Ours { pages: 256, depth: 1 },
    Ours { pages: 32, depth: 4 },
    Ours { pages: 256, depth: 4 },
    Fio { kib: 4, depth: 1 },
    Fio { kib: 4, depth: 4 },
    Fio { kib: 1024, depth: 1 },
    Fio { kib: 1024, depth: 8 },
    Kernel,
];

/// The source's "before", batches one at a time, and ours as it is.
pub(super) const BEFORE: usize = 0;
pub(super) const BATCHED: usize = 2;
pub(super) const GATHERED: usize = 4;

/// fio in the order of [`ALL`]: pages and blocks of a MiB, one at a time and several.
pub(super) const FIO: [usize; 4] = [5, 6, 7, 8];

/// Where they write, and how much.
pub(super) struct Field<'a> {
    pub(super) bytes: u64,
    pub(super) spill: &'a Medium,
    pub(super) other: &'a Medium,
}

impl Field<'_> {
    /// Our device, with so many I/Os of write-back in flight.
    pub(super) fn device(&self, depth: usize) -> Result<Device> {
        Device::start(self.bytes, 2 * self.bytes + (1 << 30), self.spill, depth)
    }

    /// MiB a second of a contender, and seconds of the processor for a GiB.
    pub(super) fn measure(&self, contender: Contender, rounds: Rounds) -> Result<[f64; 2]> {
        match contender {
            Ours { pages, depth } => self.ours(pages, depth),
            Fio { kib, depth } => self.fio(kib, depth, rounds.pick(3, 1)),
            Kernel => kernel(self.bytes, self.other.path()).or(Ok([f64::NAN; 2])),
        }
    }

    /// Single pages take long: an eighth of them.
    fn ours(&self, pages: u64, depth: usize) -> Result<[f64; 2]> {
        let device = self.device(depth)?;
        let bytes = if pages == 1 { self.bytes / 8 } else { self.bytes };
        device.fill(bytes)?;
        device.set("writeback_batch_size", &pages.to_string())?;
        device.set("idle", "all")?;
        let processor = || server_time(&device.contender)?.context("the server runs");
        let (start, before) = (Instant::now(), processor()?);
        device.set("writeback", "idle")?;
        Ok(figures(bytes, start.elapsed(), processor()? - before))
    }

    /// By fio's own account, without its start; for so many seconds, over what it has written once it is at the end.
    fn fio(&self, kib: u64, depth: usize, seconds: u64) -> Result<[f64; 2]> {
        let job = [
            format!("--bs={kib}k"),
            format!("--iodepth={depth}"),
            format!("--size={}", self.bytes),
            format!("--runtime={seconds}"),
        ];
        let mut words = vec!["--name=peer", "--rw=write", "--ioengine=libaio", "--direct=1", "--time_based"];
        words.extend(job.iter().map(String::as_str));
        let done = account::fio(&words, &[format!("--filename={}", text(self.other.path())?)])?;
        Ok([done.mib, done.processor])
    }
}

/// Of the kernel's zram, which writes back in the call of the program that asks for it, here this one.
fn kernel(bytes: u64, backing: &Path) -> Result<[f64; 2]> {
    let zram = KernelZram::with_backing(bytes, backing)?;
    let words =
        ["--name=fill", "--rw=write", "--bs=1M", "--ioengine=psync", "--direct=1", "--refill_buffers"];
    account::fio(&words, &[format!("--filename={}", zram.path().display()), format!("--size={bytes}")])?;
    zram.set("idle", "all")?;
    let (start, before) = (Instant::now(), processor_time(std::process::id())?);
    zram.set("writeback", "idle")?;
    Ok(figures(bytes, start.elapsed(), processor_time(std::process::id())? - before))
}

fn figures(bytes: u64, took: Duration, busy: Duration) -> [f64; 2] {
    let gib = bytes as f64 / (1u64 << 30) as f64;
    [gib * 1024.0 / took.as_secs_f64(), busy.as_secs_f64() / gib]
}

impl Contender {
    pub(super) fn is_kernel(self) -> bool {
        matches!(self, Kernel)
    }

    pub(super) fn name(self) -> String {
        let pages = |pages: u64| if pages == 1 { "single pages".into() } else { format!("{pages} pages") };
        match self {
            Ours { pages: count, depth } => format!("ours, {}, depth {depth}", pages(count)),
            Fio { kib, depth } => format!("fio, {kib} KiB, depth {depth}"),
            Kernel => "the kernel's zram".into(),
        }
    }
}
