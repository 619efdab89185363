//! In which zone of memory a folio is placed that is about to be dirtied, so that each zone keeps clean memory for reclaim.
//!
//! Reclaim works zone by zone. Where only all of memory has a dirty limit, a small zone can become dirty altogether: reclaim finds nothing
//! clean there, and has to wait or to write. With a share of the limit for each zone, a folio that is about to be dirtied is placed in
//! a zone below its share. This is a preference, never a reason to wait: where no zone is below its share, any with room will do. Else
//! a writer that may use only some of the zones could come to a stop far below the limit of all memory, at which write-back begins.
//!
//! The formulas are those of Linux from 3.3 on, by zone. Units are the caller's, of one size: pages, blocks.

/// What is in a zone of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Zone {
    /// Free memory.
    pub free: u64,
    /// What of it is kept back for others, and never becomes dirty.
    pub reserve: u64,
    /// Memory of folios, clean or not: each of it can be reclaimed once it is clean.
    pub reclaimable: u64,
    /// What of it is dirty or being written back.
    pub unsaved: u64,
}

impl Zone {
    /// What could be dirty.
    pub fn dirtyable(&self) -> u64 {
        self.free.saturating_sub(self.reserve) + self.reclaimable
    }

    /// Its share of a limit of `percent` of what could be dirty or being written back.
    fn share(&self, percent: u64) -> u64 {
        let share = u128::from(percent.min(100)) * u128::from(self.dirtyable()) / 100;
        u64::try_from(share).expect("at most all of it")
    }

    /// Whether its memory may become dirty by choice, where the limit is `percent` of all memory.
    pub fn is_below(&self, percent: u64) -> bool {
        self.unsaved <= self.share(percent)
    }
}

/// How a zone is asked for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZoneAttempt {
    /// It is below its share: give what it has to spare.
    Spare,
    /// No zone below its share has any to spare, and this is one of them: reclaim some.
    Reclaim,
    /// No zone below its share has any: give what there is.
    Fallback,
}

/// Takes memory that is about to be dirtied from the first of `zones` that has it, which are in order of preference: of those below
/// their share of `percent` what they have to spare, then what they can reclaim; then of any.
pub fn place<T>(
    percent: u64,
    zones: &[Zone],
    mut take: impl FnMut(usize, ZoneAttempt) -> Option<T>,
) -> Option<T> {
    [ZoneAttempt::Spare, ZoneAttempt::Reclaim, ZoneAttempt::Fallback].into_iter().find_map(|attempt| {
        let any = attempt == ZoneAttempt::Fallback;
        let mut asked = (0..zones.len()).filter(|zone| any || zones[*zone].is_below(percent));
        asked.find_map(|zone| take(zone, attempt))
    })
}

/// Units of free memory of a zone at which something changes, and how much of it reclaim takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Reclaim begins where no zone has so much.
    pub low: u64,
    /// It goes on in a zone until there is so much.
    pub high: u64,
    /// Units that it takes of a zone before it looks at the next.
    pub pass: u64,
}

impl Watermarks {
    /// Of a zone of so many `units`: a thirty-second part is kept free, all of which requests may take; they reclaim some themselves where
    /// background reclaim is late.
    pub fn new(units: u64) -> Self {
        let high = (units / 32).max(1);
        Self { low: high.div_ceil(2), high, pass: 32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The machine of the source, in pages: Normal, DMA32, DMA.
    const MACHINE: [u64; 3] = [129_024, 830_976, 3840];

    fn zone(free: u64, reclaimable: u64, unsaved: u64) -> Zone {
        Zone { free, reserve: 0, reclaimable, unsaved }
    }

    /// All pages of the machine's zones in use, so many of them unsaved.
    fn machine(unsaved: [u64; 3]) -> [Zone; 3] {
        std::array::from_fn(|index| zone(0, MACHINE[index], unsaved[index]))
    }

    /// The zones that are asked, in order, where none has memory.
    fn asked(percent: u64, zones: &[Zone]) -> Vec<(usize, ZoneAttempt)> {
        let mut asked = Vec::new();
        let found = place(percent, zones, |zone, attempt| {
            asked.push((zone, attempt));
            None::<()>
        });
        assert_eq!(found, None);
        asked
    }

    const FALLBACK: [(usize, ZoneAttempt); 3] =
        [(0, ZoneAttempt::Fallback), (1, ZoneAttempt::Fallback), (2, ZoneAttempt::Fallback)];

    #[test]
    fn what_is_kept_back_is_not_dirtyable_and_what_is_in_use_is() {
        assert_eq!(Zone { free: 10, reserve: 4, reclaimable: 7, unsaved: 3 }.dirtyable(), 13);
        assert_eq!(Zone { free: 3, reserve: 4, reclaimable: 7, unsaved: 0 }.dirtyable(), 7);
    }

    #[test]
    fn each_zone_s_share_is_its_part_of_the_limit() {
        assert_eq!(machine([0; 3]).map(|zone| zone.share(40)), [51_609, 332_390, 1536]);
        assert_eq!(machine([0; 3]).map(|zone| zone.share(200)), MACHINE, "no more than all");
        assert_eq!(zone(0, 0, 0).share(40), 0);
        assert_eq!(zone(0, u64::MAX, 0).share(100), u64::MAX);
    }

    #[test]
    fn a_zone_above_its_share_is_passed_over_and_one_at_it_is_not() {
        let first = |unsaved: [u64; 3]| {
            let asked = asked(40, &machine(unsaved));
            let (below, rest) = asked.split_at(asked.len() - 3);
            assert_eq!(rest, FALLBACK, "any will do in the end");
            let of = |wanted| {
                let asked = below.iter().filter(|(_, attempt)| *attempt == wanted);
                asked.map(|(zone, _)| *zone).collect::<Vec<_>>()
            };
            assert_eq!(of(ZoneAttempt::Spare), of(ZoneAttempt::Reclaim), "the same zones reclaim");
            of(ZoneAttempt::Spare)
        };
        assert_eq!(first([51_609, 0, 0]), [0, 1, 2]);
        assert_eq!(first([51_610, 0, 0]), [1, 2]);
        assert_eq!(first([129_024, 332_391, 0]), [2]);
        assert_eq!(first([129_024, 332_391, 1537]), [0; 0], "none is below its share");
    }

    #[test]
    fn where_all_may_be_unsaved_a_zone_may_be_dirty_altogether() {
        let asked = asked(100, &machine([129_024, 0, 0]));
        assert_eq!(asked[..3], FALLBACK.map(|(zone, _)| (zone, ZoneAttempt::Spare)));
        assert_eq!(asked[6..], FALLBACK);
    }

    /// Reclaim that has begun has an end.
    #[test]
    fn marks_are_in_order() {
        for units in (1..200).chain([5000, 1 << 40]) {
            let Watermarks { low, high, pass } = Watermarks::new(units);
            assert!(0 < low && low <= high && high <= units && pass > 0, "{units}");
        }
    }

    /// Reserves lower the share: what others need cannot be full of dirty folios.
    #[test]
    fn a_reserve_is_no_part_of_the_share() {
        let with = |reserve| Zone { free: 100, reserve, reclaimable: 0, unsaved: 30 };
        assert!(with(25).is_below(40));
        assert!(!with(26).is_below(40));
    }

    /// On a machine of one zone the rule changes nothing but the name of the attempt.
    #[test]
    fn one_zone_is_asked_whatever_is_dirty() {
        for unsaved in 0..=10 {
            let zones = [zone(0, 10, unsaved)];
            let found = place(40, &zones, |zone, _| Some(zone));
            assert_eq!(found, Some(0));
        }
    }

    /// All worlds of three zones of up to two units: memory is found whenever a zone has any, and in one below its share where such a
    /// one has any.
    #[test]
    fn memory_is_found_wherever_it_is() {
        for bits in 0..64u32 {
            let unsaved = |index: u32| u64::from(bits >> (3 + index) & 1) * 2;
            let has = |index: usize| bits >> index & 1 == 1;
            let zones: [Zone; 3] = std::array::from_fn(|index| zone(0, 2, unsaved(index as u32)));
            let found = place(50, &zones, |zone, _| has(zone).then_some(zone));
            let below = (0..3).find(|index| has(*index) && zones[*index].unsaved == 0);
            assert_eq!(found, below.or_else(|| (0..3).find(|index| has(*index))), "{bits:b}");
        }
    }
}
