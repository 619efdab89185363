//! Small random writes before a cluster: through `spillway cache` on this machine's disk, beside librbd.
//!
//! The client flushes after each 64 writes. What it has written is drained to the image afterwards, and the image is compared with what the
//! device held before.

use anyhow::{Result, ensure};

use super::rig::{Rig, address};
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::statistics::higher;
use crate::measure::table::{figure, ratio, row};
use crate::peers::fio::{Case, Contender, Finished, case, finish};

const WRITES: Case = case("4K writes", "randwrite", 4, 1, 16);

/// Which blocks are written: the words that have fio choose them, and the least ratio of ours to librbd with the drain.
struct Choice {
    name: &'static str,
    words: &'static str,
    drained: f64,
}

const CHOICES: [Choice; 2] = [
    Choice { name: "blocks overwritten (zipf 1.2)", words: "--random_distribution=zipf:1.2", drained: 2.0 },
    Choice { name: "each block once", words: "--norandommap=0", drained: 1.0 },
];

/// Least ratio of writes that are acknowledged.
const ACKNOWLEDGED: f64 = 10.0;

const IMAGE: &str = "image";

/// librbd's own cache: its default, which keeps no written block, and the one that does.
const POLICIES: [&str; 2] = ["writearound", "writeback"];

/// Ways to the cluster: librbd with each cache, librbd without, and ours.
const WAYS: usize = POLICIES.len() + 2;

/// Of a choice: writes a second by each way, ours until the last is acknowledged, and ours until all are in the cluster.
const FIGURES: usize = WAYS + 1;

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let figures = rounds.measure(|round| one_round(round, rounds.at(round)))?;
    show(&figures, rounds)
}

/// Each turn has a new cluster, as writes to one become slower with what was written before.
fn one_round(round: usize, rounds: Rounds) -> Result<Vec<f64>> {
    let mut figures = vec![f64::NAN; CHOICES.len() * FIGURES];
    for turn in drawn_order(WAYS * CHOICES.len(), round) {
        let rig = Rig::new()?;
        let librbd = rig.librbd(IMAGE)?;
        let (choice, way) = (&CHOICES[turn / WAYS], turn % WAYS);
        let rates = match POLICIES.get(way) {
            Some(policy) => vec![straight(&rig.with_its_cache(IMAGE, policy)?, choice, rounds)?],
            None if way < WAYS - 1 => vec![straight(&librbd, choice, rounds)?],
            None => through_cache(&rig, choice, rounds)?.to_vec(),
        };
        figures[turn / WAYS * FIGURES + way..][..rates.len()].copy_from_slice(&rates);
    }
    Ok(figures)
}

fn write(contender: &Contender, choice: &Choice, rounds: Rounds) -> Result<Finished> {
    let mib = mib(rounds);
    finish(contender, &WRITES, &format!("--fsync=64 --io_size={mib}M {}", choice.words))
}

fn mib(rounds: Rounds) -> u64 {
    rounds.pick(24, 4)
}

/// Writes a second to the image itself.
fn straight(librbd: &Contender, choice: &Choice, rounds: Rounds) -> Result<f64> {
    let written = write(librbd, choice, rounds)?;
    Ok(written.requests / written.seconds)
}

/// Writes a second: acknowledged, and with the drain.
fn through_cache(rig: &Rig, choice: &Choice, rounds: Rounds) -> Result<[f64; 2]> {
    let server = rig.cached(&address(IMAGE))?;
    let written = write(&server.contender, choice, rounds)?;
    let content = server.content()?;
    let drain = server.drain()?;
    ensure!(rig.export(IMAGE) == content, "the image differs from what was written");
    Ok([written.seconds, written.seconds + drain].map(|seconds| written.requests / seconds))
}

fn show(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let row = |(choice, figures): (&Choice, &[Vec<f64>])| {
        let [around, back, librbd, acknowledged, drained] = figures else {
            unreachable!("five figures of a choice")
        };
        row![
            choice.name,
            figure(around, 2).times(1e-3),
            figure(back, 2).times(1e-3),
            figure(librbd, 2).times(1e-3),
            figure(acknowledged, 2).times(1e-3),
            // Of one disk here, and of several there.
            ratio(acknowledged, librbd).at_least(ACKNOWLEDGED).no_claim(),
            figure(drained, 2).times(1e-3),
            ratio(drained, &higher(&higher(around, back), librbd)).at_least(choice.drained),
        ]
    };
    let rows = CHOICES.iter().zip(figures.chunks(FIGURES)).map(row).collect();
    let title = format!(
        "4 KiB random writes to an image, depth 16, a flush after each 64, {} MiB, thousand a second",
        mib(rounds)
    );
    let head = [
        "",
        "librbd, writearound",
        "librbd, writeback",
        "librbd",
        "spillway cache, acknowledged",
        "to librbd",
        "and drained",
        "drained, to the fastest librbd",
    ];
    let drained = "After each drain `rbd export` gave what the device held before it.";
    let flushes = "fio fills its queue with flushes until one has ended: after each 64 writes nothing else is in flight.";
    results::show(rounds.table(&title, &head, rows).note(drained).note(flushes))
}
