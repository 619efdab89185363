//! The figures as tables, with the ratios that are wanted.

use super::cases::CASES;
use super::contenders::{GUEST, KERNEL, NBD, QEMU_DISK, QEMU_TMPFS, SLEEPING, TWO_QUEUES};
use crate::nbd::{Codec, MILLIS, shown};
use crate::report::{Rounds, at_most, bounded, median, ratio, table};

/// Least ratios, by case, of one of ours to a peer; 0 where none is wanted.
const WANTED: [(&str, &str, [f64; CASES.len()]); 6] = [
    (GUEST, KERNEL, [1.3, 1.2, 1.3, 1.2, 1.5, 1.5, 0.0, 0.0]),
    (GUEST, NBD, [1.4, 1.4, 1.4, 1.4, 0.0, 0.0, 1.5, 0.0]),
    (GUEST, QEMU_TMPFS, [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]),
    (GUEST, QEMU_DISK, [2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0]),
    (TWO_QUEUES, KERNEL, [2.2, 1.9, 2.2, 1.9, 0.0, 0.0, 0.0, 0.0]),
    (SLEEPING, KERNEL, [0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.0, 0.0]),
];

/// Most microseconds of our server for a request of 4 KiB at depth 64: a read, and a write beyond compressing
/// it.
const READ_MICROS: f64 = 1.6;
const WRITE_MICROS: f64 = 1.0;

/// The figures of a contender, a vector of rounds for each case.
type Figures<'a> = &'a [Vec<f64>];

/// A name, and a cell for each case.
fn row(name: &str, cell: impl Fn(usize) -> String) -> Vec<String> {
    std::iter::once(name.into()).chain((0..CASES.len()).map(cell)).collect()
}

fn heads() -> Vec<&'static str> {
    std::iter::once("").chain(CASES.iter().map(|case| case.name)).collect()
}

/// The figures of each contender beside its name.
fn by_name<'a>(names: &[&'a str], figures: Figures<'a>) -> Vec<(&'a str, Figures<'a>)> {
    names.iter().copied().zip(figures.chunks(CASES.len())).collect()
}

pub(super) fn show_rates(names: &[&str], rates: &[Vec<f64>], rounds: Rounds) {
    let all = by_name(names, rates);
    let thousands = |(name, rates): &(&str, Figures)| row(name, |case| shown(median(&rates[case]) / 1e3, 1));
    let title = format!(
        "One generator, 50 % compressible, depth of each queue, 128K at depth 16, runs of {:.1} s, \
         thousand requests a second",
        MILLIS as f64 / 1e3
    );
    table(&rounds.title(&title), &heads(), &all.iter().map(thousands).collect::<Vec<_>>());
    for (ours, our_rates) in &all {
        if ![GUEST, TWO_QUEUES, SLEEPING].contains(ours) {
            continue;
        }
        let to = |(peer, rates): &(&str, Figures)| {
            row(peer, |case| {
                let ratio = ratio(&our_rates[case], &rates[case]);
                if ratio.is_nan() { shown(ratio, 2) } else { bounded(ratio, wanted(ours, peer, case)) }
            })
        };
        let peers = all.iter().filter(|(peer, _)| peer != ours);
        let title = format!("{ours}: ratio to each, median over the rounds");
        table(&rounds.title(&title), &heads(), &peers.map(to).collect::<Vec<_>>());
    }
}

fn wanted(ours: &str, peer: &str, case: usize) -> Option<f64> {
    let row = WANTED.iter().find(|(first, second, _)| (*first, *second) == (ours, peer));
    row.map(|(_, _, wanted)| wanted[case]).filter(|wanted| *wanted > 0.0)
}

pub(super) fn show_processor_time(names: &[&str], micros: &[Vec<f64>], codec: Codec, rounds: Rounds) {
    let cell = |name: &str, micros: &[f64], case: usize| {
        let figure = median(micros);
        let deep = CASES[case].is_small() && CASES[case].depth == 64;
        if figure.is_nan() || !deep || ![GUEST, SLEEPING].contains(&name) {
            return shown(figure, 2);
        }
        // As exact as it is shown.
        let write = ((codec.compress + WRITE_MICROS) * 100.0).round() / 100.0;
        at_most(figure, 2, "", if CASES[case].writes { write } else { READ_MICROS })
    };
    let all = by_name(names, micros);
    let mut rows: Vec<_> = all
        .iter()
        .filter(|(name, _)| *name != KERNEL)
        .map(|(name, micros)| row(name, |case| cell(name, &micros[case], case)))
        .collect();
    let alone = |case: usize| if CASES[case].writes { codec.compress } else { codec.decompress };
    rows.push(row("lz4 alone, without a server", |case| shown(alone(case), 2)));
    table(&rounds.title("Server processor time, us for each 4 KiB"), &heads(), &rows);
}
