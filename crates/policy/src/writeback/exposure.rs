//! Since when writes are acknowledged that no flush has covered, how many bytes these are, and how many are about to be.
//!
//! A flush covers the writes that were acknowledged before it began. So they are noted by the flush that comes next; of those that
//! share one only the oldest is kept.

use std::collections::VecDeque;
use std::time::Duration;

/// Notes that are kept: more would be there only where flushes fail. Then the last two are one, by the older time and the later flush.
const NOTES_MAX: usize = 16;

/// Writes that the next flush covers.
#[derive(Clone, Debug)]
struct Note {
    /// Flushes that had begun when the last of them was acknowledged.
    flushes: u64,
    /// When the first of them was.
    since: Duration,
    /// Bytes of all of them.
    bytes: u64,
}

/// See the head of this file. Callers pass the time.
#[derive(Clone, Debug, Default)]
pub struct Exposure {
    /// Bytes of writes that were admitted and are not acknowledged yet.
    admitted: u64,
    /// Flushes that have begun.
    flushes: u64,
    /// Writes under way that are durable once they are acknowledged.
    forced: u64,
    /// By flushes and time, which both grow.
    notes: VecDeque<Note>,
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
        self.note(bytes, now);
    }

    /// A write that is durable once it is acknowledged begins.
    pub fn begin_forced(&mut self) {
        self.forced += 1;
    }

    /// It is acknowledged, or withdrawn.
    pub fn end_forced(&mut self) {
        assert!(self.forced > 0, "a write that ends has begun");
        self.forced -= 1;
    }

    /// So many bytes were acknowledged that nobody admitted.
    pub fn note(&mut self, bytes: u64, now: Duration) {
        let (flushes, full) = (self.flushes, self.notes.len() == NOTES_MAX);
        match self.notes.back_mut() {
            Some(last) if last.flushes == flushes || full => {
                *last = Note { flushes, bytes: last.bytes.saturating_add(bytes), ..*last };
            }
            _ => self.notes.push_back(Note { flushes, since: now, bytes }),
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
        while self.notes.front().is_some_and(|note| note.flushes < number) {
            self.notes.pop_front();
        }
    }

    /// Bytes of writes that were admitted and are not acknowledged yet.
    pub fn admitted(&self) -> u64 {
        self.admitted
    }

    /// What of so many bytes that are not durable yet is acknowledged, at most. Only while writes are under way that are durable once they are
    /// acknowledged may these be more than what was acknowledged since the last flush began that has succeeded.
    pub fn acknowledged_of(&self, bytes: u64) -> u64 {
        let noted = || self.notes.iter().fold(0u64, |sum, note| sum.saturating_add(note.bytes));
        if self.forced == 0 { bytes } else { bytes.min(noted()) }
    }

    /// How long the oldest write has been acknowledged that no flush has covered; `None` where there is none.
    pub fn age(&self, now: Duration) -> Option<Duration> {
        self.notes.front().map(|note| now.saturating_sub(note.since))
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
        exposure.note(7, S(10));
        exposure.end_flush(second);
        assert_eq!(exposure.age(S(10)), Some(S(0)));
    }

    #[test]
    fn what_is_under_way_to_be_durable_is_not_taken_for_acknowledged() {
        let mut exposure = Exposure::default();
        exposure.admit(10);
        exposure.acknowledge(10, S(1));
        assert_eq!(exposure.acknowledged_of(90), 90, "it can be nothing else");
        exposure.begin_forced();
        assert_eq!((exposure.acknowledged_of(90), exposure.acknowledged_of(4)), (10, 4));
        let flush = exposure.begin_flush();
        exposure.note(3, S(2));
        assert_eq!(exposure.acknowledged_of(90), 13, "until the flush has ended");
        exposure.end_flush(flush);
        assert_eq!(exposure.acknowledged_of(90), 3);
        exposure.note(u64::MAX, S(3));
        assert_eq!(exposure.acknowledged_of(90), 90, "how much was acknowledged is not known");
        exposure.end_forced();
        assert_eq!(exposure.acknowledged_of(90), 90);
    }

    /// Against a list of all writes: the bytes are never fewer than they are, and the age is never less than it is, and exact where no two notes have become one.
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
                        exposure.note(1, S(now));
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
                let bytes: u64 = exposure.notes.iter().map(|note| note.bytes).sum();
                assert!(bytes >= writes.len() as u64, "seed {seed} at {now}: {bytes} of {}", writes.len());
                merged = exposure.notes.len() == NOTES_MAX || merged && !exposure.notes.is_empty();
                assert!(age == oldest || merged, "seed {seed} at {now}: {age}");
            }
        }
    }
}
