//! E4: large writes through the write cache, fresh and after churn; flushes that share commits; a flush under load.
//!
//! The cache lies on tmpfs, its pages touched before. The peers are our own cache with other policies: the blocks of a request submitted at
//! once as one I/O each, from the request's buffer (before the source's change); a next-fit cursor for free blocks (the kernel's); and
//! flushes one at a time, skipped where one that began after the call has covered it.

mod flushes;
mod guest;
mod rig;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::Result;
use spillway_core::{Attributes, BlockDevice, Request, Seam};
use spillway_layers::write_cache::{Config, Placement, attributes};
use spillway_policy::free_runs::{FreeRuns, Run};

use crate::measure::allocator;
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::statistics::median;
use crate::measure::table::{Cell, figure, once, ratio, row};
use rig::{Load, MIB, ORIGIN_BYTES, WRITE_BYTES, number};

pub(crate) use rig::{Bench, on_worker, still};

const CACHE_BYTES: u64 = 2 << 30;

/// The source's amount.
fn written(rounds: Rounds) -> u64 {
    rounds.pick(400, 100) * MIB
}

/// Block size, and the ratio of the source.
const SOURCE: [(u64, f64); 8] = [
    (512, 3.87),
    (1024, 3.62),
    (2048, 3.137),
    (4096, 2.33),
    (8192, 1.80),
    (16384, 1.42),
    (32768, 1.23),
    (65536, 1.12),
];

/// Cases of large writes: the source's, and its block of 4 KiB with a flush after each 64 writes.
fn cases() -> impl Iterator<Item = (u64, f64, Option<u64>)> {
    let source = SOURCE.into_iter().map(|(block, wanted)| (block, wanted, None));
    source.chain([(4096, 0.0, Some(64))])
}

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let bench = || Bench::new("/dev/shm", CACHE_BYTES);
    match rounds.part {
        Some("memory") => index_memory(&bench()?, rounds),
        Some("large") => large(&bench()?, rounds),
        Some("churn") => churn(&bench()?, rounds),
        Some("kernel") => guest::compare(rounds),
        Some("commits") => flushes::commits(rounds),
        _ => flushes::flush_under_load(rounds),
    }
}

fn large(bench: &Bench, rounds: Rounds) -> Result<()> {
    let head = ["block", "one I/O a block", "large", "ratio (source)", "plain file", "its ratio", "of plain"];
    let note = "The bound is the source's ratio at that block. \"Its ratio\" is that of the plain file to one I/O a block, about the most that a cache can have.";
    let mut slopes = Vec::new();
    for depth in [1, 32] {
        let (rows, slope) = large_writes(bench, depth, rounds)?;
        let title =
            format!("E4: 512 KiB random writes, depth {depth}, {} MiB, MiB a second", written(rounds) / MIB);
        results::show(rounds.table(&title, &head, rows).note(note))?;
        slopes.push(row![depth.to_string(), once(slope, 3).unit(" us").at_most(0.1)]);
    }
    let title = "What a block of a write costs: the slope, over the blocks of a write, of its time less that on the plain file";
    rounds.show(title, &["depth", "a block"], slopes)
}

/// The rows of one depth, and the slope.
fn large_writes(bench: &Bench, depth: usize, rounds: Rounds) -> Result<(Vec<Vec<Cell>>, f64)> {
    let (mut rows, mut longer) = (Vec::new(), Vec::new());
    for (block, wanted, flush_after) in cases() {
        let figures = rounds.measure(|round| {
            let load = Load {
                len: WRITE_BYTES,
                depth,
                bytes: written(rounds.at(round)),
                area: CACHE_BYTES / 2,
                seed: round as u64,
                flush_after,
            };
            let one_by_one = Config { placement: Placement(|free, _| free.take_fit(1)), ..still(block) };
            let mut rates = vec![0.0; 3];
            for turn in drawn_order(3, round) {
                let device: Arc<dyn BlockDevice> = match turn {
                    0 => bench.fresh(&still(block))?,
                    1 => bench.fresh(&one_by_one)?,
                    _ => bench.medium.open(&bench.workers)?,
                };
                rates[turn] = bench.write(device, load);
            }
            Ok(rates)
        })?;
        let [large, single, plain] = &figures[..] else { unreachable!("three contenders") };
        if flush_after.is_none() {
            longer.push((WRITE_BYTES as f64 / block as f64, micros(median(large)) - micros(median(plain))));
        }
        let flushed = flush_after.map(|writes| format!(", a flush after each {writes} writes"));
        rows.push(row![
            format!("{block}, depth {depth}{}", flushed.unwrap_or_default()),
            figure(single, 0),
            figure(large, 0),
            ratio(large, single).wanted(wanted).of_ours(),
            figure(plain, 0),
            ratio(plain, single),
            ratio(large, plain)
                .wanted(if block >= 4096 && flush_after.is_none() { 0.8 } else { 0.0 })
                .no_claim(),
        ]);
    }
    Ok((rows, slope(&longer)))
}

/// How long one write takes at so many MiB a second.
fn micros(rate: f64) -> f64 {
    WRITE_BYTES as f64 / MIB as f64 / rate * 1e6
}

/// The slope of the line that lies nearest to these points, by least squares.
pub(crate) fn slope(points: &[(f64, f64)]) -> f64 {
    let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / points.len() as f64;
    let (x, y) = (mean(|point| point.0), mean(|point| point.1));
    let both: f64 = points.iter().map(|point| (point.0 - x) * (point.1 - y)).sum();
    both / points.iter().map(|point| (point.0 - x).powi(2)).sum::<f64>()
}

/// Ways to choose free blocks.
const FITS: [&str; 2] = ["best fit", "next fit"];

/// 512 KiB writes, 20 % of the capacity, to a fresh cache and to one that is aged.
fn churn(bench: &Bench, rounds: Rounds) -> Result<()> {
    let mut seen = [const { String::new() }; FITS.len()];
    let figures = rounds.measure(|round| {
        let mut figures = vec![f64::NAN; 3 * FITS.len()];
        for turn in drawn_order(FITS.len(), round) {
            let placement = if turn == 0 { Placement::default() } else { Placement(take_next) };
            let config = Config { placement, ..still(4096) };
            let aged = Aged::measure(bench, &config, round, rounds.at(round))?;
            figures[3 * turn..][..3].copy_from_slice(&[aged.fresh, aged.rate, aged.pieces]);
            seen[turn] = aged.runs;
        }
        Ok(figures)
    })?;
    let row = |(fit, figures): (usize, &[Vec<f64>])| {
        let [fresh, aged, pieces] = figures else { unreachable!("three figures of a way") };
        let of_fresh = ratio(aged, fresh).wanted(if fit == 0 { 0.9 } else { 0.0 }).of_ours();
        row![FITS[fit], figure(fresh, 0), figure(aged, 0), of_fresh, figure(pieces, 2), seen[fit].as_str()]
    };
    let rows = figures.chunks(3).enumerate().map(row).collect();
    let times = rounds.pick("ten times", "twice");
    let title = format!("E4 after churn: block 4096, {times} the capacity rewritten, MiB a second");
    let head = ["free blocks", "fresh", "aged", "of fresh", "I/Os a write", "free runs: mean, p10"];
    rounds.show(&title, &head, rows)
}

/// A cache after ten times the capacity in random 4 KiB writes over 45 % of it.
struct Aged {
    /// MiB a second of a fresh one beside it.
    fresh: f64,
    rate: f64,
    /// I/Os for a write.
    pieces: f64,
    /// Free runs: mean, and the length that nine tenths of them reach.
    runs: String,
}

impl Aged {
    fn measure(bench: &Bench, config: &Config, round: usize, rounds: Rounds) -> Result<Self> {
        let (seed, flush_after) = (round as u64, None);
        let (bytes, area) = (CACHE_BYTES / 5 / MIB * MIB, ORIGIN_BYTES / 2);
        let large = Load { len: WRITE_BYTES, depth: 1, bytes, area, seed, flush_after };
        let fresh = bench.write(bench.fresh(config)?, large);
        let cache = bench.fresh(config)?;
        let (bytes, area) = (rounds.pick(10, 2) * CACHE_BYTES, CACHE_BYTES / 100 * 45 / 4096 * 4096);
        bench.write(cache.clone(), Load { len: 4096, depth: 32, bytes, area, seed, flush_after });
        bench.flush(cache.clone());
        let show = attributes(cache.clone());
        until_cleared(&show)?;
        let runs = format!("{}, {}", show.show("free_run_mean")?, show.show("free_run_p10")?);
        show.store("message", "clear_stats").now()?;
        let rate = bench.write(Arc::new(Shifted(Seam::new(cache))), large);
        Ok(Self { fresh, rate, pieces: show.show("ios_per_write")?.parse()?, runs })
    }
}

/// Next fit: up to so many blocks behind those that were taken last, around the end if need be, as far as they follow each other.
fn take_next(free: &mut FreeRuns, wanted: u32) -> Option<Run> {
    static CURSOR: AtomicU32 = AtomicU32::new(0);
    let run = free.next(CURSOR.load(Ordering::Relaxed)).or_else(|| free.next(0))?;
    let run = Run { len: run.len.min(wanted), ..run };
    free.take_out(run);
    CURSOR.store(run.start + run.len, Ordering::Relaxed);
    Some(run)
}

/// Waits until the entries of versions that were replaced are clear.
fn until_cleared(show: &dyn Attributes) -> Result<()> {
    while number(show, "free_blocks")? + number(show, "dirty_blocks")? < number(show, "blocks")? {
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The upper half of a device.
struct Shifted(Seam);

impl BlockDevice for Shifted {
    fn geometry(&self) -> spillway_core::Geometry {
        let below = self.0.geometry();
        spillway_core::Geometry { size: below.size / 2, ..below }
    }

    fn submit(&self, mut request: Request) -> spillway_core::Submission {
        request.range.offset += self.0.geometry().size / 2;
        self.0.submit(request)
    }
}

/// What the index takes, by the allocator's count, from a cache that is opened until it is filled and committed.
fn index_memory(bench: &Bench, rounds: Rounds) -> Result<()> {
    let mut rows = Vec::new();
    for (what, len) in [("random 512 bytes", 512), ("random 64 KiB", 64 << 10)] {
        allocator::count_from_now();
        let cache = bench.fresh(&still(512))?;
        let load = Load {
            len,
            depth: 32,
            bytes: CACHE_BYTES * 7 / 8,
            area: ORIGIN_BYTES / 4 * 3,
            seed: 5,
            flush_after: None,
        };
        bench.write(cache.clone(), load);
        bench.flush(cache.clone());
        let counted = allocator::counted();
        let show = attributes(cache.clone());
        let (blocks, used) = (number(&show, "blocks")? as f64, number(&show, "dirty_blocks")? as f64);
        let used = once(used / blocks * 100.0, 0).unit(" %");
        rows.push(row![what, used, once(counted as f64 / blocks, 1).at_most(32.0)]);
    }
    let title =
        "Memory of the index, counted by the allocator, bytes for each block of 512 bytes of the cache";
    rounds.show_once(title, &["filled by", "used", "bytes"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_block_costs_is_told_from_what_a_write_costs() {
        let points = [8.0, 128.0, 1024.0].map(|blocks| (blocks, 11.0 + 0.085 * blocks));
        assert!((slope(&points) - 0.085).abs() < 1e-9);
        assert!((micros(2000.0) - 250.0).abs() < 1e-9);
    }
}
