//! How long calls take.

use spillway_core::ByteRange;
use spillway_core::random::Random;

use super::fault::Call;

/// A kind of disk. The figures are round ones of their kind, except for the stick: its sequential rate is that of the
/// experiment with dirty limits (10 GiB in 550 s).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Latency {
    /// No time at all: calls still end in any order.
    #[default]
    None,
    /// 20 us, 2 GB/s.
    Nvme,
    /// 80 us, 500 MB/s, a sync of 1 ms.
    SataSsd,
    /// 8 ms for a jump, 150 MB/s, a sync of 10 ms.
    Disk,
    /// 10 ms for each write that is not the continuation of the last, 19 MB/s.
    UsbStick,
    /// 500 us to 20 ms, 100 MB/s.
    Network,
    /// One call of four takes 20 ms, the others nothing: what began first ends last. One answer of four comes 20 ms after the call
    /// has ended.
    Erratic,
}

/// Fixed cost, cost of a jump, of a sync, and the greatest jitter, in microseconds; bytes a microsecond.
struct Costs {
    fixed: u64,
    jump: u64,
    sync: u64,
    jitter: u64,
    rate: u64,
}

/// A call or an answer of [`Latency::Erratic`] that takes long.
const ERRATIC_NANOS: u64 = 20_000_000;

impl Latency {
    /// All of them, what finds most twice.
    pub const ALL: [Latency; 8] = [
        Latency::None,
        Latency::Nvme,
        Latency::SataSsd,
        Latency::Disk,
        Latency::UsbStick,
        Latency::Network,
        Latency::Erratic,
        Latency::Erratic,
    ];

    const fn costs(self) -> Costs {
        match self {
            Latency::None | Latency::Erratic => {
                Costs { fixed: 0, jump: 0, sync: 0, jitter: 0, rate: u64::MAX }
            }
            Latency::Nvme => Costs { fixed: 20, jump: 0, sync: 30, jitter: 20, rate: 2000 },
            Latency::SataSsd => Costs { fixed: 80, jump: 0, sync: 1000, jitter: 80, rate: 500 },
            Latency::Disk => Costs { fixed: 50, jump: 8000, sync: 10_000, jitter: 4000, rate: 150 },
            Latency::UsbStick => Costs { fixed: 200, jump: 10_000, sync: 10_000, jitter: 500, rate: 19 },
            Latency::Network => Costs { fixed: 500, jump: 0, sync: 2000, jitter: 19_500, rate: 100 },
        }
    }

    /// Nanoseconds of a call on `range`; the last one ended at byte `head`.
    pub(super) fn nanos(self, call: Call, range: ByteRange, head: u64, random: &mut Random) -> u64 {
        if self == Latency::Erratic && random.below(4) == 0 {
            return ERRATIC_NANOS;
        }
        let costs = self.costs();
        let jumps = range.offset != head && matches!(call, Call::Read | Call::Write);
        let micros = match call {
            Call::Sync => costs.sync,
            _ => costs.fixed + if jumps { costs.jump } else { 0 } + range.len / costs.rate,
        };
        micros * 1000 + random.below(costs.jitter * 1000 + 1)
    }

    /// Nanoseconds from the end of a call, which says what it comes to, until its caller hears of it.
    pub(super) fn answer_nanos(self, random: &mut Random) -> u64 {
        if self == Latency::Erratic && random.below(4) == 0 { ERRATIC_NANOS } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stick_writes_19_mb_a_second_in_a_row_and_pays_for_jumps() {
        let mut random = Random(1);
        let len = 1 << 20;
        let mut nanos =
            |head| Latency::UsbStick.nanos(Call::Write, ByteRange::new(4096, len), head, &mut random);
        let row = nanos(4096);
        assert!((55_000_000..56_500_000).contains(&row), "{row}");
        assert!(nanos(0) > row + 9_000_000);
    }
}
