//! E5 (a): the machine, the stick and the workload of the source in virtual time; four file systems, one limit and a limit for each zone.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;

use super::file_system::{ALL, FileSystem};
use super::memory::{NAMES, PAGES, size};
use super::setup::{Measured, Sample, Scope, Setup};
use super::stick::Speed;
use super::time::{MILLI, SECOND};
use super::world::World;
use crate::measure::results;
use crate::measure::rounds::Rounds;
use crate::measure::statistics::median;
use crate::measure::svg::{self, Chart, Line, Picture};
use crate::measure::table::{Cell, once, ratio, row};

const SEEDS: u64 = 10;

/// Seeds of each point of the sweep.
const SWEEP_SEEDS: u64 = 3;

/// Milliseconds of a random write.
const SWEEP: [u64; 10] = [1, 2, 3, 5, 7, 10, 15, 20, 25, 30];

/// Nanoseconds of a random write, from outside the source's table: a Lexar JumpDrive S75 writes 141.4 random blocks of 4 KiB a second
/// (CrystalDiskMark 5.2.1, one at a time, 27 May 2017).
const SEEK: u64 = 7_072_000;

/// The source's xfs row: 10 GiB in so many seconds.
const SEQUENTIAL_SECONDS: f64 = 549.747;

/// Reclaim writes with zones, at most, for each file system; how much slower each may be; how much faster the source is on fuse-ntfs.
const WRITES_MAX: [f64; 4] = [0.0, 43.0, 1362.0, 0.0];
const SLOWER_MAX: f64 = 1.02;
const HEADLINE: f64 = 2.1;

const SCOPES: [Scope; 2] = [Scope::Global, Scope::Zone];

const ASSUMPTIONS: &str = "
What the model assumes:
- All of the 3765 MiB are for the file's pages and its metadata; at the start they are full of clean pages of the run before. Watermarks and the pages that are left
  to requests for lower zones are the kernel's of 2011 without huge pages.
- Zones are asked in the order Normal, DMA32, DMA. A page that is about to be dirtied is placed by `policy::zones`. Where no zone is above
  its low watermark, background reclaim is woken, 50 to 500 us later.
- Reclaim looks at a page in 1 us, at 1/4096 of a zone's inactive pages at first and twice as many after each look in which less than 32 were
  freed; it waits 100 ms after looks deeper than 1/1024. It writes each dirty page that it meets, alone, and counts it as the source
  does, refused or not. A writer that finds no page looks itself, and never writes.
- The writer copies a page in 8 us, and is slowed down by `policy::throttle` every 128 KiB; limits of 10 and 40 %.
- The stick carries out requests in the order of arrival: 10 GiB in 549.7 s as in the source's xfs row, that even to 1.1 % by seed; a
  request that does not begin where the last one ended takes 7.07 ms more, 3/4 to 5/4 of it. That is from outside the source's table: a Lexar
  JumpDrive S75 writes 141.4 random blocks of 4 KiB a second (CrystalDiskMark 5.2.1, 2017); it is a newer, faster stick.
- Write-back sends requests of 120 KiB in the order of the file, 128 waiting at most. The time ends when all of the file is on the stick.
- xfs-like: nothing else. fuse-ntfs-like: a clean page in the file system's cache beside each dirty one of the daemon's, 20 us a page for
  the way to the daemon; reclaim's writes are carried out. btrfs-like: a page of checksums for each 900 of data, accessed 8 times when it is
  new, written with each commit (30 s), twice; reclaim's writes are refused. ext4-like: with each commit of the journal (5 s) write-back advances by
  4 MiB without writing; reclaim's writes are refused.
- Activated are pages accessed twice; nothing accesses the data twice.
";

pub(crate) fn run(rounds: Rounds) -> Result<()> {
    let runs = rows(&ALL, &SCOPES, &[SEEK], SEEDS);
    let runs: Vec<[&[Measured]; 2]> = pairs(&runs, SEEDS);
    let title = format!(
        "E5: {PAGES} pages of memory in three zones, 10 GiB to a USB stick, in virtual time, {SEEDS} seeds; the source's figures in brackets"
    );
    let head =
        ["", "limit", "seconds (sd)", "reclaim writes", "activated", "most writes", "ratio of seconds"];
    let shown = ALL.iter().zip(&runs).zip(WRITES_MAX).flat_map(|((row, pair), max)| show(row, pair, max));
    results::show(rounds.table_once(&title, &head, shown.collect()).note(ASSUMPTIONS.trim()))?;
    let charts = ALL
        .iter()
        .zip(&runs)
        .flat_map(|(row, pair)| [0, 1].map(|mode| memory_chart(row, pair, mode)))
        .collect();
    results::picture(Picture { name: "zones-memory.svg".into(), charts, columns: 2 })?;
    sweep(rounds)
}

/// Every combination, in order; threads take turns.
fn rows(systems: &[FileSystem], scopes: &[Scope], seeks: &[u64], seeds: u64) -> Vec<Measured> {
    let mut setups = Vec::new();
    for file_system in systems {
        for seek in seeks {
            for scope in scopes {
                let bytes_per_second = (10u64 << 30) as f64 / SEQUENTIAL_SECONDS;
                let speed = Speed { bytes_per_second, seek: *seek };
                let setup = |seed| Setup { file_system: *file_system, scope: *scope, speed, seed };
                setups.extend((1..=seeds).map(setup));
            }
        }
    }
    let next = AtomicUsize::new(0);
    let work = || {
        let turns = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
        let mine = turns.take_while(|turn| *turn < setups.len());
        mine.map(|turn| (turn, World::new(setups[turn]).run())).collect::<Vec<_>>()
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut runs: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().flat_map(|thread| thread.join().expect("a run ends")).collect()
    });
    runs.sort_unstable_by_key(|(turn, _)| *turn);
    runs.into_iter().map(|(_, run)| run).collect()
}

/// The runs with one limit and those with a limit for each zone, of each setting.
fn pairs(runs: &[Measured], seeds: u64) -> Vec<[&[Measured]; 2]> {
    runs.chunks(2 * seeds as usize).map(|both| [&both[..both.len() / 2], &both[both.len() / 2..]]).collect()
}

fn figures(runs: &[Measured], of: impl Fn(&Measured) -> f64) -> Vec<f64> {
    runs.iter().map(of).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let mean = mean(values);
    let squares = values.iter().map(|value| (value - mean).powi(2));
    (squares.sum::<f64>() / (values.len() as f64 - 1.0)).sqrt()
}

/// Least, median and most.
fn spread(values: &[f64]) -> String {
    let fold = |start, choose: fn(f64, f64) -> f64| values.iter().copied().fold(start, choose);
    format!("{} / {} / {}", fold(f64::MAX, f64::min), median(values), fold(0.0, f64::max))
}

/// Both rows of a file system.
fn show(row: &FileSystem, pair: &[&[Measured]; 2], writes_max: f64) -> Vec<Vec<Cell>> {
    let seconds = pair.map(|runs| figures(runs, |run| run.seconds));
    let writes = pair.map(|runs| figures(runs, |run| run.reclaim_writes as f64));
    let worst = writes[1].iter().copied().fold(0.0, f64::max);
    let slower = mean(&seconds[1]) / mean(&seconds[0]);
    let (worst, slower) = (once(worst, 0).at_most(writes_max), once(slower, 3).at_most(SLOWER_MAX));
    let line = |mode: usize| {
        let source = &row.source;
        let [least, most] = [0, 2].map(|index| source.writes[mode][index]);
        row![
            row.name,
            ["one for all", "for each zone"][mode],
            format!(
                "{:.1} ({:.1}) [{:.1} ({:.1})]",
                mean(&seconds[mode]),
                deviation(&seconds[mode]),
                source.seconds[mode].0,
                source.seconds[mode].1
            ),
            format!("{} [{least} / {} / {most}]", spread(&writes[mode]), source.writes[mode][1]),
            format!(
                "{} [{} / {} / {}]",
                spread(&figures(pair[mode], |run| run.activated as f64)),
                source.activated[0],
                source.activated[1],
                source.activated[2]
            ),
            if mode == 1 { worst.clone().into() } else { Cell::from("-") },
            if mode == 1 { slower.clone().into() } else { Cell::from("-") },
        ]
    };
    vec![line(0), line(1)]
}

/// Dirty memory of the first run, and the writer's pauses.
fn memory_chart(row: &FileSystem, pair: &[&[Measured]; 2], mode: usize) -> Chart {
    let samples = &pair[mode][0].samples;
    let line = |name: String, colour: &str, of: &dyn Fn(&Sample) -> f64| Line {
        name,
        colour: colour.into(),
        points: samples
            .iter()
            .enumerate()
            .step_by(3)
            .map(|(second, sample)| (second as f64, of(sample)))
            .collect(),
    };
    let percent =
        |zone: usize| move |sample: &Sample| sample.unsaved[zone] as f64 * 100.0 / size(zone) as f64;
    let paused = |sample: &Sample| (sample.paused as f64 * 100.0 / SECOND as f64).min(100.0);
    Chart {
        title: format!("{}, {}", row.name, ["one limit for all memory", "a limit for each zone"][mode]),
        x: "seconds".into(),
        y: "percent".into(),
        y_max: 100.0,
        lines: vec![
            line("writer pauses".into(), svg::GREY, &paused),
            line(format!("{} unsaved", NAMES[1]), svg::BLUE, &percent(1)),
            line(format!("{} unsaved", NAMES[0]), svg::ORANGE, &percent(0)),
        ],
    }
}

/// The fuse-ntfs-like row at every cost of a random write.
fn sweep(rounds: Rounds) -> Result<()> {
    let seeks = SWEEP.map(|millis| millis * MILLI);
    let runs = rows(&ALL[1..2], &SCOPES, &seeks, SWEEP_SEEDS);
    let points = pairs(&runs, SWEEP_SEEDS);
    let mut shown = Vec::new();
    let mut lines = [("one limit for all", svg::ORANGE), ("a limit for each zone", svg::BLUE)]
        .map(|(name, colour)| Line { name: name.into(), colour: colour.into(), points: Vec::new() });
    for (millis, pair) in SWEEP.iter().zip(points) {
        let seconds = pair.map(|runs| mean(&figures(runs, |run| run.seconds)));
        for (line, seconds) in lines.iter_mut().zip(seconds) {
            line.points.push((*millis as f64, seconds));
        }
        let writes = pair.map(|runs| spread(&figures(runs, |run| run.reclaim_writes as f64)));
        let [global, zones] = writes;
        let [one, each] = seconds.map(|seconds| once(seconds, 1));
        shown.push(row![
            format!("{millis} ms"),
            one,
            each,
            ratio(&seconds[..1], &seconds[1..]),
            global,
            zones
        ]);
    }
    let title = format!(
        "E5: fuse-ntfs-like, by the time of a random write, {SWEEP_SEEDS} seeds; the source: {HEADLINE}x, and 59341 and 0 writes in the median"
    );
    let head = [
        "a random write",
        "s, one limit",
        "s, a limit for each zone",
        "gain",
        "reclaim writes, one",
        "for each zone",
    ];
    rounds.show_once(&title, &head, shown)?;
    let chart = Chart {
        title: "fuse-ntfs-like: 10 GiB by the time of a random write".into(),
        x: "milliseconds of a random write".into(),
        y: "seconds".into(),
        y_max: 100.0,
        lines: lines.into(),
    };
    results::picture(Picture { name: "zones-sweep.svg".into(), charts: vec![chart], columns: 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_says_all() {
        let run = || rows(&ALL[..1], &SCOPES[1..], &[SEEK], 2);
        let (one, other) = (run(), run());
        let seconds = |runs: &[Measured]| figures(runs, |run| run.seconds);
        assert_eq!(format!("{:?}", seconds(&one)), format!("{:?}", seconds(&other)));
        assert_ne!(one[0].seconds.to_bits(), one[1].seconds.to_bits(), "another seed is another run");
    }

    #[test]
    fn figures_are_summed_up() {
        let values = [2.0, 4.0, 9.0];
        assert_eq!(
            (spread(&values).as_str(), format!("{:.3}", deviation(&values)).as_str()),
            ("2 / 4 / 9", "3.606")
        );
    }
}
