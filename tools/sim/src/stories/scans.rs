//! Scans: clients that read on and on in equal steps, so that something is read ahead of them, among what the other clients do.

use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

use crate::stacks::row::Row;

/// Most scans of a phase, and most reads of one.
const SCANS_MAX: u64 = 3;
const READS_MAX: u64 = 16;

/// Puts scans into `steps`.
pub(crate) fn put_scans(random: &mut Random, row: &Row, steps: &mut Vec<Step>) {
    let clients = steps.iter().map(|step| step.client).max().unwrap_or(0) + 1;
    for _ in 0..random.below(SCANS_MAX + 1) {
        // One more client may do nothing else.
        let client = random.below(u64::from(clients) + 1) as u8;
        let mut at = random.below(steps.len() as u64 + 1) as usize;
        for (first, count) in scan(random, row) {
            steps.insert(at, Step { client, act: Act::Read, first, count, withdraw: None });
            at = (at + 1 + random.below(3) as usize).min(steps.len());
        }
    }
}

/// Sectors of the reads of a scan: mostly one behind the other, else upwards or downwards with gaps.
fn scan(random: &mut Random, row: &Row) -> Vec<(u64, u64)> {
    let unit = row.block().bytes() / spillway_core::SECTOR;
    let count = unit * (1 + random.below(3));
    let step = if random.below(2) == 0 { count } else { unit * (1 + random.below(6)) };
    let first = random.below(row.sectors() / unit) * unit;
    let reads = 3 + random.below(READS_MAX - 2);
    let up = (0..reads).map(|nth| first + nth * step);
    let firsts: Vec<u64> = up.take_while(|first| first + count <= row.sectors()).collect();
    let down = random.below(4) == 0;
    let ordered: Vec<u64> = if down { firsts.into_iter().rev().collect() } else { firsts };
    ordered.into_iter().map(|first| (first, count)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks;

    #[test]
    fn scans_stay_on_the_device_and_have_equal_steps() {
        let row = stacks::find("page-cache-small").expect("there is such a row");
        let mut long = 0;
        for seed in 0..200 {
            let reads = scan(&mut Random(seed), row);
            assert!(reads.iter().all(|(first, count)| first + count <= row.sectors()), "seed {seed}");
            let steps: Vec<i64> = reads.windows(2).map(|pair| pair[1].0 as i64 - pair[0].0 as i64).collect();
            assert!(steps.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}: {steps:?}");
            long += usize::from(reads.len() >= 4);
        }
        assert!(long > 100, "{long} of 200 are long enough for something to be read ahead");
    }
}
