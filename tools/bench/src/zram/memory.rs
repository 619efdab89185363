//! Memory for the same real pages: ours beside the kernel's.
//!
//! The kernel's pool is compacted before it is read. Its `mem_used_total` leaves its table out, which takes 24 bytes a page (16, and an 8-byte handle in the pool's
//! own allocation); ours has everything in it.

use anyhow::Result;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use spillway_core::IoBuf;
use spillway_io::Workers;
use spillway_layers::zram::Config;

use crate::measure::rounds::Rounds;
use crate::measure::table::{Cell, Figure, once, ratio, row};
use crate::peers::device::{Device, at};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::pages::{self, PAGE, Pages};

/// Bytes of table that the kernel keeps for each page beside `mem_used_total`.
const KERNEL_BYTES_A_PAGE: u64 = 24;

/// Most overhead that is wanted in percent, of what sets of pages.
const OVERHEAD_MAX: f64 = 5.0;
const BOUND_BYTES: usize = 64 << 20;
const BOUND_RATIO: f64 = 3.0;

/// In the middle of what a device at rest is given to return memory.
const SETTLE: Duration = Duration::from_millis(1500);

/// Levels of zstd that pages are recompressed with, and how much smaller the last should make them than the kernel's zram with lz4.
const LEVELS: [i32; 2] = [3, 15];
const SMALLER: f64 = 1.4;

/// Nothing is timed, so that one round is as good as five.
pub(crate) fn compare(workers: &Workers, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for set in
        [pages::elf(rounds.pick(256, 64) << 20)?, pages::text(rounds.pick(128, 64) << 20)?, pages::heap()?]
    {
        rows.push(compared(workers, &set)?);
    }
    let head = [
        "pages",
        "MiB",
        "ratio",
        "spillway MiB",
        "overhead",
        "after discarding half",
        "kernel MiB",
        "ours / kernel",
    ];
    rounds.show_once("Memory with lz4, tables included, 1.5 s after the last write", &head, rows)
}

/// ELF pages that are recompressed, each by itself, beside the kernel's zram with lz4.
pub(crate) fn recompress(workers: &Workers, rounds: Rounds) -> Result<()> {
    let set = pages::elf(rounds.pick(256, 64) << 20)?;
    let kernel = kernel_bytes(&set)?;
    let mut rows = Vec::new();
    for level in LEVELS {
        let Recompressed { objects, at_rest, used, micros } = recompressed(workers, &set, level)?;
        let smaller =
            ratio(&[kernel], &[used]).wanted(if Some(&level) == LEVELS.last() { SMALLER } else { 0.0 });
        let micros = once(micros, 0);
        rows.push(row![
            level.to_string(),
            mib(objects),
            mib(at_rest),
            mib(used),
            mib(kernel),
            smaller,
            micros
        ]);
    }
    let head =
        ["level", "objects, MiB", "spillway MiB", "compacted", "kernel MiB", "times smaller", "us a page"];
    let title = format!(
        "{} MiB of ELF pages, recompressed with zstd, beside the kernel's zram with lz4, tables included",
        set.bytes.len() >> 20
    );
    rounds.show_once(&title, &head, rows)
}

/// What became of pages that were recompressed.
struct Recompressed {
    objects: f64,
    /// Memory after that, and once it was compacted.
    at_rest: f64,
    used: f64,
    micros: f64,
}

fn recompressed(workers: &Workers, set: &Pages, level: i32) -> Result<Recompressed> {
    let config = Config {
        disksize: set.bytes.len() as u64,
        comp_algorithm: "lz4",
        max_comp_streams: 1,
        recomp_algorithm: Some("algo=zstd".into()),
        algorithm_params: Some(format!("priority=1 level={level}")),
        ..Config::default()
    };
    let ours = Device::with(workers, config)?;
    fill(&ours, set);
    let start = Instant::now();
    ours.set("recompress", "")?;
    let micros = start.elapsed().as_micros() as f64 / set.count() as f64;
    std::thread::sleep(SETTLE);
    let number = |name| Ok::<_, anyhow::Error>(ours.number(name)? as f64);
    let at_rest = number("mem_used_total")?;
    ours.set("compact", "1")?;
    let (objects, used) = (number("compr_data_size")?, number("mem_used_total")?);
    Ok(Recompressed { objects, at_rest, used, micros })
}

fn fill(device: &Device, set: &Pages) {
    for index in 0..set.count() {
        device.write(at(index), IoBuf::copy_of(set.page(index)));
    }
}

fn mib(bytes: f64) -> Figure {
    once(bytes / f64::from(1 << 20), 1)
}

fn compared(workers: &Workers, set: &Pages) -> Result<Vec<Cell>> {
    let ours = Device::new(workers, set.bytes.len() as u64, "lz4", 1)?;
    fill(&ours, set);
    std::thread::sleep(SETTLE);
    let (used, objects) = (ours.number("mem_used_total")? as f64, ours.number("compr_data_size")? as f64);
    let overhead = overhead(&ours)?;
    discard_half(&ours, set);
    std::thread::sleep(SETTLE);
    let thinned = self::overhead(&ours)?;
    let (kernel, bytes) = (kernel_bytes(set)?, set.bytes.len() as f64);
    let is_bound = set.bytes.len() >= BOUND_BYTES && bytes / objects <= BOUND_RATIO;
    let percent = |overhead: f64| match once(overhead, 1).unit(" %") {
        percent if is_bound => percent.at_most(OVERHEAD_MAX),
        percent => percent,
    };
    Ok(row![
        set.name,
        mib(bytes),
        once(bytes / objects, 2),
        mib(used),
        percent(overhead),
        percent(thinned),
        mib(kernel),
        ratio(&[used], &[kernel]).decimals(3),
    ])
}

fn overhead(device: &Device) -> Result<f64> {
    let (used, objects) = (device.number("mem_used_total")?, device.number("compr_data_size")?);
    Ok((used as f64 / objects as f64 - 1.0) * 100.0)
}

fn discard_half(device: &Device, set: &Pages) {
    let mut random = spillway_core::random::Random(3);
    for index in 0..set.count() {
        if random.below(2) == 0 {
            device.discard(at(index), PAGE as u64);
        }
    }
}

/// Not a number where there is no kernel zram.
fn kernel_bytes(set: &Pages) -> Result<f64> {
    let Some(peer) = KernelZram::if_there(set.bytes.len() as u64) else { return Ok(f64::NAN) };
    let file = peer.open()?;
    let mut buf = IoBuf::new(PAGE);
    for index in 0..set.count() {
        buf.copy_from_slice(set.page(index));
        file.write_all_at(&buf, at(index))?;
    }
    drop(file);
    peer.set("compact", "1")?;
    Ok((peer.mm_stat(2)? + KERNEL_BYTES_A_PAGE * set.count() as u64) as f64)
}
