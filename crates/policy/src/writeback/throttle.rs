//! How fast writers may fill memory that only writing back empties: freely while there is room, then at the pace of the device below, so
//! that they never stop at the limit. The formulas are those of Linux's balance_dirty_pages, with one clock for all writers.
//!
//! ```text
//!   bytes held   0 ....... background ....... freerun ....... setpoint ....... limit
//!                         is written back     writers pause
//!   position ratio                            2 ............. 1 .............. 0
//! ```
//!
//! All writers together get the device's bandwidth times the position ratio, so that what is held settles near the setpoint. A
//! token clock deals it out in the order of arrival: each write moves the clock by the time its bytes take at that rate, and goes on no
//! earlier than those before it.

use std::time::Duration;

/// A position ratio of 1: ten bits of fraction.
pub const RATIO_ONE: u64 = 1 << 10;

/// The longest pause of a write.
pub const PAUSE_MAX: Duration = Duration::from_millis(200);

/// The shortest: less is left to the writes that follow, for a timer costs more than it saves.
pub const PAUSE_MIN: Duration = Duration::from_millis(1);

/// What writers that came late may make up for.
const CREDIT: Duration = Duration::from_millis(10);

/// Bytes a second that the device is taken for before anything was measured.
const UNMEASURED: u64 = 100 << 20;

/// Writers get at least this part of the bandwidth: where the limit itself stops them, pauses need not.
const SLOWEST: u64 = 64;

/// The shortest pause that [`PAUSE_MAX`] may shrink to.
const PAUSE_MAX_LEAST: Duration = Duration::from_millis(5);

/// Bytes between which writers are slowed down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Bytes held from which on they are written back.
    pub background: u64,
    /// Bytes that may be held.
    pub limit: u64,
}

impl Thresholds {
    /// Bytes up to which writers run free: half way from the background threshold to the limit, and all of it where that is no less.
    pub fn freerun(self) -> u64 {
        self.background.min(self.limit).midpoint(self.limit)
    }

    /// Bytes at which writers are as fast as the device.
    pub fn setpoint(self) -> u64 {
        self.freerun().midpoint(self.limit)
    }

    /// How much faster than the device writers may be where `held` bytes are, in units of [`RATIO_ONE`]: 1 + x^3, with x 1 at the end of
    /// the free run, 0 at the setpoint and -1 at the limit.
    pub fn position_ratio(self, held: u64) -> u64 {
        let (one, setpoint) = (i128::from(RATIO_ONE), i128::from(self.setpoint()));
        let span = (i128::from(self.limit) - setpoint).max(1);
        let x = ((setpoint - i128::from(held)) * one / span).clamp(-one, one);
        u64::try_from(one + x * x * x / (one * one)).expect("x is at least -1")
    }
}

/// The token clock.
#[derive(Clone, Debug, Default)]
pub struct Throttle {
    /// When everything that was written so far is paid for.
    paid_at: Duration,
    /// When the last of those who pause goes on: until then nobody passes them.
    next_at: Duration,
}

impl Throttle {
    /// How long a writer pauses that has written `bytes`, where `held` bytes are, and the device takes `bytes_per_second`, or 0 where
    /// that is not known. It is to ask for about 128 KiB at a time, or else it gets them cheaper.
    pub fn pause(
        &mut self,
        now: Duration,
        bytes: u64,
        thresholds: Thresholds,
        held: u64,
        bytes_per_second: u64,
    ) -> Duration {
        if held <= thresholds.freerun() {
            *self = Self::default();
            return Duration::ZERO;
        }
        let bandwidth = if bytes_per_second == 0 { UNMEASURED } else { bytes_per_second };
        let rate = rate(bandwidth, thresholds.position_ratio(held));
        let longest = longest(held, bandwidth);
        let begin = self.paid_at.max(now.saturating_sub(CREDIT));
        self.paid_at = (begin + time(bytes, rate)).min(now + longest);
        if self.paid_at >= now + PAUSE_MIN || self.next_at > now {
            self.next_at = self.next_at.max(self.paid_at);
        }
        self.next_at.saturating_sub(now)
    }
}

/// Bytes a second that writers get of `bandwidth`.
fn rate(bandwidth: u64, ratio: u64) -> u64 {
    let part = u128::from(bandwidth) * u128::from(ratio) / u128::from(RATIO_ONE);
    u64::try_from(part).unwrap_or(u64::MAX).max(bandwidth / SLOWEST).max(1)
}

fn time(bytes: u64, bytes_per_second: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_second);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The longest pause: an eighth of the time in which all that is held could leave, so that the device does not come to rest meanwhile.
fn longest(held: u64, bandwidth: u64) -> Duration {
    (time(held, bandwidth) / 8).clamp(PAUSE_MAX_LEAST, PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;
    const MIB: u64 = 1 << 20;
    const THRESHOLDS: Thresholds = Thresholds { background: 900 * MIB, limit: 1000 * MIB };

    #[test]
    fn the_ratio_falls_from_two_over_one_to_nothing() {
        assert_eq!((THRESHOLDS.freerun(), THRESHOLDS.setpoint()), (950 * MIB, 975 * MIB));
        let ratio = |mib: u64| THRESHOLDS.position_ratio(mib * MIB);
        assert_eq!([0, 950, 975, 1000, 2000].map(ratio), [2048, 2048, 1024, 0, 0]);
        assert!((950..1000).all(|mib| ratio(mib) >= ratio(mib + 1)), "it never rises");
        assert_eq!(ratio(965), 1024 + 65, "0.4 to the third");
    }

    #[test]
    fn without_room_between_the_thresholds_writers_run_free_up_to_the_limit() {
        for background in [1000 * MIB, 2000 * MIB] {
            let thresholds = Thresholds { background, ..THRESHOLDS };
            assert_eq!((thresholds.freerun(), thresholds.setpoint()), (1000 * MIB, 1000 * MIB));
            assert_eq!(Throttle::default().pause(MS(1), MIB, thresholds, 1000 * MIB, MIB), MS(0));
        }
        let nothing = Thresholds { background: 0, limit: 0 };
        assert!(Throttle::default().pause(MS(1), MIB, nothing, 5, MIB) <= PAUSE_MAX);
    }

    #[test]
    fn a_writer_pauses_for_its_bytes_and_for_those_before() {
        let mut throttle = Throttle::default();
        let mut pause = |now, bytes, mib: u64| throttle.pause(now, bytes, THRESHOLDS, mib * MIB, 10 * MIB);
        assert_eq!(pause(MS(1000), MIB, 940), MS(0), "it runs free");
        assert_eq!(pause(MS(1000), MIB, 975), MS(90), "a tenth of a second, less the credit");
        assert_eq!(pause(MS(1000), MIB / 2, 975), MS(140), "the second writer comes after the first");
        assert_eq!(pause(MS(1000), MIB, 975), PAUSE_MAX);
        assert_eq!(pause(MS(1200), 4096, 975), MS(0), "what is too short to wait for is left to the next");
        let sum: Duration = (0..100).map(|_| pause(MS(1200), 4096, 975)).max().expect("some");
        assert!(sum > MS(35), "{sum:?} for 400 KiB");
        assert_eq!(pause(MS(1201), MIB, 950), MS(0));
        assert_eq!(pause(MS(1201), MIB / 10, 975), Duration::ZERO, "who ran free has paid");
    }

    #[test]
    fn a_pause_is_short_where_little_is_held_and_never_longer_than_the_longest() {
        let small = Thresholds { background: 90 << 10, limit: 100 << 10 };
        let mut throttle = Throttle::default();
        assert_eq!(throttle.pause(MS(10), MIB, small, 100 << 10, 100 * MIB), PAUSE_MAX_LEAST);
        for bandwidth in [0, 1, MIB, u64::MAX] {
            let pause = Throttle::default().pause(MS(10), u64::MAX, THRESHOLDS, 1000 * MIB, bandwidth);
            assert!(pause <= PAUSE_MAX, "{pause:?} at {bandwidth} bytes a second");
        }
    }

    /// Writers that never rest, in front of a device; time goes by in milliseconds.
    struct Simulated {
        throttle: Throttle,
        now: u64,
        held: u64,
        /// When each writer is awake again, and what it writes at a time.
        writers: Vec<(Duration, u64)>,
        /// What each has written.
        written: Vec<u64>,
        longest: Duration,
        /// What the device is taken for: measured every 100 ms, as a mean with what was before.
        measured: u64,
    }

    impl Simulated {
        fn new(writers: &[u64]) -> Self {
            Self {
                throttle: Throttle::default(),
                now: 1000,
                held: 900 * MIB,
                writers: writers.iter().map(|&bytes| (MS(0), bytes)).collect(),
                written: vec![0; writers.len()],
                longest: MS(0),
                measured: 0,
            }
        }

        /// Lets time go by while the device writes so much a second; the least and the most that is held.
        fn run(&mut self, millis: u64, bandwidth: u64) -> (u64, u64) {
            let (mut least, mut most) = (u64::MAX, 0);
            for _ in 0..millis {
                self.now += 1;
                self.held = self.held.saturating_sub(bandwidth / 1000);
                if self.now.is_multiple_of(100) {
                    self.measured =
                        if self.measured == 0 { bandwidth } else { self.measured.midpoint(bandwidth) };
                }
                self.write();
                (least, most) = (least.min(self.held), most.max(self.held));
            }
            (least, most)
        }

        /// Each writer that is awake writes until it pauses; in a millisecond no more than 4 MiB. Any may be the first.
        fn write(&mut self) {
            let (now, count) = (MS(self.now), self.writers.len());
            let first = (self.now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize;
            for writer in (0..count).map(|nth| (first + nth) % count) {
                let (awake, bytes) = &mut self.writers[writer];
                for _ in 0..4 * MIB / *bytes {
                    if *awake > now || self.held + *bytes > THRESHOLDS.limit {
                        break;
                    }
                    self.held += *bytes;
                    self.written[writer] += *bytes;
                    let pause = self.throttle.pause(now, *bytes, THRESHOLDS, self.held, self.measured);
                    (*awake, self.longest) = (now + pause, self.longest.max(pause));
                }
            }
        }
    }

    /// The part of the way between free run and limit at which the bytes held settle is the same for a slow and a fast device, one and
    /// many writers, small and large writes.
    #[test]
    fn what_is_held_settles_near_the_setpoint_without_swinging() {
        for bandwidth in [2 * MIB, 50 * MIB, 1000 * MIB] {
            for writers in [&[4096; 1][..], &[4096; 32], &[128 << 10; 16], &[4096, 128 << 10]] {
                let mut world = Simulated::new(writers);
                world.run(20_000, bandwidth);
                let (least, most) = world.run(5000, bandwidth);
                let context = format!("{bandwidth} B/s, {writers:?}: {} to {} MiB", least / MIB, most / MIB);
                assert!(least > THRESHOLDS.freerun() && most < THRESHOLDS.limit, "{context}");
                assert!(most - least <= 12 * MIB, "{context}");
            }
        }
    }

    #[test]
    fn writers_alike_get_alike_and_together_what_the_device_takes() {
        let mut world = Simulated::new(&[4096; 8]);
        world.run(10_000, 50 * MIB);
        world.written.fill(0);
        world.run(10_000, 50 * MIB);
        let (least, most) = (world.written.iter().min().unwrap(), world.written.iter().max().unwrap());
        assert!(most - least <= most / 10, "{least} to {most} bytes");
        let sum: u64 = world.written.iter().sum();
        assert!(sum.abs_diff(500 * MIB) <= 15 * MIB, "{} MiB of 500", sum / MIB);
    }

    #[test]
    fn a_device_that_becomes_slower_is_followed_and_nobody_stops_for_long() {
        let mut world = Simulated::new(&[4096; 32]);
        world.run(10_000, 400 * MIB);
        let (_, most) = world.run(20_000, 40 * MIB);
        assert!(most < THRESHOLDS.limit, "the limit was reached");
        assert!(world.longest <= MS(120), "a pause of {:?}", world.longest);
        let (least, most) = world.run(5000, 40 * MIB);
        assert!(least > THRESHOLDS.freerun() && most - least <= 12 * MIB, "{least} to {most}");
    }
}
