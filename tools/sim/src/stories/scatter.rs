//! What a device that compresses holds, scattered: a run of blocks of one length or of many, most of which are freed again. Long writes
//! follow.
//!
//! What is left keeps spans that are hardly used, so that moving objects together frees much. A write of another length finds no memory
//! at the limit before that has happened.

use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

/// Sectors of a block.
const BLOCK: u64 = 8;

/// Blocks written at once where all have one length.
const AT_ONCE: u64 = 64;

/// Fewest blocks of a run, and most that have lengths of their own.
const RUN_MIN: u64 = 128;
const RUN_MIXED: u64 = 512;

/// Most blocks of which one or two stay.
const STRIDE_MAX: u64 = 16;

/// What the first client does first, on a device of so many sectors.
pub fn scattered(random: &mut Random, sectors: u64) -> Vec<Step> {
    let half = sectors / BLOCK / 2;
    let mixed = random.below(2) == 0;
    let count = RUN_MIN + random.below(if mixed { RUN_MIXED } else { half } - RUN_MIN);
    let first = random.below(half - RUN_MIN);
    let (look, at_once) = if mixed { (1, 1) } else { (2, AT_ONCE) };
    let stride = 2 + random.below(STRIDE_MAX - 1);
    let stay = 1 + random.below((stride - 1).min(2));
    let write = Act::Write { look, fua: false };
    let writes = runs(first, count, at_once).map(|(first, count)| step(write, first, count));
    let frees = runs(first, count, stride).filter(|(_, count)| *count > stay);
    let frees = frees.map(|(first, count)| step(Act::Discard { fua: false }, first + stay, count - stay));
    let again = (0..1 + random.below(4)).map(|_| {
        let act = Act::Write { look: 1 + random.below(2), fua: false };
        step(act, half + random.below(half - AT_ONCE), AT_ONCE)
    });
    let again: Vec<Step> = again.collect();
    writes.chain(frees).chain(again).collect()
}

/// Blocks in runs of at most `len`: first ones and counts.
fn runs(first: u64, count: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
    let end = first + count;
    (first..end).step_by(len as usize).map(move |at| (at, len.min(end - at)))
}

fn step(act: Act, first: u64, count: u64) -> Step {
    Step { client: 0, act, first: first * BLOCK, count: count * BLOCK, withdraw: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_of_what_is_written_is_freed_again() {
        for seed in 0..200 {
            let mut blocks = vec![false; 4096];
            let steps = scattered(&mut Random(seed), 4096 * BLOCK);
            let mut written = 0;
            let last_free = steps.iter().rposition(|step| matches!(step.act, Act::Discard { .. }));
            assert!(last_free.is_some_and(|last| last + 1 < steps.len()), "seed {seed}: nothing follows");
            for step in &steps[..=last_free.unwrap_or(0)] {
                let holds = matches!(step.act, Act::Write { .. });
                let range = (step.first / BLOCK) as usize..((step.first + step.count) / BLOCK) as usize;
                written += if holds { range.len() } else { 0 };
                blocks[range].fill(holds);
            }
            let left = blocks.iter().filter(|&&holds| holds).count();
            assert!(left > 0 && left * 10 <= written * 7, "seed {seed}: {left} of {written}");
        }
    }
}
