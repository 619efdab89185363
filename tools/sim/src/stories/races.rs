//! Races: several clients change the same few blocks at once, whole or in part, and one of them looks twice at what has come of it.

use spillway_core::SECTOR;
use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

use crate::stacks::row::Row;

/// Most races of a phase, and clients and blocks of a race.
const RACES_MAX: u64 = 4;
const CLIENTS_MAX: u64 = 6;
const BLOCKS_MAX: u64 = 4;

/// Sectors between places where something ends below: a gate of merges, a region of small folios.
const REGION: u64 = (64 << 10) / SECTOR;

/// Microseconds between the two looks, in which a connection may break or a commit begin.
const PAUSES: [u64; 4] = [0, 100, 10_000, 200_000];

/// In a quarter of the stories there are races, half of them at the beginning of a phase, where nothing else keeps their clients.
pub(crate) fn put_races<'a>(random: &mut Random, row: &Row, phases: impl Iterator<Item = &'a mut Vec<Step>>) {
    if random.below(4) > 0 {
        return;
    }
    for steps in phases {
        for _ in 0..=random.below(RACES_MAX) {
            let at = (random.below(2) * random.below(steps.len() as u64 + 1)) as usize;
            steps.splice(at..at, race(random, row));
        }
    }
}

fn race(random: &mut Random, row: &Row) -> Vec<Step> {
    let unit = row.block().bytes() / SECTOR;
    let span = unit * (1 + random.below(BLOCKS_MAX));
    let from = match random.below(2) {
        0 if row.sectors() > REGION => {
            let end = (1 + random.below((row.sectors() - 1) / REGION)) * REGION;
            end - unit * random.below(span / unit)
        }
        _ => unit * random.below(row.sectors() / unit),
    };
    let span = span.min(row.sectors() - from);
    let clients = 2 + random.below(CLIENTS_MAX - 1) as u8;
    let change = |random: &mut Random, client| {
        let unit = [1, unit][random.below(2) as usize];
        let first = random.below(span / unit) * unit;
        let count = (1 + random.below((span - first) / unit)) * unit;
        Step { client, act: act(random), first: from + first, count, withdraw: None }
    };
    let mut steps: Vec<Step> = (0..clients).map(|client| change(random, client)).collect();
    let client = random.below(clients.into()) as u8;
    let pause = Act::Sleep(PAUSES[random.below(PAUSES.len() as u64) as usize]);
    let look = |act| Step { client, act, first: from, count: span, withdraw: None };
    steps.extend([Act::Read, pause, Act::Read].map(look));
    steps
}

/// A change, mostly a write.
fn act(random: &mut Random) -> Act {
    let fua = random.below(4) == 0;
    match random.below(8) {
        0 => Act::Discard { fua },
        1 => Act::Zero { fua, no_hole: random.below(2) == 0 },
        _ => Act::Write { look: random.below(4), fua },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::STACKS;

    #[test]
    fn races_stay_on_the_device_and_have_changes_of_parts_beside_those_of_whole_blocks() {
        for row in STACKS {
            let unit = row.block().bytes() / SECTOR;
            let mut mixed = 0;
            for seed in 0..200 {
                let steps = race(&mut Random(seed), row);
                let (looks, changes) = (steps.last().expect("a look"), &steps[..steps.len() - 3]);
                let inside = |step: &Step| {
                    step.count > 0
                        && step.first >= looks.first
                        && step.first + step.count <= looks.first + looks.count
                };
                assert!(changes.len() > 1 && changes.iter().all(inside), "{changes:?}");
                assert!(looks.first + looks.count <= row.sectors());
                let whole = |step: &&Step| (step.first | step.count).is_multiple_of(unit);
                let wholes = changes.iter().filter(whole).count();
                mixed += usize::from(wholes > 0 && wholes < changes.len());
            }
            assert!(unit == 1 || mixed > 60, "{}: {mixed} of 200 races mix them", row.name);
        }
    }
}
