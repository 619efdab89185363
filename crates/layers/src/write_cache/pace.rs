//! How fast the origin takes writes, and how much of it copies may have in flight and writes around the cache may leave
//! unflushed: a flush of the origin waits for them.
//!
//! An origin with a page cache takes writes faster than it makes them durable, so flushes are measured too.

use std::collections::BTreeMap;
use std::time::Duration;

/// So much of the origin's time may be taken ahead.
const AHEAD: Duration = Duration::from_millis(500);

/// What may be in hand before anything was measured, and at least.
const BYTES_MIN: u64 = 1 << 20;

/// A measure is taken over at least this time.
const SPAN: Duration = Duration::from_millis(100);

/// See the head of this file. Callers pass the time.
#[derive(Debug, Default)]
pub(super) struct Pace {
    writes: u32,
    /// When the present measure, or the present stretch of time with writes in flight, began.
    since: Duration,
    /// Time with writes in flight that belongs to the present measure, before `since`.
    busy: Duration,
    bytes: u64,
    bytes_per_second: u64,
    /// Of flushes; 0 before one was measured.
    flush_bytes_per_second: u64,
    /// Bytes of writes around the cache in flight.
    around_bytes: u64,
    around_at: Option<Duration>,
    /// Writes that wait to go around the cache, in the order of arrival, and the bytes of their next part.
    line: BTreeMap<u64, u64>,
    next_ticket: u64,
    written: Written,
    /// The part of `written` that flushes have covered.
    flushed: Written,
}

/// Bytes of writes to the origin that have ended since the cache was opened.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    all: u64,
    around: u64,
}

impl Pace {
    /// A write to the origin begins.
    pub(super) fn begin(&mut self, now: Duration) {
        if self.writes == 0 {
            self.since = now;
        }
        self.writes += 1;
    }

    /// A write to the origin has ended.
    pub(super) fn end(&mut self, now: Duration, bytes: u64) {
        self.writes -= 1;
        self.bytes += bytes;
        self.written.all += bytes;
        let span = self.busy + now.saturating_sub(self.since);
        if self.writes == 0 {
            self.busy = span;
        }
        if span >= SPAN {
            let measured = (u128::from(self.bytes) * 1_000_000_000 / span.as_nanos()) as u64;
            self.bytes_per_second = match self.bytes_per_second {
                0 => measured,
                before => before / 2 + measured / 2,
            };
            (self.since, self.busy, self.bytes) = (now, Duration::ZERO, 0);
        }
    }

    /// Bytes a second, as last measured; 0 before that.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Bytes that the origin takes, and flushes, in half a second; some before that was measured.
    pub(super) fn ahead(&self) -> u64 {
        let flushed = Some(self.flush_bytes_per_second).filter(|&speed| speed > 0).unwrap_or(u64::MAX);
        let speed = u128::from(self.bytes_per_second.min(flushed));
        (speed * AHEAD.as_millis() / 1000).max(u128::from(BYTES_MIN)) as u64
    }

    /// Bytes of writes around the cache that have ended and are not flushed.
    pub(super) fn unflushed(&self) -> u64 {
        self.written.around - self.flushed.around
    }

    /// Whether so much more may go around the cache. A single write always may.
    fn has_room(&self, bytes: u64) -> bool {
        let waiting = self.around_bytes + self.unflushed();
        waiting == 0 || waiting + bytes <= self.ahead()
    }

    /// The most that goes around the cache at once: longer writes go in parts, so that they find room beside others.
    pub(super) fn part_bytes(&self) -> u64 {
        self.ahead() / 2
    }

    /// Begins a write around the cache if there is room and nobody came before. Otherwise its `ticket` says that it waits in line,
    /// until [`Pace::leave_line`].
    pub(super) fn enter(&mut self, ticket: &mut Option<u64>, bytes: u64) -> bool {
        let first = self.line.keys().next().copied();
        let goes = (first.is_none() || first == *ticket) && self.has_room(bytes);
        if goes {
            self.around_bytes += bytes;
            return true;
        }
        let place = *ticket.get_or_insert_with(|| {
            self.next_ticket += 1;
            self.next_ticket
        });
        self.line.insert(place, bytes);
        false
    }

    /// A write goes, or does not want to go around the cache any more; whether the next in line may go.
    pub(super) fn leave_line(&mut self, ticket: u64) -> bool {
        self.line.remove(&ticket).expect("it stands in line");
        self.line.values().next().is_some_and(|&bytes| self.has_room(bytes))
    }

    /// A flush of the origin begins: it covers what has been written so far.
    pub(super) fn begin_flush(&self) -> Written {
        self.written
    }

    /// A flush that covers `covers` has succeeded, and took so long.
    pub(super) fn end_flush(&mut self, covers: Written, took: Duration) {
        let bytes = covers.all.saturating_sub(self.flushed.all);
        if took > Duration::ZERO {
            let measured = (u128::from(bytes) * 1_000_000_000 / took.as_nanos()) as u64;
            self.flush_bytes_per_second = match self.flush_bytes_per_second {
                // Little work says more of the cost of a flush than of its speed; or of an origin that had written it before.
                0 if bytes < BYTES_MIN => 0,
                0 => measured,
                before if bytes < BYTES_MIN => before.max(measured.min(before.saturating_mul(2))),
                before => before / 2 + measured / 2,
            };
        }
        self.flushed.all = self.flushed.all.max(covers.all);
        self.flushed.around = self.flushed.around.max(covers.around);
    }

    /// So much went around the cache.
    pub(super) fn end_around(&mut self, now: Duration, bytes: u64) {
        self.around_bytes -= bytes;
        self.written.around += bytes;
        self.around_at = Some(now);
    }

    /// So much less goes around the cache than was asked for.
    pub(super) fn narrow_around(&mut self, bytes: u64) {
        self.around_bytes -= bytes;
    }

    /// Bytes that were written to the origin, and of these around the cache.
    #[cfg(test)]
    pub(super) fn written(&self) -> (u64, u64) {
        (self.written.all, self.written.around)
    }

    /// How long copies are to rest, so that there is `pause` between the last write around the cache and them.
    pub(super) fn rest(&self, now: Duration, pause: Duration) -> Duration {
        self.around_at.map_or(Duration::ZERO, |at| (at + pause).saturating_sub(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn half_a_second_of_the_origin_may_be_in_hand() {
        let mut pace = Pace::default();
        assert!(pace.has_room(1 << 30), "one write always goes");
        assert!(pace.enter(&mut None, 4096));
        assert!(pace.has_room(BYTES_MIN - 4096) && !pace.has_room(BYTES_MIN));
        pace.begin(MS(0));
        pace.begin(MS(50));
        pace.end(MS(200), 20_000_000);
        assert_eq!(pace.bytes_per_second(), 100_000_000);
        pace.end(MS(400), 20_000_000);
        assert_eq!(pace.bytes_per_second(), 100_000_000);
        assert!(pace.has_room(50_000_000 - 4096) && !pace.has_room(50_000_000));
        pace.end_around(MS(400), 4096);
        assert!(!pace.has_room(60_000_000), "what has ended is not flushed");
        let covers = pace.begin_flush();
        assert!(pace.enter(&mut None, 4096));
        pace.end_around(MS(400), 4096);
        pace.end_flush(covers, MS(5));
        assert_eq!(pace.unflushed(), 4096, "what ended meanwhile");
        pace.end_flush(pace.begin_flush(), MS(5));
        assert!(pace.has_room(60_000_000), "one write always goes");
    }

    #[test]
    fn flushes_that_take_long_leave_less_ahead() {
        let mut pace = Pace::default();
        pace.begin(MS(0));
        pace.end(MS(100), 100 << 20);
        assert_eq!(pace.ahead(), 500 << 20);
        pace.end_flush(pace.begin_flush(), MS(1000));
        assert_eq!(pace.ahead(), 50 << 20);
        pace.begin(MS(0));
        pace.end(MS(100), 4096);
        let ahead = pace.ahead();
        pace.end_flush(pace.begin_flush(), MS(1000));
        assert_eq!(pace.ahead(), ahead, "little work says nothing of speed");
    }

    #[test]
    fn one_flush_that_took_long_holds_nothing_back_for_long() {
        let mut pace = Pace::default();
        let mut write_and_flush = |bytes: u64, took| {
            pace.begin(MS(0));
            pace.end(MS(0), bytes);
            pace.end_flush(pace.begin_flush(), took);
            pace.bytes_per_second = 100 << 20;
            pace.ahead()
        };
        assert_eq!(write_and_flush(4 << 20, MS(40)), 50 << 20);
        let after = write_and_flush(BYTES_MIN, MS(2000));
        assert!((20 << 20..30 << 20).contains(&after), "one flush is not all there is to know: {after}");
        assert!((0..10).any(|_| write_and_flush(BYTES_MIN, MS(2000)) == BYTES_MIN), "slow again and again");
        assert_eq!(write_and_flush(BYTES_MIN / 2, MS(4000)), BYTES_MIN);
        let again = (0..10).map(|_| write_and_flush(BYTES_MIN / 2, MS(10))).find(|&ahead| ahead == 25 << 20);
        assert!(again.is_some(), "it is at least so fast");
    }

    #[test]
    fn who_comes_first_goes_around_first() {
        let mut pace = Pace::default();
        let (mut large, mut small) = (None, None);
        assert!(pace.enter(&mut None, 4096));
        assert!(
            !pace.enter(&mut large, BYTES_MIN) && !pace.enter(&mut small, 4096),
            "the large one came first"
        );
        assert!(!pace.enter(&mut small, 4096), "and still does");
        pace.end_around(MS(0), 4096);
        assert!(!pace.enter(&mut large, BYTES_MIN), "what has ended is not flushed");
        pace.end_flush(pace.begin_flush(), MS(5));
        assert!(pace.enter(&mut large, BYTES_MIN - 4096));
        assert!(pace.leave_line(large.unwrap()), "there is room for the small one too");
        assert!(pace.enter(&mut small, 4096));
        assert!(!pace.leave_line(small.unwrap()), "nobody is left");
    }

    #[test]
    fn time_without_writes_does_not_count() {
        let mut pace = Pace::default();
        pace.begin(MS(0));
        pace.end(MS(100), 1_000_000);
        pace.begin(MS(5100));
        pace.end(MS(5200), 1_000_000);
        assert_eq!(pace.bytes_per_second(), 10_000_000);
        for second in 6..16 {
            pace.begin(MS(1000 * second));
            pace.end(MS(1000 * second + 10), 300_000);
        }
        assert_eq!(pace.bytes_per_second(), 20_000_000, "short stretches add up");
    }

    #[test]
    fn copies_rest_after_a_write_around_the_cache() {
        let mut pace = Pace::default();
        assert_eq!(pace.rest(MS(10), MS(3000)), MS(0));
        assert!(pace.enter(&mut None, 512));
        pace.end_around(MS(1000), 512);
        assert_eq!(pace.rest(MS(1500), MS(3000)), MS(2500));
        assert_eq!(pace.rest(MS(4000), MS(3000)), MS(0));
    }

    /// An origin with a page cache writes back by itself: a flush that finds nothing left to do says little of its speed.
    #[test]
    fn a_small_flush_of_what_was_written_before_promises_little() {
        let mut pace = Pace::default();
        let mut flush = |bytes: u64, took: Duration| {
            pace.begin(MS(0));
            pace.end(MS(bytes / 1_000_000), bytes);
            pace.end_flush(pace.begin_flush(), took);
            pace.ahead()
        };
        (0..4).for_each(|_| _ = flush(1 << 30, MS((1 << 30) / 20_000)));
        let before = flush(1 << 30, MS((1 << 30) / 20_000));
        let after = flush(900 << 10, Duration::from_micros(200));
        assert!(after <= 2 * before, "{before} bytes ahead, and {after} after a small flush");
    }
}
