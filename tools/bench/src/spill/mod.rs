//! E1: pages that leave compressed RAM for a file: single pages one at a time, 32 pages an I/O as in the source, and as many as we gather.
//!
//! The pages are random, so that none compresses and all are written raw. The peers are fio, which writes as many bytes in order, single
//! pages or a MiB at a time, with O_DIRECT, and the kernel's zram. All write over what was written before, as far as that can be had: see
//! `medium`.
//!
//! The last table is about reads of pages that stay in memory, before and during a write-back of all others.

mod beside;
mod contenders;
mod device;
mod guest;
mod medium;
mod soak;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::statistics::median;
use crate::measure::table::{Cell, Figure, figure, named, ratio, row};
use crate::peers::kernel_zram::KernelZram;
use crate::peers::servers::Folder;
use beside::Beside;
use contenders::{ALL, BATCHED, BEFORE, FIO, Field, GATHERED};
pub(crate) use medium::write_zeroes;

/// Wanted of what is gathered: times single pages, part of fio's rate, and part of the processor time of single pages.
const FASTER: f64 = 10.0;
const OF_FIO: f64 = 0.9;
const PROCESSOR: f64 = 0.125;

/// Wanted of reads beside write-back: their 99th of 100 is at most so many times that of idle ones, or a millisecond; and write-back
/// keeps this part of its speed.
const SLOWER: f64 = 3.0;
const READ_MICROS: f64 = 1000.0;
const KEPT: f64 = 0.5;

/// Such write-backs in a round, each of a device of its own, whose reads count together: of one, which takes a second, a single stall of
/// the host decides what 99 of 100 reads take.
const WRITE_BACKS: usize = 3;

/// I/Os of write-back in flight by default.
const DEPTH: usize = 4;

pub(crate) use guest::compare as kernel;
pub(crate) use soak::run as soak;

pub(crate) fn run(rounds: Rounds, gib: u64) -> Result<()> {
    ensure!((1..=64).contains(&gib), "{gib} GiB: 1 to 64 are allowed");
    let bytes = (gib << 30) / rounds.pick(1, 4);
    let disk = Folder::on_disk()?;
    let ([spill, other], media) = medium::pair(&disk.0, [bytes / 4 * 5, bytes])?;
    let field = Field { bytes, spill: &spill, other: &other };
    let figures = rounds.measure_anew(|round| {
        let (mut figures, mut beside) = (vec![f64::NAN; 2 * ALL.len() + 3], Vec::new());
        for turn in drawn_order(ALL.len() + WRITE_BACKS, round) {
            match ALL.get(turn) {
                Some(contender) => {
                    let [rate, processor] = field.measure(*contender, rounds)?;
                    (figures[turn], figures[ALL.len() + turn]) = (rate, processor);
                }
                None => {
                    let idle = Duration::from_millis(rounds.pick(1500, 900));
                    beside.push(beside::measure(&field.device(DEPTH)?, &disk.0, idle)?);
                }
            }
        }
        figures[2 * ALL.len()..].copy_from_slice(&Beside::figures(&beside)?);
        Ok(figures)
    })?;
    show(&figures, rounds, bytes, &media)?;
    show_parts(&figures, rounds)?;
    show_beside(&figures[2 * ALL.len()..], &figures[GATHERED], rounds)
}

fn show(figures: &[Vec<f64>], rounds: Rounds, bytes: u64, media: &str) -> Result<()> {
    let (rates, processor) = (&figures[..ALL.len()], &figures[ALL.len()..]);
    let fastest = &rates[FIO[3]];
    let absent = KernelZram::without_write_back();
    let shown = ALL.iter().enumerate().filter(|(_, contender)| absent.is_none() || !contender.is_kernel());
    let rows = shown.map(|(at, contender)| {
        let [faster, of_fio] = [ratio(&rates[at], &rates[BEFORE]), ratio(&rates[at], fastest)];
        let share = ratio(&processor[at], &processor[BEFORE]).decimals(3);
        let [faster, of_fio, share] = match at {
            GATHERED => {
                let [faster, share] =
                    [faster.at_least(FASTER), share.at_most(PROCESSOR)].map(Figure::of_ours);
                [faster, of_fio.at_least(OF_FIO), share]
            }
            _ => [faster, of_fio, share],
        };
        row![contender.name(), figure(&rates[at], 0), faster, of_fio, figure(&processor[at], 2), share]
    });
    let title = format!("E1: {} MiB of random pages written back, MiB a second", bytes >> 20);
    let heads = [
        "",
        "MiB/s",
        "to single pages",
        "of fio, 1 MiB, depth 8",
        "processor, s a GiB",
        "that to single pages",
    ];
    let media = format!(
        "All wrote to {media}. Ours writes single pages one at a time, an eighth of the bytes, as the kernel's \
         writeback_batch_size of 1 asks. fio's rate and processor time are its own account, without its start."
    );
    let table = rounds.table(&title, &heads, rows.collect()).note(media);
    results::show(match absent {
        Some(why) => table.note(format!("No write-back of the kernel's zram: {why}.")),
        None => table,
    })
}

/// Batching and depth, each by itself.
fn show_parts(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let gain = |after: usize, before: usize| Cell::from(ratio(&figures[after], &figures[before]));
    let [page, pages, block, blocks] = FIO;
    let rows = vec![
        named("ours: batches of 256 pages", [gain(BATCHED, BEFORE), "-".into(), gain(GATHERED, BATCHED)]),
        named("fio: blocks of 1 MiB", [gain(block, page), gain(pages, page), gain(blocks, block)]),
    ];
    let head = ["", "batching at depth 1", "depth 4 with single pages", "depth 4 (fio 8) with batches"];
    rounds.show("E1: what batching and depth bring, each by itself", &head, rows)
}

fn show_beside(figures: &[Vec<f64>], alone: &[f64], rounds: Rounds) -> Result<()> {
    let [idle, busy, rate] = figures else { unreachable!("three figures") };
    let most = (SLOWER * median(idle)).max(READ_MICROS);
    let row = row![
        figure(idle, 0),
        figure(busy, 0).at_most(most.round()),
        figure(rate, 0),
        ratio(rate, alone).at_least(KEPT).of_ours(),
    ];
    let title = "5,000 reads a second of pages in memory, beside write-back: 99 of 100 take less, us";
    let head = ["idle", "during write-back", "write-back, MiB a second", "of alone"];
    let note = format!(
        "Of the reads of {WRITE_BACKS} write-backs a round together, each of a device just filled. The bound is {SLOWER} times the idle \
         ones, or {READ_MICROS} us where that is more."
    );
    results::show(rounds.table(title, &head, vec![row]).note(note))
}
