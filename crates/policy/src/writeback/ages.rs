//! Ages of what is written back: the times of commits, and from them what is older than a limit.

use std::collections::VecDeque;
use std::time::Duration;

/// Commits closer than this are one.
const APART: Duration = Duration::from_millis(100);

/// Commits remembered; beyond that every other is forgotten, so that the old ones get sparse.
const TIMES_MAX: usize = 4096;

/// Which sequence numbers are too old. Callers pass the time.
#[derive(Clone, Debug)]
pub struct Ages {
    /// When each sequence number was reached, the oldest first. What is below a number was committed before its time.
    times: VecDeque<(Duration, u64)>,
    /// Numbers below this one are too old.
    expired: Option<u64>,
    /// The same of what had to be skipped.
    again: Option<u64>,
}

impl Ages {
    /// Everything below `number` counts as committed at `now`.
    pub fn new(now: Duration, number: u64) -> Self {
        Self { times: VecDeque::from([(now, number)]), expired: None, again: None }
    }

    /// Everything below `number` is committed.
    pub fn note(&mut self, now: Duration, number: u64) {
        let last = self.times.back();
        assert!(last.is_none_or(|(_, last)| *last <= number), "commit {number} after {last:?}");
        match self.times.back_mut() {
            Some((at, last)) if now.saturating_sub(*at) < APART => *last = number,
            _ => {
                if self.times.len() == TIMES_MAX {
                    let mut nth = 0;
                    self.times.retain(|_| {
                        nth += 1;
                        nth % 2 == 0
                    });
                }
                self.times.push_back((now, number));
            }
        }
    }

    /// What was committed until `time` expires, and what had to be skipped is tried again; whether anything is expired.
    pub fn expire_until(&mut self, time: Duration) -> bool {
        let reached = self.times.iter().take_while(|(at, _)| *at <= time).count();
        let before = self.times.drain(..reached).next_back().map(|(_, number)| number);
        self.expired = self.expired.max(before).max(self.again.take());
        self.expired.is_some()
    }

    /// Numbers below this one are expired.
    pub fn expired(&self) -> Option<u64> {
        self.expired
    }

    /// What is below `before` was written back, except for what had to be `skipped`: the next [`Ages::expire_until`] tries that again.
    pub fn end(&mut self, before: u64, skipped: bool) {
        assert!(self.expired >= Some(before), "{before} is expired, and {:?} is now", self.expired);
        // What has expired meanwhile was not asked for.
        self.expired = self.expired.filter(|&expired| expired > before);
        self.again = Some(before).filter(|_| skipped);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn years_of_commits_take_little_and_nothing_is_called_older_than_it_is() {
        let mut ages = Ages::new(Duration::ZERO, 0);
        for second in 1..1_000_000 {
            ages.note(SECONDS(second), second);
            assert!(ages.times.len() <= TIMES_MAX);
        }
        assert!(ages.expire_until(SECONDS(999_000)));
        let found = ages.expired().unwrap();
        assert!((998_000..=999_000).contains(&found), "{found}");
        ages.end(found, false);
        assert!(!ages.expire_until(SECONDS(999_000)));
    }

    #[test]
    fn what_was_skipped_expires_again_and_nothing_else() {
        let mut ages = Ages::new(SECONDS(1), 5);
        ages.note(SECONDS(10), 9);
        assert!(!ages.expire_until(Duration::ZERO));
        assert!(ages.expire_until(SECONDS(2)) && ages.expired() == Some(5));
        ages.end(5, true);
        assert_eq!(ages.expired(), None);
        assert!(ages.expire_until(SECONDS(3)) && ages.expired() == Some(5));
        ages.end(5, false);
        assert!(!ages.expire_until(SECONDS(3)));
        assert!(ages.expire_until(SECONDS(10)) && ages.expired() == Some(9), "it only rises");
    }

    #[test]
    fn what_expires_during_a_lap_for_less_is_not_forgotten() {
        let mut ages = Ages::new(SECONDS(1), 5);
        ages.note(SECONDS(10), 9);
        assert!(ages.expire_until(SECONDS(2)) && ages.expire_until(SECONDS(10)));
        ages.end(5, false);
        assert_eq!(ages.expired(), Some(9));
        ages.end(9, false);
        assert_eq!(ages.expired(), None);
    }
}
