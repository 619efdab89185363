//! The figures as tables, with the ratios that are wanted.

use anyhow::Result;

use super::cases::CASES;
use super::contenders::{
    GUEST, KERNEL, KERNEL_CALLS, NBD, QEMU, QEMU_DISK, QEMU_TMPFS, SLEEPING, TWO_QUEUES,
};
use crate::measure::rounds::Rounds;
use crate::measure::statistics::higher;
use crate::measure::table::{Figure, figure, named, once, ratio};
use crate::nbd::{Codec, millis};

/// Least ratios, by case, of one of ours to a peer; 0 where none is wanted.
const WANTED: [(&str, &str, [f64; CASES.len()]); 5] = [
    (GUEST, KERNEL, [1.3, 1.2, 1.3, 1.2, 1.5, 1.5, 0.0, 0.0]),
    (GUEST, NBD, [1.4, 1.4, 1.4, 1.4, 0.0, 0.0, 1.5, 0.0]),
    (GUEST, QEMU, [2.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0]),
    (TWO_QUEUES, KERNEL, [2.2, 1.9, 2.2, 1.9, 0.0, 0.0, 0.0, 0.0]),
    (SLEEPING, KERNEL, [0.0, 0.0, 0.0, 0.0, 0.9, 0.9, 0.0, 0.0]),
];

/// Most microseconds of our server for a request of 4 KiB at depth 64: a read, and a write beyond compressing
/// it.
const READ_MICROS: f64 = 1.6;
const WRITE_MICROS: f64 = 1.0;

/// The figures of a contender, a vector of rounds for each case.
type Figures<'a> = &'a [Vec<f64>];

fn heads() -> Vec<&'static str> {
    std::iter::once("").chain(CASES.iter().map(|case| case.name)).collect()
}

/// The figures of each contender beside its name.
fn by_name<'a>(names: &[&'a str], figures: Figures<'a>) -> Vec<(&'a str, Figures<'a>)> {
    names.iter().copied().zip(figures.chunks(CASES.len())).collect()
}

pub(super) fn show_rates(names: &[&str], rates: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let all = by_name(names, rates);
    let thousands =
        |(name, rates): &(&str, Figures)| named(name, rates.iter().map(|rates| figure(rates, 1).times(1e-3)));
    let title = format!(
        "One generator, 50 % compressible, depth of each queue, 128K at depth 16, runs of {:.1} s, \
         thousand requests a second",
        millis(1, rounds) as f64 / 1e3
    );
    rounds.show(&title, &heads(), all.iter().map(thousands).collect())?;
    let (qemu, mut all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(name, _)| [QEMU_TMPFS, QEMU_DISK].contains(name));
    let qemu = best(&qemu);
    all.extend(qemu.iter().map(|rates| (QEMU, &rates[..])));
    let ours = all.iter().filter(|(ours, _)| [GUEST, TWO_QUEUES, SLEEPING].contains(ours));
    let pairs =
        ours.flat_map(|ours| all.iter().map(move |peer| (ours, peer))).filter(|((ours, _), (peer, _))| {
            ours != peer
                && (*ours == GUEST || WANTED.iter().any(|(first, second, _)| (first, second) == (ours, peer)))
        });
    let ratios = pairs.map(|((ours, our_rates), (peer, rates))| {
        let to_it = |case: usize| {
            let ratio = ratio(&our_rates[case], &rates[case]).wanted(wanted(ours, peer, case));
            if *peer == NBD { ratio.of_ours() } else { ratio }
        };
        named(&format!("{ours} to {peer}"), (0..CASES.len()).map(to_it))
    });
    rounds.show("Ratio of ours to each, median over the rounds", &heads(), ratios.collect())
}

/// The highest rates of the set-ups of a peer, by case and round; none where none takes part.
fn best(set_ups: &[(&str, Figures<'_>)]) -> Option<Vec<Vec<f64>>> {
    let rates = set_ups.iter().map(|(_, rates)| rates.to_vec());
    rates.reduce(|one, other| one.iter().zip(&other).map(|(one, other)| higher(one, other)).collect())
}

fn wanted(ours: &str, peer: &str, case: usize) -> f64 {
    let row = WANTED.iter().find(|(first, second, _)| (*first, *second) == (ours, peer));
    row.map_or(0.0, |(_, _, wanted)| wanted[case])
}

pub(super) fn show_processor_time(
    names: &[&str],
    micros: &[Vec<f64>],
    codec: Codec,
    rounds: Rounds,
) -> Result<()> {
    let cell = |name: &str, micros: &[f64], case: usize| -> Figure {
        let deep = CASES[case].is_small() && CASES[case].depth == 64;
        if !deep || ![GUEST, SLEEPING].contains(&name) {
            return figure(micros, 2);
        }
        // As exact as it is shown.
        let write = ((codec.compress + WRITE_MICROS) * 100.0).round() / 100.0;
        figure(micros, 2).at_most(if CASES[case].writes { write } else { READ_MICROS })
    };
    let all = by_name(names, micros);
    let mut rows: Vec<_> = all
        .iter()
        .filter(|(name, _)| ![KERNEL, KERNEL_CALLS].contains(name))
        .map(|(name, micros)| named(name, (0..CASES.len()).map(|case| cell(name, &micros[case], case))))
        .collect();
    let alone = |case: usize| if CASES[case].writes { codec.compress } else { codec.decompress };
    rows.push(named("lz4 alone, without a server", (0..CASES.len()).map(|case| once(alone(case), 2))));
    rounds.show("Server processor time, us for each 4 KiB", &heads(), rows)
}
