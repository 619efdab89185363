//! Since when writes are acknowledged that no flush has covered, and how many bytes are about to be.
//!
//! A flush covers the writes that were acknowledged before it began. So they are noted by the flush that comes next; of those that
//! share one only the oldest is kept.

use std::collections::VecDeque;
use std::time::Duration;

/// Notes that are kept: more would be there only where flushes fail. Then the last two are one, by the older time and the later flush.
const NOTES_MAX: usize = 16;

/// See the head of this file. Callers pass the time.
#[derive(Clone, Debug, Default)]
pub struct Exposure {
    /// Bytes of writes that were admitted and are not acknowledged yet.
    admitted: u64,
    /// Flushes that have begun.
    flushes: u64,
    /// How many flushes had begun when a write was acknowledged, and when that was; both grow.
    notes: VecDeque<(u64, Duration)>,
}

impl Exposure {
    /// A write of so many bytes begins.
    pub fn admit(&mut self, bytes: u64) {
        self.admitted += bytes;
    }

    /// It is acknowledged, or withdrawn: some of it may be there.
    pub fn acknowledge(&mut self, bytes: u64, now: Duration) {
        assert!(self.admitted >= bytes, "{bytes} of {} admitted bytes end", self.admitted);
        self.admitted -= bytes;
        self.note(now);
    }

    /// A write was acknowledged that nobody admitted.
    pub fn note(&mut self, now: Duration) {
        let full = self.notes.len() == NOTES_MAX;
        match self.notes.back_mut() {
            Some((flushes, _)) if *flushes == self.flushes || full => *flushes = self.flushes,
            _ => self.notes.push_back((self.flushes, now)),
        }
    }

    /// A flush begins; its number, for [`Exposure::end_flush`] where it succeeds.
    pub fn begin_flush(&mut self) -> u64 {
        self.flushes += 1;
        self.flushes
    }

    /// The flush of that number has succeeded.
    pub fn end_flush(&mut self, number: u64) {
        assert!((1..=self.flushes).contains(&number), "flush {number} of {} ends", self.flushes);
        while self.notes.front().is_some_and(|(flushes, _)| *flushes < number) {
            self.notes.pop_front();
        }
    }

    /// Bytes of writes that were admitted and are not acknowledged yet.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// How long the oldest write has been acknowledged that no flush has covered; `None` where there is none.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        self.notes.front().map(|(_, since)| now.saturating_sub(*since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_began() {
        let mut exposure = Exposure::default();
        exposure.admit(10);
        exposure.admit(5);
        exposure.acknowledge(10, S(1));
        let first = exposure.begin_flush();
        exposure.acknowledge(5, S(3));
        assert_eq!((exposure.admitted(), exposure.age(S(4))), (0, Some(S(3))), "until the flush has ended");
        exposure.end_flush(first);
        assert_eq!(exposure.age(S(4)), Some(S(1)));
        let [second, third] = [(); 2].map(|()| exposure.begin_flush());
        exposure.end_flush(third);
        assert_eq!(exposure.age(S(9)), None, "the later one covers it as well");
        exposure.note(S(10));
        exposure.end_flush(second);
        assert_eq!(exposure.age(S(10)), Some(S(0)));
    }

    /// Against a list of all writes: the age is never less than it is, and exact where no two notes have become one.
    #[test]
    fn no_write_is_younger_than_it_looks() {
        for seed in 0..200u64 {
            let mut state = seed + 1;
            let mut next = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut exposure, mut writes, mut flushes) = (Exposure::default(), Vec::new(), Vec::new());
            let mut merged = false;
            for now in 0..400 {
                match next(4) {
                    0 | 1 => {
                        exposure.note(S(now));
                        writes.push(now);
                    }
                    2 => flushes.push((exposure.begin_flush(), now)),
                    _ if flushes.is_empty() => {}
                    _ => {
                        let (number, begun) = flushes.remove(next(flushes.len() as u64) as usize);
                        // Every other seed has flushes that fail.
                        if seed.is_multiple_of(2) || next(2) == 0 {
                            exposure.end_flush(number);
                            writes.retain(|write| *write > begun);
                        }
                    }
                }
                let age = exposure.age(S(now)).map_or(0, |age| age.as_secs());
                let oldest = writes.first().map_or(0, |write| now - write);
                assert!(age >= oldest, "seed {seed} at {now}: {age}, and a write is {oldest} old");
                merged = exposure.notes.len() == NOTES_MAX || merged && !exposure.notes.is_empty();
                assert!(age == oldest || merged, "seed {seed} at {now}: {age}");
            }
        }
    }
}
