//! Devices that grow while clients use them: a file or volume below becomes longer, and the stack is told so, or a RAM disk is given more.
//!
//! A client uses what is new as soon as the device shows it. A connection is told a size once: what lies behind the size that a phase began
//! with is reached past the network, as by a mount of the same device.

use std::cell::Cell;
use std::sync::Arc;

use spillway_core::random::Random;
use spillway_core::sync::Semaphore;
use spillway_core::{ByteRange, SECTOR};
use spillway_sim::disk::Disk;
use spillway_sim::workload::{Act, Step};

use crate::stacks::row::Row;

/// Most times that a device grows in a phase of a story in which it does.
const GROWTHS_MAX: u64 = 3;

/// Sectors that a device grows by at most.
const MORE_MAX: u64 = 6144;

/// Sectors of a device that has grown as far as stories have it.
pub(crate) fn sectors_max(row: &Row) -> u64 {
    row.sectors() + row.sectors().min(MORE_MAX)
}

/// In an eighth of the stories the device grows, and some of what clients do lies behind its first end: until it is there, they leave it out.
pub(crate) fn put_growth(random: &mut Random, row: &Row, phases: Vec<&mut Vec<Step>>) {
    if random.below(8) > 0 {
        return;
    }
    let (unit, more) = (row.block().bytes() / SECTOR, sectors_max(row) - row.sectors());
    for steps in phases {
        let offset = (1 + random.below(more / unit)) * unit;
        let often = 1 + random.below(4);
        for step in steps.iter_mut().filter(|step| has_range(step.act)) {
            if random.below(4) < often {
                step.first += offset.min(sectors_max(row) - step.first - step.count);
            }
        }
        for _ in 0..random.below(GROWTHS_MAX + 1) {
            let at = random.below(steps.len() as u64 + 1) as usize;
            let client = steps.get(at).map_or(0, |step| step.client);
            steps.splice(at..at, growth(random, row, client));
        }
    }
}

/// The device grows, and the client looks at what is new, or mostly writes over its first end.
fn growth(random: &mut Random, row: &Row, client: u8) -> Vec<Step> {
    let (unit, end) = (row.block().bytes() / SECTOR, row.sectors());
    let step = |act, first, count| Step { client, act, first, count, withdraw: None };
    let sectors = end + (1 + random.below((sectors_max(row) - end) / unit)) * unit;
    let (before, behind) = (random.below(end.min(3 * unit)), 1 + random.below(sectors - end));
    let act = match random.below(4) {
        0 => Act::Read,
        look => Act::Write { look, fua: random.below(4) == 0 },
    };
    vec![step(Act::Grow { sectors }, 0, 1), step(act, end - before, (before + behind).min(row.long()))]
}

pub(crate) fn has_range(act: Act) -> bool {
    matches!(act, Act::Read | Act::Extents | Act::Write { .. } | Act::Zero { .. } | Act::Discard { .. })
}

/// How a device grows.
pub(crate) struct Growth {
    /// What becomes longer below it, where it stands on something.
    pub(crate) disk: Option<Arc<Disk>>,
    /// Sectors that every connection was told at least.
    pub(crate) told: Cell<u64>,
    /// One grows at a time, as a server has it.
    pub(crate) turn: Semaphore,
}

impl Growth {
    pub(crate) fn new(disk: Option<&Arc<Disk>>) -> Self {
        Self { disk: disk.cloned(), told: Cell::default(), turn: Semaphore::new(1) }
    }

    /// Whether connections may not know all of it.
    pub(crate) fn is_new(&self, range: ByteRange) -> bool {
        range.offset + range.len > self.told.get() * SECTOR
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::STACKS;

    #[test]
    fn steps_stay_on_the_device_once_it_has_grown() {
        for row in STACKS {
            let (mut grows, mut behind) = (0, 0);
            for seed in 0..400 {
                let step = Step { client: 1, act: Act::Read, first: seed, count: 8, withdraw: None };
                let mut steps = vec![Step { first: row.sectors() - 8, ..step }, Step { first: 0, ..step }];
                put_growth(&mut Random(seed), row, vec![&mut steps]);
                for step in &steps {
                    assert!(step.first + step.count <= sectors_max(row), "{}: {step:?}", row.name);
                    grows += usize::from(matches!(step.act, Act::Grow { .. }));
                    behind += usize::from(step.first >= row.sectors());
                }
            }
            assert!(grows > 20 && behind > 20, "{}: {grows} times, {behind} steps behind", row.name);
        }
    }
}
