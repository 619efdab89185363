//! What dirty blocks of 4 KiB are worth on a real disk: databases, and writes that are synced one by one, on ext4 over `spillway disk`,
//! over qemu-storage-daemon (by NBD and nbdfuse), and over the disk itself. As root: loop devices need it.
//!
//! Each contender has an image of its own on the same disk, written before. A cold run begins with the file system just mounted, the
//! server just started, and no block of the image in memory; the warm run follows it. PostgreSQL is started for each run.

mod contender;
mod postgres;
mod synced;

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::sqlite;
use crate::measure::results;
use crate::measure::rounds::{Rounds, drawn_order};
use crate::measure::table::{Cell, figure, named, ratio};
use contender::{Contender, Kind};

/// A load: its name and the unit of its figure, the seconds of all its runs together, in the whole report and in a quick one,
/// what is made before, and a run that lasts so long, in a folder of its own.
struct Load {
    name: &'static str,
    unit: &'static str,
    seconds: [u64; 2],
    prepare: fn(&Path, Rounds) -> Result<()>,
    run: fn(&Path, Duration, u64) -> Result<f64>,
}

const LOADS: [Load; 3] = [
    Load {
        name: "SQLite",
        unit: "commits",
        seconds: [60, 4],
        prepare: |folder, _| sqlite::create(folder),
        run: sqlite::commits_a_second,
    },
    Load {
        name: "pgbench",
        unit: "transactions of PostgreSQL",
        // Five minutes of each contender.
        seconds: [900, 10],
        prepare: |folder, rounds| postgres::create(folder, rounds.pick(20, 1)),
        run: |folder, span, _| postgres::transactions_a_second(folder, span),
    },
    Load {
        name: "fio",
        unit: "writes of 4 KiB at random by 8 jobs, fdatasync after each",
        seconds: [60, 4],
        prepare: |folder, _| synced::lay_out(folder),
        run: |folder, span, _| synced::writes_a_second(folder, span),
    },
];

/// A cold and a warm run.
const STATES: usize = 2;

/// Ours is the first; the least ratios of ours to each.
const KINDS: [Kind; 3] = [Kind::Ours, Kind::Qemu, Kind::Native];
const WANTED: [f64; 3] = [0.0, 1.0, 0.5];

pub(super) fn compare(rounds: Rounds) -> Result<()> {
    let disk = contender::folder()?;
    let bytes = rounds.pick(2 << 30, 1 << 30);
    let contenders = KINDS.into_iter().map(|kind| Contender::make(kind, &disk.0, bytes));
    let mut contenders = contenders.collect::<Result<Vec<_>>>()?;
    for contender in &mut contenders {
        let place = contender.start()?.to_owned();
        for (number, load) in LOADS.iter().enumerate() {
            let folder = place.join(number.to_string());
            std::fs::create_dir(&folder)?;
            (load.prepare)(&folder, rounds)?;
        }
        contender.stop()?;
    }
    let figures = rounds.measure_anew(|round| {
        let mut figures = vec![f64::NAN; contenders.len() * LOADS.len() * STATES];
        for turn in drawn_order(contenders.len() * LOADS.len(), round) {
            let (contender, number) = (&mut contenders[turn / LOADS.len()], turn % LOADS.len());
            let span = span(&LOADS[number], rounds);
            let folder = contender.start()?.join(number.to_string());
            for state in 0..STATES {
                let seed = (round * STATES + state) as u64;
                figures[turn * STATES + state] = (LOADS[number].run)(&folder, span, seed)?;
            }
            contender.stop()?;
        }
        Ok(figures)
    })?;
    show(&figures, rounds)
}

/// The time of a run: the runs of all rounds, contenders and states share the seconds of the load.
fn span(load: &Load, rounds: Rounds) -> Duration {
    let [whole, quick] = load.seconds.map(Duration::from_secs);
    let span = rounds.pick(whole, quick) / (rounds.count * KINDS.len() * STATES) as u32;
    span.max(Duration::from_secs(1))
}

fn show(figures: &[Vec<f64>], rounds: Rounds) -> Result<()> {
    let of: Vec<&[Vec<f64>]> = figures.chunks(LOADS.len() * STATES).collect();
    let row = |number: usize, contender: usize| {
        let at = |contender: usize, state: usize| &of[contender][number * STATES + state];
        let rates = (0..STATES).map(|state| Cell::from(figure(at(contender, state), 0)));
        let ratios = (0..STATES).map(|state| match contender {
            0 => "-".into(),
            _ => Cell::from(ratio(at(0, state), at(contender, state)).wanted(WANTED[contender])),
        });
        named(&format!("{}, {}", LOADS[number].name, KINDS[contender].name()), rates.chain(ratios))
    };
    let rows = (0..LOADS.len()).flat_map(|load| (0..KINDS.len()).map(move |kind| (load, kind)));
    let rows = rows.map(|(load, kind)| row(load, kind)).collect();
    let loads = LOADS.iter().map(|load| {
        let Load { name, unit, .. } = load;
        format!("{name}: {unit}, in runs of {:.0} s", span(load, rounds).as_secs_f64())
    });
    let loads = loads.collect::<Vec<_>>().join("; ");
    let note = format!("{loads}. Cold: nothing of the image in memory at the start. All sync the same disk.");
    let title = "E3 on this machine's disk, on ext4 by a loop device, a second";
    let head = ["ext4 over", "cold", "warm", "ours to it, cold", "warm"];
    results::show(rounds.table(title, &head, rows).note(note))
}
