//! What clients do, drawn from a seed.
//!
//! Swarm testing (Groce and others, 2012): each workload leaves most kinds of operations out or favours some, so that together
//! they reach what an even mixture never does.

use spillway_core::random::Random;

/// An operation on sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Read.
    Read,
    /// Ask where data and zeroes are.
    Extents,
    /// Write with contents of this look (see [`crate::payload`]).
    Write {
        /// Of 0 to 3.
        look: u64,
        /// Forced unit access.
        fua: bool,
    },
    /// Write zeroes.
    Zero {
        /// Forced unit access.
        fua: bool,
        /// Keep the room.
        no_hole: bool,
    },
    /// Discard.
    Discard {
        /// Forced unit access.
        fua: bool,
    },
    /// Flush; the range means nothing.
    Flush,
    /// Store value `value` of attribute `attribute` of the stack's list.
    Set {
        /// Which attribute.
        attribute: usize,
        /// Which of its values.
        value: usize,
    },
    /// Reset the device, and set it up again; the range means nothing. Never drawn here.
    Reset {
        /// Which of the ways to set it up that the stack's list has.
        setup: usize,
    },
    /// Have the device grow to so many sectors; the range means nothing. Never drawn here.
    Grow {
        /// Sectors.
        sectors: u64,
    },
    /// Do nothing for so many microseconds.
    Sleep(u64),
}

/// One step of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Who does it; a client does one thing after the other.
    pub client: u8,
    /// What.
    pub act: Act,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub count: u64,
    /// Drop the answer after so many polls, as a disconnect does.
    pub withdraw: Option<u8>,
}

/// How a workload may look.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadShape<'a> {
    /// Sectors of the device.
    pub sectors: u64,
    /// Sectors of a block.
    pub block: u64,
    /// Most steps.
    pub steps_max: u64,
    /// How many values each attribute of the stack may be given.
    pub attributes: &'a [usize],
    /// Sectors near which something changes below; on a device that has some, most operations are there.
    pub anchors: &'a [u64],
    /// Sectors of the longest operation.
    pub long: u64,
    /// Sectors of the longest discard, and of the longest zeroing that frees, where these may be longer.
    pub vast: Option<u64>,
}

/// Sectors that are near an anchor.
const NEAR: u64 = 24;

/// How much longer than other operations those may be that have no payload and work sector by sector, on a device with vast discards.
const BARE: u64 = 12;

/// What one workload favours.
struct Swarm {
    weights: [u64; 7],
    clients: u64,
    aligned: bool,
    hot: Option<(u64, u64)>,
    count_max: u64,
    fua: u64,
    withdraw: u64,
    looks: u64,
}

impl Swarm {
    fn draw(random: &mut Random, shape: &WorkloadShape<'_>) -> Self {
        let mut weights = [0; 7];
        for weight in &mut weights {
            *weight = [0, 1, 4, 16][random.below(4) as usize];
        }
        // Reads, writes; zeroes, discards; flushes; attributes; sleeps.
        weights[1] = weights[1].max(2);
        if shape.attributes.is_empty() {
            weights[5] = 0;
        }
        weights[6] = weights[6].min(1);
        let hot = Self::hot(random, shape);
        Self {
            weights,
            clients: [1 + random.below(4), 12][usize::from(random.below(8) == 0)],
            aligned: random.below(2) == 0,
            hot,
            count_max: [shape.block, 2 * shape.block, 16 * shape.block, shape.long][random.below(4) as usize],
            fua: [0, 1, 4, 8][random.below(4) as usize],
            withdraw: [0, 0, 1, 3][random.below(4) as usize],
            looks: random.below(5),
        }
    }

    /// Where most operations are: on a few blocks, on a part of the device, or anywhere.
    fn hot(random: &mut Random, shape: &WorkloadShape<'_>) -> Option<(u64, u64)> {
        let count = match random.below(4) {
            0 => return None,
            1 => 1 + random.below(shape.long / 4),
            _ => shape.block * (1 + random.below(3)),
        };
        Some((random.below(shape.sectors - count), count))
    }

    fn step(&self, random: &mut Random, shape: &WorkloadShape<'_>) -> Step {
        let act = self.act(random, shape);
        let (first, mut count) = self.range(random, shape);
        if let Some(vast) = shape.vast
            && random.below(4) == 0
        {
            let most = match act {
                Act::Discard { .. } | Act::Zero { no_hole: false, .. } => vast,
                Act::Zero { .. } | Act::Extents => BARE * shape.long,
                _ => count,
            };
            count = count.max(random.below(most)).min(shape.sectors - first);
        }
        let withdraw = (random.below(8) < self.withdraw).then(|| random.below(4) as u8);
        Step { client: random.below(self.clients) as u8, act, first, count, withdraw }
    }

    fn act(&self, random: &mut Random, shape: &WorkloadShape<'_>) -> Act {
        let fua = random.below(8) < self.fua;
        let look = if self.looks < 4 { self.looks } else { random.below(4) };
        let mut lot = random.below(self.weights.iter().sum());
        let chosen = self.weights.iter().position(|&weight| {
            let here = lot < weight;
            lot = lot.wrapping_sub(weight);
            here
        });
        match chosen.expect("a lot below the sum falls on one of them") {
            0 if random.below(8) == 0 => Act::Extents,
            0 => Act::Read,
            1 => Act::Write { look, fua },
            2 => Act::Zero { fua, no_hole: random.below(2) == 0 },
            3 => Act::Discard { fua },
            4 => Act::Flush,
            5 => {
                let attribute = random.below(shape.attributes.len() as u64) as usize;
                Act::Set { attribute, value: random.below(shape.attributes[attribute] as u64) as usize }
            }
            _ => Act::Sleep([0, 10, 1000, 200_000][random.below(4) as usize]),
        }
    }

    fn range(&self, random: &mut Random, shape: &WorkloadShape<'_>) -> (u64, u64) {
        let (from, span) = match self.hot {
            Some(hot) if random.below(8) > 0 => hot,
            _ if shape.anchors.is_empty() => (0, shape.sectors),
            _ => {
                let anchor = shape.anchors[random.below(shape.anchors.len() as u64) as usize];
                let from = anchor.saturating_sub(NEAR);
                (from, (2 * NEAR).min(shape.sectors - from))
            }
        };
        let unit = if self.aligned { shape.block } else { 1 };
        let first = (from + random.below(span)) / unit * unit;
        let count = (1 + random.below(self.count_max)).next_multiple_of(unit);
        (first, count.min(shape.sectors - first))
    }
}

/// The steps of a workload.
pub fn swarm(random: &mut Random, shape: &WorkloadShape<'_>) -> Vec<Step> {
    let swarm = Swarm::draw(random, shape);
    let count = 1 + random.below(shape.steps_max);
    (0..count).map(|_| swarm.step(random, shape)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workloads_stay_on_the_device_and_differ() {
        let shape = WorkloadShape {
            sectors: 128,
            block: 8,
            steps_max: 40,
            attributes: &[3, 2],
            anchors: &[],
            long: 128,
            vast: None,
        };
        let mut flushes = Vec::new();
        for seed in 0..200 {
            let steps = swarm(&mut Random(seed), &shape);
            assert!(!steps.is_empty() && steps.len() <= 40);
            assert!(steps.iter().all(|step| step.count > 0 && step.first + step.count <= 128), "{steps:?}");
            flushes.push(steps.iter().filter(|step| step.act == Act::Flush).count() * 10 / steps.len());
        }
        assert!(flushes.contains(&0) && flushes.iter().any(|&share| share >= 5));
    }
}
