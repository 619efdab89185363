//! The kernel's zram with a backing device, in an emulated machine: what it makes of a disk that others write in pages and in batches.

use anyhow::Result;
use spillway_fixture::emulated::{Recipe, System};

use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::table::{figure, ratio, row};
use crate::peers::emulated::Disks;

const RECIPE: Recipe = Recipe {
    folder: "kernel-zram",
    modules: &["virtio_pci", "virtio_blk", "zram"],
    programs: &[],
    init: include_str!("guest.sh"),
};

/// What the machine calls them, and how they are shown.
const RUNS: [(&str, &str); 4] = [
    ("zram", "zram's writeback"),
    ("pages", "the disk, 4 KiB"),
    ("batches", "the disk, 128 KiB"),
    ("blocks", "the disk, 1 MiB"),
];

/// What zram does: one page at a time.
const PAGES: usize = 1;

pub(crate) fn compare(rounds: Rounds) -> Result<()> {
    let (system, disks) = (System::make(RECIPE), Disks::new()?);
    results::text(&format!("in the guest, Linux {}:\n{}", system.release(), RECIPE.init))?;
    let names = RUNS.map(|(name, _)| name);
    let figures = rounds.measure_anew(|round| disks.rates(&system, &names, round))?;
    let (rates, worked) = figures.split_at(RUNS.len());
    let rows = RUNS.iter().zip(rates.iter().zip(worked)).map(|((_, name), (rate, time))| {
        row![*name, figure(rate, 1), ratio(rate, &rates[PAGES]), figure(time, 2), ratio(time, &worked[PAGES])]
    });
    let title = format!("E1 in an emulated machine with Linux {}: MiB a second", system.release());
    let note = "zram wrote 32 MiB of incompressible idle pages; the disk was written by dd, O_DIRECT, one block at a time.";
    let head = ["", "MiB/s", "to the disk's 4 KiB", "processor, s a GiB", "that to the disk's 4 KiB"];
    results::show(rounds.table(&title, &head, rows.collect()).note(note))
}
