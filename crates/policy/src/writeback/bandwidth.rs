//! Bandwidth of a device that is written back to, measured over the time with writes in flight; and how many bytes may be in
//! flight or unflushed there: what it takes, and makes durable, in half a second.
//!
//! A device with a page cache takes writes faster than it makes them durable, so flushes are measured too.

use std::time::Duration;

/// The share of the device's time that may be in flight.
const AHEAD: Duration = Duration::from_millis(500);

/// Minimum bytes in flight; used before the first measurement.
pub const BYTES_MIN: u64 = 1 << 20;

/// A measurement covers at least this time.
const SPAN: Duration = Duration::from_millis(100);

/// Bandwidth of writes and of flushes. Callers pass the time.
#[derive(Clone, Debug, Default)]
pub struct Bandwidth {
    /// Writes in flight.
    writes: u32,
    /// When the present measurement, or the present stretch of time with writes in flight, began.
    since: Duration,
    /// Time with writes in flight that belongs to the present measurement, before `since`: up to the last that has ended.
    busy: Duration,
    bytes: u64,
    bytes_per_second: u64,
    /// Of flushes; 0 before one was measured.
    flush_bytes_per_second: u64,
    /// Bytes of writes that have ended.
    written: u64,
    /// Bytes of these that flushes have covered.
    flushed: u64,
}

/// `bytes` in `span` as bytes a second; `span` is not zero.
fn speed(bytes: u64, span: Duration) -> u64 {
    u64::try_from(u128::from(bytes) * 1_000_000_000 / span.as_nanos()).unwrap_or(u64::MAX)
}

impl Bandwidth {
    /// A write begins.
    pub fn begin_write(&mut self, now: Duration) {
        if self.writes == 0 {
            self.since = now;
        }
        self.writes += 1;
    }

    /// A write of so many bytes has ended.
    pub fn end_write(&mut self, now: Duration, bytes: u64) {
        assert!(self.writes > 0, "a write that ends has begun");
        self.writes -= 1;
        self.bytes += bytes;
        self.written += bytes;
        self.busy += now.saturating_sub(self.since);
        self.since = now;
        if self.busy >= SPAN {
            let measured = speed(self.bytes, self.busy);
            self.bytes_per_second = match self.bytes_per_second {
                0 => measured,
                before => before / 2 + measured / 2,
            };
            (self.busy, self.bytes) = (Duration::ZERO, 0);
        }
    }

    /// A write has failed, or was withdrawn: neither its bytes nor, where it was the last in flight, its time measure anything.
    pub fn abandon_write(&mut self) {
        assert!(self.writes > 0, "a write that is abandoned has begun");
        self.writes -= 1;
    }

    /// A flush begins: bytes that it covers, for [`Bandwidth::end_flush`].
    pub fn begin_flush(&self) -> u64 {
        self.written
    }

    /// A flush that covers `covers` bytes has succeeded, and took so long.
    pub fn end_flush(&mut self, covers: u64, took: Duration) {
        assert!(covers <= self.written, "a flush covers {covers} bytes of {}", self.written);
        let bytes = covers.saturating_sub(self.flushed);
        if took > Duration::ZERO {
            let measured = speed(bytes, took);
            self.flush_bytes_per_second = match self.flush_bytes_per_second {
                // Little work says more of the cost of a flush than of its speed; or of a device that had written it before.
                0 if bytes < BYTES_MIN => 0,
                0 => measured,
                before if bytes < BYTES_MIN => before.max(measured.min(before.saturating_mul(2))),
                before => before / 2 + measured / 2,
            };
        }
        self.flushed = self.flushed.max(covers);
    }

    /// Bytes a second of writes, as last measured; 0 before that.
    pub fn bytes_per_second(&self) -> u64 {
        self.bytes_per_second
    }

    /// Bytes that the device takes, and flushes, in half a second; [`BYTES_MIN`] at least, and before that was measured.
    pub fn ahead(&self) -> u64 {
        let flushed = Some(self.flush_bytes_per_second).filter(|&speed| speed > 0).unwrap_or(u64::MAX);
        let speed = u128::from(self.bytes_per_second.min(flushed));
        let ahead = speed * AHEAD.as_millis() / 1000;
        u64::try_from(ahead).unwrap_or(u64::MAX).max(BYTES_MIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn half_a_second_of_the_device_is_ahead() {
        let mut bandwidth = Bandwidth::default();
        assert_eq!((bandwidth.ahead(), bandwidth.bytes_per_second()), (BYTES_MIN, 0));
        bandwidth.begin_write(MS(0));
        bandwidth.begin_write(MS(50));
        bandwidth.end_write(MS(200), 20_000_000);
        assert_eq!(bandwidth.bytes_per_second(), 100_000_000);
        bandwidth.end_write(MS(400), 20_000_000);
        assert_eq!((bandwidth.bytes_per_second(), bandwidth.ahead()), (100_000_000, 50_000_000));
    }

    #[test]
    fn flushes_that_take_long_leave_less_ahead() {
        let mut bandwidth = Bandwidth::default();
        bandwidth.begin_write(MS(0));
        bandwidth.end_write(MS(100), 100 << 20);
        assert_eq!(bandwidth.ahead(), 500 << 20);
        bandwidth.end_flush(bandwidth.begin_flush(), MS(1000));
        assert_eq!(bandwidth.ahead(), 50 << 20);
        bandwidth.begin_write(MS(0));
        bandwidth.end_write(MS(100), 4096);
        let ahead = bandwidth.ahead();
        bandwidth.end_flush(bandwidth.begin_flush(), MS(1000));
        assert_eq!(bandwidth.ahead(), ahead, "little work says nothing of speed");
    }

    #[test]
    fn one_flush_that_took_long_holds_nothing_back_for_long() {
        let mut bandwidth = Bandwidth::default();
        let mut write_and_flush = |bytes: u64, took| {
            bandwidth.begin_write(MS(0));
            bandwidth.end_write(MS(0), bytes);
            bandwidth.end_flush(bandwidth.begin_flush(), took);
            bandwidth.bytes_per_second = 100 << 20;
            bandwidth.ahead()
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
    fn time_without_writes_does_not_count() {
        let mut bandwidth = Bandwidth::default();
        bandwidth.begin_write(MS(0));
        bandwidth.end_write(MS(100), 1_000_000);
        bandwidth.begin_write(MS(5100));
        bandwidth.end_write(MS(5200), 1_000_000);
        assert_eq!(bandwidth.bytes_per_second(), 10_000_000);
        for second in 6..16 {
            bandwidth.begin_write(MS(1000 * second));
            bandwidth.end_write(MS(1000 * second + 10), 300_000);
        }
        assert_eq!(bandwidth.bytes_per_second(), 20_000_000, "short stretches add up");
    }

    /// A device with a page cache writes back by itself: a flush that finds nothing left to do says little of its speed.
    #[test]
    fn a_small_flush_of_what_was_written_before_promises_little() {
        let mut bandwidth = Bandwidth::default();
        let mut flush = |bytes: u64, took: Duration| {
            bandwidth.begin_write(MS(0));
            bandwidth.end_write(MS(bytes / 1_000_000), bytes);
            bandwidth.end_flush(bandwidth.begin_flush(), took);
            bandwidth.ahead()
        };
        (0..4).for_each(|_| _ = flush(1 << 30, MS((1 << 30) / 20_000)));
        let before = flush(1 << 30, MS((1 << 30) / 20_000));
        let after = flush(900 << 10, Duration::from_micros(200));
        assert!(after <= 2 * before, "{before} bytes ahead, and {after} after a small flush");
    }

    #[test]
    fn writes_that_fail_measure_nothing() {
        let mut bandwidth = Bandwidth::default();
        bandwidth.begin_write(MS(0));
        bandwidth.abandon_write();
        assert_eq!((bandwidth.begin_flush(), bandwidth.bytes_per_second()), (0, 0));
        for second in 1..4 {
            bandwidth.begin_write(MS(1000 * second));
            bandwidth.begin_write(MS(1000 * second));
            bandwidth.end_write(MS(1000 * second + 100), 10_000_000);
            bandwidth.abandon_write();
            assert_eq!(bandwidth.bytes_per_second(), 100_000_000, "the other took a second in vain");
        }
    }

    #[test]
    #[should_panic(expected = "has begun")]
    fn a_write_ends_once() {
        Bandwidth::default().end_write(MS(1), 1);
    }
}
