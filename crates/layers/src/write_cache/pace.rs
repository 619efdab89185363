//! How fast the origin takes writes, and how much of it writes around the cache and copies may each have in hand: a flush of the
//! origin waits for them.

use std::time::Duration;

/// So much of the origin's time may be taken ahead.
const AHEAD: Duration = Duration::from_millis(500);

/// What may be in hand before anything was measured, and at least.
const BYTES_MIN: u64 = 1 << 20;

/// A measure is taken over at least this time.
const SPAN: Duration = Duration::from_millis(100);

/// See the head of this file. Time is told by whoever asks.
#[derive(Debug, Default)]
pub(super) struct Pace {
    writes: u32,
    since: Duration,
    bytes: u64,
    bytes_per_second: u64,
    around_bytes: u64,
    around_at: Option<Duration>,
}

impl Pace {
    /// A write to the origin begins.
    pub(super) fn begin(&mut self, now: Duration) {
        if self.writes == 0 {
            (self.since, self.bytes) = (now, 0);
        }
        self.writes += 1;
    }

    /// A write to the origin has ended.
    pub(super) fn end(&mut self, now: Duration, bytes: u64) {
        self.writes -= 1;
        self.bytes += bytes;
        let span = now.saturating_sub(self.since);
        if span >= SPAN {
            let measured = (u128::from(self.bytes) * 1_000_000_000 / span.as_nanos()) as u64;
            self.bytes_per_second = match self.bytes_per_second {
                0 => measured,
                before => before / 2 + measured / 2,
            };
            (self.since, self.bytes) = (now, 0);
        }
    }

    /// Bytes a second, as last measured; 0 before that.
    pub(super) fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Bytes that the origin takes in half a second; some before that was measured.
    pub(super) fn ahead(&self) -> u64 {
        (u128::from(self.bytes_per_second) * AHEAD.as_millis() / 1000).max(u128::from(BYTES_MIN)) as u64
    }

    /// Whether so much more may go around the cache. A single write always may.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.around_bytes == 0 || self.around_bytes + bytes <= self.ahead()
    }

    /// So much goes around the cache.
    pub(super) fn begin_around(&mut self, bytes: u64) {
        self.around_bytes += bytes;
    }

    /// So much went around the cache.
    pub(super) fn end_around(&mut self, now: Duration, bytes: u64) {
        self.around_bytes -= bytes;
        self.around_at = Some(now);
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
        pace.begin_around(4096);
        assert!(pace.has_room(BYTES_MIN - 4096) && !pace.has_room(BYTES_MIN));
        pace.begin(MS(0));
        pace.begin(MS(50));
        pace.end(MS(200), 20_000_000);
        assert_eq!(pace.bytes_per_second(), 100_000_000);
        pace.end(MS(400), 20_000_000);
        assert_eq!(pace.bytes_per_second(), 100_000_000);
        assert!(pace.has_room(50_000_000 - 4096) && !pace.has_room(50_000_000));
        pace.end_around(MS(400), 4096);
        assert!(pace.has_room(60_000_000), "one write always goes");
    }

    #[test]
    fn time_without_writes_does_not_count() {
        let mut pace = Pace::default();
        pace.begin(MS(0));
        pace.end(MS(100), 1_000_000);
        pace.begin(MS(5100));
        pace.end(MS(5200), 1_000_000);
        assert_eq!(pace.bytes_per_second(), 10_000_000);
    }

    #[test]
    fn copies_rest_after_a_write_around_the_cache() {
        let mut pace = Pace::default();
        assert_eq!(pace.rest(MS(10), MS(3000)), MS(0));
        pace.begin_around(512);
        pace.end_around(MS(1000), 512);
        assert_eq!(pace.rest(MS(1500), MS(3000)), MS(2500));
        assert_eq!(pace.rest(MS(4000), MS(3000)), MS(0));
    }
}
