//! Memory for the same real pages: ours beside the kernel's.
//!
//! The kernel's `mem_used_total` leaves its table out, which takes 24 bytes a page (16, and an 8-byte handle in the pool's
//! own allocation); ours has everything in it.

use anyhow::Result;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use spillway_core::IoBuf;
use spillway_io::Workers;
use spillway_layers::zram::Config;

use crate::contenders::{Device, at};
use crate::kernel_zram::KernelZram;
use crate::pages::{self, PAGE, Pages};
use crate::report::{Rounds, at_least, at_most, table};

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
    for set in [pages::elf(256 << 20)?, pages::text(128 << 20)?, pages::heap()?] {
        rows.push(row(workers, &set)?);
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
    table(&rounds.title_once("Memory with lz4, tables included, 1.5 s after the last write"), &head, &rows);
    Ok(())
}

/// ELF pages that are recompressed, each by itself, beside the kernel's zram with lz4.
pub(crate) fn recompress(workers: &Workers, rounds: Rounds) -> Result<()> {
    let set = pages::elf(256 << 20)?;
    let kernel = kernel_bytes(&set);
    let mut rows = Vec::new();
    for level in LEVELS {
        let Recompressed { objects, at_rest, used, micros } = recompressed(workers, &set, level)?;
        let smaller = kernel.as_ref().map_or_else(
            |why| format!("none: {why}"),
            |kernel| match *kernel as f64 / used as f64 {
                times if Some(&level) == LEVELS.last() => at_least(times, SMALLER),
                times => format!("{times:.2}"),
            },
        );
        rows.push(vec![
            level.to_string(),
            mib(objects),
            mib(at_rest),
            mib(used),
            kernel.as_ref().map_or("-".into(), |bytes| mib(*bytes)),
            smaller,
            format!("{micros:.0}"),
        ]);
    }
    let head =
        ["level", "objects, MiB", "spillway MiB", "compacted", "kernel MiB", "times smaller", "us a page"];
    let title =
        "256 MiB of ELF pages, recompressed with zstd, beside the kernel's zram with lz4, tables included";
    table(&rounds.title_once(title), &head, &rows);
    Ok(())
}

/// What became of pages that were recompressed.
struct Recompressed {
    objects: u64,
    /// Memory after that, and once it was compacted.
    at_rest: u64,
    used: u64,
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
    let at_rest = ours.number("mem_used_total")?;
    ours.set("compact", "1")?;
    let (objects, used) = (ours.number("compr_data_size")?, ours.number("mem_used_total")?);
    Ok(Recompressed { objects, at_rest, used, micros })
}

fn fill(device: &Device, set: &Pages) {
    for index in 0..set.count() {
        device.write(at(index), IoBuf::copy_of(set.page(index)));
    }
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

fn row(workers: &Workers, set: &Pages) -> Result<Vec<String>> {
    let ours = Device::new(workers, set.bytes.len() as u64, "lz4", 1)?;
    fill(&ours, set);
    std::thread::sleep(SETTLE);
    let (used, objects) = (ours.number("mem_used_total")?, ours.number("compr_data_size")?);
    let overhead = overhead(&ours)?;
    discard_half(&ours, set);
    std::thread::sleep(SETTLE);
    let thinned = self::overhead(&ours)?;
    let kernel = kernel_bytes(set);
    let ratio = set.bytes.len() as f64 / objects as f64;
    let is_bound = set.bytes.len() >= BOUND_BYTES && ratio <= BOUND_RATIO;
    let percent = |overhead: f64| match is_bound {
        true => at_most(overhead, 1, " %", OVERHEAD_MAX),
        false => format!("{overhead:.1} %"),
    };
    Ok(vec![
        set.name.into(),
        mib(set.bytes.len() as u64),
        format!("{ratio:.2}"),
        mib(used),
        percent(overhead),
        percent(thinned),
        kernel.as_ref().map_or_else(|why| format!("none: {why}"), |bytes| mib(*bytes)),
        kernel.map_or_else(|_| "-".into(), |bytes| format!("{:.3}", used as f64 / bytes as f64)),
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

fn kernel_bytes(set: &Pages) -> Result<u64> {
    let peer = KernelZram::new(set.bytes.len() as u64)?;
    let file = peer.open()?;
    let mut buf = IoBuf::new(PAGE);
    for index in 0..set.count() {
        buf.copy_from_slice(set.page(index));
        file.write_all_at(&buf, at(index))?;
    }
    drop(file);
    Ok(peer.mm_stat(2)? + KERNEL_BYTES_A_PAGE * set.count() as u64)
}
