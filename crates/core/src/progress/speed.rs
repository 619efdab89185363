//! The rate of a work of late, from samples that its readers take.

use std::collections::VecDeque;
use std::time::Duration;

/// The rate is that of at least so long, or of the whole work: bursts and pauses of a second do not make an estimate jump.
const WINDOW: Duration = Duration::from_secs(20);

/// Samples are at least so far apart, however many readers look.
const APART: Duration = Duration::from_millis(500);

/// From so long on a rate is meaningful.
const MEANINGFUL: Duration = Duration::from_secs(1);

/// Samples at most: those of a window, and the one before it.
const SAMPLES_MAX: usize = (WINDOW.as_millis() / APART.as_millis()) as usize + 2;

/// See the head of this file.
pub(super) struct Speed {
    /// Times and amounts; the oldest is the only one that may be older than the window.
    samples: VecDeque<(Duration, u64)>,
}

impl Speed {
    /// Of a work that has `done` so much when it begins.
    pub(super) fn new(now: Duration, done: u64) -> Self {
        Self { samples: [(now, done)].into() }
    }

    /// Bytes a second up to now. `None` before it is meaningful, and while nothing is done.
    pub(super) fn look(&mut self, now: Duration, done: u64) -> Option<f64> {
        let (last, before) = *self.samples.back().expect("there is one from the beginning on");
        if done < before {
            // There is more to do than before: what was measured is of no use for that.
            *self = Self::new(now, done);
            return None;
        }
        if now >= last + APART {
            self.samples.push_back((now, done));
        }
        while self.samples.get(1).is_some_and(|(time, _)| *time + WINDOW <= now) {
            self.samples.pop_front();
        }
        assert!(self.samples.len() <= SAMPLES_MAX, "{} samples", self.samples.len());
        let (since, before) = self.samples[0];
        let span = now.saturating_sub(since);
        (span >= MEANINGFUL && done > before).then(|| (done - before) as f64 / span.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const MIB: u64 = 1 << 20;

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_rate_is_told_once_it_is_meaningful() {
        let mut speed = Speed::new(at(0), 5);
        assert_eq!(speed.look(at(999), 1000), None, "too early");
        assert_eq!(speed.look(at(2000), 2005), Some(1000.0));
        let mut idle = Speed::new(at(0), 5);
        assert_eq!(idle.look(at(60_000), 5), None, "nothing is done");
        assert_eq!(idle.look(at(61_000), 4), None, "there is more to do");
        assert_eq!(idle.look(at(63_000), 6), Some(1.0), "measured anew");
    }

    #[test]
    fn it_follows_the_work_within_a_window() {
        let mut speed = Speed::new(at(0), 0);
        for second in 1..=60 {
            speed.look(at(second * 1000), second * 100);
        }
        let slower = (61..=90).map(|second| speed.look(at(second * 1000), 6000 + (second - 60) * 10));
        let rates: Vec<_> = slower.flatten().collect();
        assert!(rates.is_sorted_by(|one, next| one >= next), "it only falls: {rates:?}");
        assert_eq!((rates.len(), rates[29]), (30, 10.0));
        let stands: Vec<_> = (91..=120).map(|second| speed.look(at(second * 1000), 6300)).collect();
        assert!(stands[5].is_some() && stands[25].is_none(), "it ends a window later: {stands:?}");
    }

    /// 2 GiB in batches of 4 MiB, at 100 MiB/s with a second lost after each 5: readers of any rhythm see a time left that is right and does not
    /// jump.
    #[test]
    fn an_estimate_is_near_the_truth_and_does_not_jump() {
        for every in [100, 200, 1000, 5000] {
            let (mut random, mut speed, total) = (Random(every), Speed::new(at(0), 0), 2048 * MIB);
            let (mut now, mut done, mut next, mut estimates) = (0, 0, every, Vec::new());
            while done < total {
                now += 30 + random.below(20);
                now += if done % (512 * MIB) == 256 * MIB { 1000 } else { 0 };
                while next < now {
                    let left = |rate| (total - done) as f64 / rate;
                    estimates.extend(speed.look(at(next), done).map(|rate| (next, left(rate))));
                    next += every;
                }
                done += 4 * MIB;
            }
            let end = now;
            for pair in estimates.windows(2) {
                let [(before, one), (then, other)] = pair else { unreachable!("windows of two") };
                let (truth, step) = ((end - then) as f64 / 1000.0, (then - before) as f64 / 1000.0);
                let error = (other - truth).abs();
                assert!(
                    *then < 3000 || error < 2.5 + truth / 4.0,
                    "{other} s for {truth} s at {then}, every {every}"
                );
                let jump = (one - step - other).abs();
                assert!(
                    *then < 3000 || jump < 1.5 + step / 2.0 + other / 4.0,
                    "{one} s, {step} s later {other} s, every {every}"
                );
            }
            assert!(estimates.len() > 3);
        }
    }

    #[test]
    fn many_readers_cost_no_more_memory() {
        let mut speed = Speed::new(at(0), 0);
        for millis in 1..200_000 {
            speed.look(at(millis), millis);
        }
        assert!(speed.samples.len() <= SAMPLES_MAX);
    }
}
