//! Crowds: several clients of a write cache write, zero and discard the same few blocks at the same time, beside a drain, or while all that is new bypasses
//! the cache.

use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

use crate::row::Row;

/// Clients of a crowd.
const CLIENTS: u64 = 5;

/// Most blocks that they write.
const BLOCKS_MAX: u64 = 4;

/// What sends writes around the cache, or out of it at once. The last value of each does.
const WAYS: [&str; 3] = ["drain", "cleaner", "max_age"];

/// Puts a crowd into `steps`, in a quarter of the phases. By a chance of their own, so that the rest of a story is what it was.
pub(crate) fn put_crowds(random: &Random, row: &Row, steps: &mut Vec<Step>) {
    let mut random = Random(random.0 ^ 0x6372_6f77_6400);
    if random.below(4) == 0 {
        let at = random.below(steps.len() as u64 + 1) as usize;
        steps.splice(at..at, crowd(&mut random, row));
    }
}

fn crowd(random: &mut Random, row: &Row) -> Vec<Step> {
    let block = row.block().bytes() / spillway_core::SECTOR;
    let blocks = row.sectors() / block;
    let count = 1 + random.below(BLOCKS_MAX.min(blocks));
    let first = random.below(blocks - count + 1);
    let mut step = |act: fn(&mut Random) -> Act, first, count| {
        let (act, client) = (act(random), random.below(CLIENTS) as u8);
        Step { client, act, first, count, withdraw: None }
    };
    let act = |random: &mut Random| match random.below(8) {
        0..3 => Act::Read,
        3 => Act::Zero { fua: false, no_hole: false },
        4 => Act::Discard { fua: false },
        _ => Act::Write { look: random.below(4), fua: random.below(8) == 0 },
    };
    let mut steps = Vec::new();
    for number in 0..24 {
        steps.push(step(act, first * block, count * block));
        if number % 8 == 7 {
            steps.push(step(|_| Act::Flush, 0, 1));
        }
    }
    let ways = row.knobs.iter().enumerate().filter(|(_, (name, _))| WAYS.contains(name));
    let ways: Vec<usize> = ways.map(|(attribute, _)| attribute).collect();
    if let Some(&attribute) = ways.get(random.below(ways.len() as u64 + 1) as usize) {
        let value = row.knobs[attribute].1.len() - 1;
        let at = random.below(4) as usize;
        steps.insert(at, Step { act: Act::Set { attribute, value }, ..steps[at] });
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks;

    #[test]
    fn a_crowd_writes_the_same_blocks_beside_what_sends_it_around_the_cache() {
        let row = stacks::find("write-cache-small").expect("there is such a row");
        let mut around = 0;
        for seed in 0..200 {
            let steps = crowd(&mut Random(seed), row);
            let to_device = |step: &&Step| !matches!(step.act, Act::Flush | Act::Set { .. });
            let writes: Vec<&Step> = steps.iter().filter(to_device).collect();
            let range = (writes[0].first, writes[0].count);
            assert!(writes.iter().all(|step| (step.first, step.count) == range));
            assert!(range.0 + range.1 <= row.sectors() && writes.iter().any(|step| step.client != 0));
            around += steps.iter().filter(|step| matches!(step.act, Act::Set { .. })).count();
        }
        assert!((50..=190).contains(&around), "{around} times");
    }
}
