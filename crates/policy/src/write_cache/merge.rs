//! How scattered pieces become few I/Os: neighbours are merged, small gaps between them are filled, and batches have a limit.

use std::ops::Range;

/// Runs of numbers that hold all of `sorted`, each of at most `len_max`: gaps of at most `gap_max` numbers are included, since
/// another I/O would cost more.
pub fn runs(sorted: impl IntoIterator<Item = u64>, gap_max: u64, len_max: u64) -> Vec<Range<u64>> {
    assert!(len_max > 0, "a run has a number");
    let mut runs: Vec<Range<u64>> = Vec::new();
    for at in sorted {
        match runs.last_mut() {
            Some(run) if at < run.end => assert!(at >= run.start, "{at} behind {run:?}: they are in order"),
            Some(run) if at - run.end <= gap_max && at + 1 - run.start <= len_max => run.end = at + 1,
            _ => runs.push(at..at + 1),
        }
    }
    runs
}

/// Cuts pieces of these costs into batches: each costs at most `cost_max` in sum, or is a single piece.
pub fn batches(costs: impl IntoIterator<Item = usize>, cost_max: usize) -> Vec<Range<usize>> {
    let (mut batches, mut from, mut sum, mut end) = (Vec::new(), 0, 0usize, 0);
    for (at, cost) in costs.into_iter().enumerate() {
        if at > from && sum.saturating_add(cost) > cost_max {
            batches.push(from..at);
            (from, sum) = (at, 0);
        }
        sum = sum.saturating_add(cost);
        end = at + 1;
    }
    if end > from {
        batches.push(from..end);
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every set of numbers below ten, every gap, every length.
    #[test]
    fn runs_hold_everything_and_little_else() {
        for set in 0..1024u64 {
            let numbers: Vec<u64> = (0..10).filter(|at| set >> at & 1 == 1).collect();
            for (gap, len) in (0..4).flat_map(|gap| (1..6).map(move |len| (gap, len))) {
                let twice = numbers.iter().flat_map(|&number| [number, number]);
                let runs = runs(twice, gap, len);
                assert!(
                    numbers.iter().all(|number| runs.iter().filter(|run| run.contains(number)).count() == 1)
                );
                for run in &runs {
                    let held = |number: &u64| numbers.contains(number);
                    assert!(run.end - run.start <= len && held(&run.start) && held(&(run.end - 1)));
                    let holes: Vec<bool> = run.clone().map(|number| held(&number)).collect();
                    let longest = holes.split(|held| *held).map(<[bool]>::len).max();
                    assert!(longest <= Some(gap as usize), "{run:?} of {numbers:?}");
                }
                for pair in runs.windows(2) {
                    let merged =
                        pair[1].start - pair[0].end <= gap && pair[1].start + 1 - pair[0].start <= len;
                    assert!(pair[0].end <= pair[1].start && !merged);
                }
            }
        }
    }

    #[test]
    fn batches_are_as_large_as_they_may_be() {
        let ends = |costs: &[usize]| {
            batches(costs.iter().copied(), 10).iter().map(|batch| batch.end).collect::<Vec<_>>()
        };
        assert_eq!(ends(&[]), [0; 0]);
        assert_eq!(ends(&[11, 4, 6, 1, usize::MAX, 1, 9, 10]), [1, 3, 4, 5, 7, 8]);
        assert_eq!(ends(&[3; 7]), [3, 6, 7]);
    }
}
