//! Linux's dm-writecache in an emulated machine: what its cache makes of large writes to a disk, by block size.

use anyhow::Result;
use spillway_fixture::emulated::{Recipe, System};

use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::table::{figure, ratio, row};
use crate::peers::emulated::Disks;

const RECIPE: Recipe = Recipe {
    folder: "kernel-writecache-bench",
    modules: &["virtio_pci", "virtio_blk", "dm-writecache"],
    programs: &["/usr/sbin/dmsetup"],
    init: include_str!("guest.sh"),
};

/// The disk itself, and caches by the bytes of their blocks.
const RUNS: [&str; 5] = ["plain", "block512", "block1024", "block2048", "block4096"];

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let (system, disks) = (System::make(RECIPE), Disks::new()?);
    results::text(&format!("in the guest, Linux {}:\n{}", system.release(), RECIPE.init))?;
    let figures = rounds.measure_anew(|round| disks.rates(&system, &RUNS, round))?;
    let (rates, worked) = figures.split_at(RUNS.len());
    let (plain, least) = (&rates[0], &worked[0]);
    let rows = RUNS.iter().zip(rates.iter().zip(worked)).skip(1).map(|(run, (rate, time))| {
        row![
            run.trim_start_matches("block"),
            figure(rate, 0),
            figure(plain, 0),
            ratio(rate, plain),
            figure(time, 2),
            figure(least, 2)
        ]
    });
    let title = format!("E4 in an emulated machine with Linux {}: MiB a second", system.release());
    let note = "512 KiB writes by dd, O_DIRECT, one after the other in order, 448 MiB, no write-back; a fresh cache each.";
    let head = [
        "block",
        "dm-writecache",
        "its disk",
        "of its disk",
        "processor, s a GiB: dm-writecache",
        "its disk",
    ];
    results::show(rounds.table(&title, &head, rows.collect()).note(note))
}
