//! When what was committed: enough of it to tell which versions are older than an age.

use std::collections::VecDeque;
use std::time::Duration;

/// Commits closer than this are one.
const APART: Duration = Duration::from_millis(100);

/// Commits remembered; beyond that every other is forgotten, so that the old ones get sparse.
const TIMES_MAX: usize = 4096;

/// Times and the superblock's seq_count from then on, the oldest first.
pub(super) struct CommitTimes(VecDeque<(Duration, u64)>);

impl CommitTimes {
    /// Everything before `seq_count` counts as committed at `now`.
    pub(super) fn new(now: Duration, seq_count: u64) -> Self {
        Self(VecDeque::from([(now, seq_count)]))
    }

    /// The superblock has `seq_count` now.
    pub(super) fn note(&mut self, now: Duration, seq_count: u64) {
        if let Some((at, last)) = self.0.back_mut()
            && now.saturating_sub(*at) < APART
        {
            *last = seq_count;
            return;
        }
        if self.0.len() == TIMES_MAX {
            let mut nth = 0;
            self.0.retain(|_| {
                nth += 1;
                nth % 2 == 0
            });
        }
        self.0.push_back((now, seq_count));
    }

    /// The seq_count at `time`: what is in epochs below was committed before. Times up to that are forgotten.
    pub(super) fn take_until(&mut self, time: Duration) -> Option<u64> {
        let mut found = None;
        while self.0.front().is_some_and(|(at, _)| *at <= time) {
            found = self.0.pop_front().map(|(_, seq_count)| seq_count);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn years_of_commits_take_little_and_nothing_is_called_older_than_it_is() {
        let mut times = CommitTimes::new(Duration::ZERO, 0);
        for second in 1..1_000_000 {
            times.note(Duration::from_secs(second), second);
            assert!(times.0.len() <= TIMES_MAX);
        }
        let found = times.take_until(Duration::from_secs(999_000)).unwrap();
        assert!((998_000..=999_000).contains(&found), "{found}");
        assert_eq!(times.take_until(Duration::from_secs(999_000)), None);
    }
}
