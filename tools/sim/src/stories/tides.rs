//! Tides: of two devices in one memory, the second one fills what others leave of it, and gives it back; then a client of the first writes.

use spillway_core::random::Random;
use spillway_sim::workload::{Act, Step};

use crate::stacks::others::OTHERS;
use crate::stacks::row::Row;

/// Microseconds after which whatever else there is to be done has mostly ended.
const LATER: u64 = 3_000_000;

/// Pages that are written then, at most.
const PAGES_MAX: u64 = 8;

/// Most steps of the second device, which is larger than others, beside these.
const BESIDE_MAX: usize = 12;

/// What clients of the `first` device and of the `second` do, and what attributes of the first are at the start; in most phases.
pub(crate) fn put_tides(
    random: &mut Random,
    (first, second): (&Row, &Row),
    (steps, beside): (&mut Vec<Step>, &mut Vec<Step>),
    knobs: &mut Vec<(usize, usize)>,
) {
    beside.truncate(BESIDE_MAX);
    if !second.exact || first.sectors() <= 8 * PAGES_MAX || random.below(4) == 0 {
        return;
    }
    if let Some(others) = first.knobs.iter().position(|(name, _)| *name == OTHERS) {
        knobs.retain(|(attribute, _)| *attribute != others);
        knobs.push((others, random.below(first.knobs[others].1.len() as u64) as usize));
    }
    let step = |act, first, count| Step { client: 0, act, first, count, withdraw: None };
    let flood = step(Act::Write { look: 2 + random.below(2), fua: false }, 0, second.sectors());
    let ebb = step(Act::Discard { fua: false }, 0, second.sectors());
    let ebbs = random.below(4) > 0;
    beside.extend([flood, ebb].into_iter().take(1 + usize::from(ebbs)));
    let pages = 1 + random.below(PAGES_MAX);
    let at = 8 * random.below(first.sectors() / 8 - pages);
    let write = step(Act::Write { look: random.below(4), fua: false }, at, 8 * pages);
    steps.extend([step(Act::Sleep(LATER), 0, 1), write]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::find;

    #[test]
    fn the_second_device_is_filled_and_emptied_before_the_first_writes() {
        let first = find("zram-pair").expect("there is such a row");
        let mut ebbs = 0;
        for seed in 0..100 {
            for second in first.beside {
                let (mut steps, mut beside, mut knobs) = (vec![], vec![], vec![(1, 2)]);
                put_tides(&mut Random(seed), (first, second), (&mut steps, &mut beside), &mut knobs);
                let whole = |step: &Step| step.first == 0 && step.count == second.sectors();
                assert!(
                    beside.iter().all(whole) && knobs.len() == 1 && beside.is_empty() == steps.is_empty()
                );
                assert!(steps.iter().all(|step| step.first + step.count <= first.sectors()));
                ebbs += usize::from(beside.len() == 2);
            }
        }
        assert!(ebbs > 50, "{ebbs} times");
    }
}
