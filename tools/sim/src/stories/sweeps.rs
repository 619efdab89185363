//! Sweeps: zeroes and discards over thousands of blocks, with a small write somewhere in them just before.

use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

use crate::stacks::row::Row;

/// Most sweeps of a phase.
const SWEEPS_MAX: u64 = 2;

/// Blocks that a walk over the index of a write cache looks at in one step; sweeps end near multiples of it, or anywhere.
const SLICE: u64 = 2048;

/// Puts sweeps into `steps`, in a quarter of the phases: what is full stays so in the others. By a chance of their own, so that the rest of
/// a story is what it was.
pub(crate) fn put_sweeps(random: &Random, row: &Row, steps: &mut Vec<Step>) {
    let mut random = Random(random.0 ^ 0x7377_6565_7000);
    if random.below(4) > 0 {
        return;
    }
    for _ in 0..=random.below(SWEEPS_MAX) {
        let at = random.below(steps.len() as u64 + 1) as usize;
        let client = steps.get(at).map_or(0, |step| step.client);
        steps.splice(at..at, sweep(&mut random, row, client));
    }
}

/// A write, perhaps a flush, and the sweep over it.
fn sweep(random: &mut Random, row: &Row, client: u8) -> Vec<Step> {
    let (first, count) = range(random, row);
    let step = |act, first, count| Step { client, act, first, count, withdraw: None };
    let written = first + random.below(count);
    let len = (1 + random.below(8)).min(first + count - written);
    let fua = random.below(8) == 0;
    let sweeps = match random.below(3) {
        0 => Act::Discard { fua },
        _ => Act::Zero { fua, no_hole: false },
    };
    let mut steps = vec![step(Act::Write { look: random.below(4), fua: false }, written, len)];
    if random.below(4) == 0 {
        steps.push(step(Act::Flush, 0, 1));
    }
    steps.push(step(sweeps, first, count));
    steps
}

/// From near an anchor, up to a few slices long.
fn range(random: &mut Random, row: &Row) -> (u64, u64) {
    let anchors = row.anchors();
    let anchor = anchors[random.below(anchors.len() as u64) as usize];
    let first = anchor.saturating_sub(random.below(8));
    let slices = (1 + random.below(4)) * SLICE;
    let count = if random.below(2) == 0 { slices - 2 + random.below(5) } else { 1 + random.below(slices) };
    (first, count.min(row.sectors() - first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks;

    #[test]
    fn sweeps_stay_on_the_device_and_cross_the_end_of_a_slice() {
        let row = stacks::find("write-cache-full").expect("there is such a row");
        let mut late = 0;
        for seed in 0..400 {
            let steps = sweep(&mut Random(seed), row, 3);
            let (write, sweep) = (steps.first().expect("a write"), steps.last().expect("a sweep"));
            let end = sweep.first + sweep.count;
            assert!(write.first >= sweep.first && write.first + write.count <= end && end <= row.sectors());
            late += usize::from(write.first >= sweep.first + SLICE);
        }
        assert!(late > 50, "{late} of 400 writes lie behind the first slice");
    }
}
