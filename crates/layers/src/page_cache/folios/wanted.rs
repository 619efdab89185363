//! What clients wait for in the regions of a shard, until the device below has it. One region is written back by one batch at a time: who
//! takes the next one takes what all of them wait for, and nothing else.

use std::collections::BTreeMap;

use spillway_core::ByteRange;
use spillway_policy::dirty_regions::RegionNumber;

/// See the head of this file.
#[derive(Default)]
pub(crate) struct WantedRanges {
    next: u64,
    /// By region, and by the order in which they came.
    ranges: BTreeMap<(RegionNumber, u64), ByteRange>,
}

impl WantedRanges {
    /// `range`, which lies in `region`, is waited for. Returns its number there.
    pub(crate) fn enter(&mut self, region: RegionNumber, range: ByteRange) -> u64 {
        self.next += 1;
        self.ranges.insert((region, self.next), range);
        self.next
    }

    /// It is not waited for any more.
    pub(crate) fn leave(&mut self, region: RegionNumber, number: u64) {
        let left = self.ranges.remove(&(region, number));
        assert!(left.is_some(), "number {number} of {region:?} leaves once");
    }

    /// What is waited for in `region`, and `own`: in order, and where that meets as one range.
    pub(crate) fn with(&self, region: RegionNumber, own: ByteRange) -> Vec<ByteRange> {
        let of_region = self.ranges.range((region, 0)..=(region, u64::MAX)).map(|(_, range)| *range);
        let mut all: Vec<ByteRange> = of_region.chain([own]).collect();
        all.sort_unstable_by_key(|range| range.offset);
        all.dedup_by(|next, last| {
            let meets = next.offset <= last.offset + last.len;
            if meets {
                last.len = last.len.max(next.offset + next.len - last.offset);
            }
            meets
        });
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_meets_is_one_range_and_other_regions_have_their_own() {
        let (mut wanted, range) = (WantedRanges::default(), |(offset, len)| ByteRange::new(offset, len));
        let numbers = [(40, 10), (10, 10), (20, 5), (12, 3), (60, 1)]
            .map(|part| wanted.enter(RegionNumber(3), range(part)));
        wanted.enter(RegionNumber(4), range((100, 1)));
        wanted.enter(RegionNumber(2), range((0, 1)));
        let with = |wanted: &WantedRanges, own| wanted.with(RegionNumber(3), range(own));
        assert_eq!(with(&wanted, (45, 10)), [(10, 15), (40, 15), (60, 1)].map(range));
        numbers[..4].iter().for_each(|number| wanted.leave(RegionNumber(3), *number));
        assert_eq!(with(&wanted, (5, 1)), [(5, 1), (60, 1)].map(range));
        wanted.leave(RegionNumber(3), numbers[4]);
        assert_eq!(with(&wanted, (5, 1)), [range((5, 1))]);
    }
}
