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
}

/// How much memory may be dirty or being written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So much of a hundred of what could be.
    Percent(u64),
    /// So many units.
    Units(u64),
}

impl Limit {
    /// The part of it for `dirtyable` units of memory of which `all` are dirtyable.
    pub fn share(self, dirtyable: u64, all: u64) -> u64 {
        assert!(dirtyable <= all, "{dirtyable} of {all} units");
        let (amount, of) = match self {
            Self::Percent(percent) => (percent.min(100), 100),
            // Never by 0: a machine without a dirtyable page has one all the same.
            Self::Units(units) => (units, all.max(1)),
        };
        let share = u128::from(amount) * u128::from(dirtyable) / u128::from(of);
        u64::try_from(share).expect("at most the units of the limit, or of memory")
    }

    /// The limit of all of `zones`.
    pub fn of_all(self, zones: &[Zone]) -> u64 {
        let all = dirtyable(zones);
        self.share(all, all)
    }
}

/// What could be dirty in all of `zones`.
pub fn dirtyable(zones: &[Zone]) -> u64 {
    zones.iter().map(Zone::dirtyable).sum()
}

/// What the dirty limit is a limit of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// Each zone has its share.
    #[default]
    Zone,
    /// All memory together, whichever zone it is in: the kernel's until 3.2.
    Global,
}

/// How a zone is asked for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It is below its share: give what it has to spare.
    Spare,
    /// No zone below its share has any to spare, and this is one of them: reclaim some.
    Reclaim,
    /// No zone below its share has any: give what there is.
    Fallback,
}

/// Whether memory of `zone`, one of `zones`, may become dirty by choice.
pub fn is_below(scope: Scope, limit: Limit, zones: &[Zone], zone: usize) -> bool {
    let all = || dirtyable(zones);
    scope == Scope::Global || zones[zone].unsaved <= limit.share(zones[zone].dirtyable(), all())
}

/// Takes memory that is about to be dirtied from the first of `zones` that has it, which are in order of preference: of those below
/// their share what they have to spare, then what they can reclaim; then of any.
pub fn place<T>(
    scope: Scope,
    limit: Limit,
    zones: &[Zone],
    mut take: impl FnMut(usize, Attempt) -> Option<T>,
) -> Option<T> {
    [Attempt::Spare, Attempt::Reclaim, Attempt::Fallback].into_iter().find_map(|attempt| {
        let any = attempt == Attempt::Fallback;
        let mut asked = (0..zones.len()).filter(|zone| any || is_below(scope, limit, zones, *zone));
        asked.find_map(|zone| take(zone, attempt))
    })
}

/// Units of free memory of a zone at which something changes, and how much of it reclaim takes at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// Requests leave so much.
    pub min: u64,
    /// Requests leave so much where another zone has more than it leaves.
    pub spare: u64,
    /// Reclaim begins where no zone has so much.
    pub low: u64,
    /// It goes on in a zone until there is so much.
    pub high: u64,
    /// Units that it takes of a zone before it looks at the next.
    pub pass: u64,
}

/// How much memory zones keep free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reserve {
    /// A thirty-second part, all of which requests may take; they reclaim some themselves where background reclaim is late.
    #[default]
    Plenty,
    /// As little as Linux on the source's machine of 2011, in proportion. Requests wait for background reclaim.
    Little,
}

/// Pages of the source's machine, and those that Linux kept free of it: 4 times the square root of the memory in KiB, as KiB.
const MACHINE: u64 = 963_840;
const KEPT_FREE: u64 = 1963;

impl Reserve {
    /// The watermarks of a zone of so many `units`, where zones of `before` are asked before it.
    pub fn watermarks(self, units: u64, before: u64) -> Watermarks {
        if self == Self::Plenty {
            let high = (units / 32).max(1);
            return Watermarks { min: 0, spare: 0, low: high.div_ceil(2), high, pass: 32 };
        }
        let kept = units * KEPT_FREE / MACHINE;
        // Requests that could be for the zones before leave alone what those that could not may need.
        let mark = |kept: u64| (kept + before / 256).min(units);
        let (min, spare) = (mark(kept), mark(kept * 5 / 4));
        let high = mark(kept * 3 / 2).max(spare + 1).min(units);
        Watermarks { min, spare, low: spare + 1, high, pass: (units / 4096).max(1) }
    }
}

/// What reclaim does with a dirty folio that is the next to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Leaves it to write-back, and looks for a clean one.
    #[default]
    Rotate,
    /// Writes it, alone, and looks for a clean one: the kernel's until 3.2 and, ever more seldom, for some years after.
    Write,
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
    fn asked(scope: Scope, limit: Limit, zones: &[Zone]) -> Vec<(usize, Attempt)> {
        let mut asked = Vec::new();
        let found = place(scope, limit, zones, |zone, attempt| {
            asked.push((zone, attempt));
            None::<()>
        });
        assert_eq!(found, None);
        asked
    }

    const FALLBACK: [(usize, Attempt); 3] =
        [(0, Attempt::Fallback), (1, Attempt::Fallback), (2, Attempt::Fallback)];

    #[test]
    fn what_is_kept_back_is_not_dirtyable_and_what_is_in_use_is() {
        assert_eq!(Zone { free: 10, reserve: 4, reclaimable: 7, unsaved: 3 }.dirtyable(), 13);
        assert_eq!(Zone { free: 3, reserve: 4, reclaimable: 7, unsaved: 0 }.dirtyable(), 7);
    }

    #[test]
    fn each_zone_s_share_is_its_part_of_the_limit() {
        let zones = machine([0; 3]);
        let all = dirtyable(&zones);
        let shares = |limit: Limit| zones.map(|zone| limit.share(zone.dirtyable(), all));
        assert_eq!(shares(Limit::Percent(40)), [51_609, 332_390, 1536]);
        assert_eq!(shares(Limit::Units(all / 2)), MACHINE.map(|pages| pages / 2));
        assert_eq!(Limit::Percent(40).of_all(&zones), 385_536);
        assert_eq!(Limit::Units(7).of_all(&zones), 7);
        assert_eq!((Limit::Units(7).share(0, 0), Limit::Percent(40).of_all(&[])), (0, 0));
        assert_eq!(Limit::Units(u64::MAX).share(1 << 40, 1 << 40), u64::MAX);
    }

    /// The shares never add up to more than the limit, nor to less by more than one unit a zone.
    #[test]
    fn shares_add_up_to_the_limit() {
        for parts in
            (0..=6).flat_map(|one| (0..=6).flat_map(move |two| (0..=6).map(move |three| [one, two, three])))
        {
            let all = parts.iter().sum();
            for limit in (0..=8).map(Limit::Units).chain([0, 1, 33, 100].map(Limit::Percent)) {
                let sum: u64 = parts.iter().map(|part| limit.share(*part, all)).sum();
                let whole = limit.share(all, all);
                assert!(sum <= whole && whole <= sum + 3, "{parts:?} {limit:?}: {sum} of {whole}");
            }
        }
    }

    #[test]
    fn a_zone_above_its_share_is_passed_over_and_one_at_it_is_not() {
        let limit = Limit::Percent(40);
        let first = |unsaved: [u64; 3]| {
            let asked = asked(Scope::Zone, limit, &machine(unsaved));
            let (below, rest) = asked.split_at(asked.len() - 3);
            assert_eq!(rest, FALLBACK, "any will do in the end");
            let of = |wanted| {
                let asked = below.iter().filter(|(_, attempt)| *attempt == wanted);
                asked.map(|(zone, _)| *zone).collect::<Vec<_>>()
            };
            assert_eq!(of(Attempt::Spare), of(Attempt::Reclaim), "the same zones reclaim");
            of(Attempt::Spare)
        };
        assert_eq!(first([51_609, 0, 0]), [0, 1, 2]);
        assert_eq!(first([51_610, 0, 0]), [1, 2]);
        assert_eq!(first([129_024, 332_391, 0]), [2]);
        assert_eq!(first([129_024, 332_391, 1537]), [0; 0], "none is below its share");
    }

    #[test]
    fn with_one_limit_for_all_a_zone_may_be_dirty_altogether() {
        let zones = machine([129_024, 0, 0]);
        let asked = asked(Scope::Global, Limit::Percent(40), &zones);
        assert_eq!(asked[..3], FALLBACK.map(|(zone, _)| (zone, Attempt::Spare)));
        assert_eq!(asked[6..], FALLBACK);
    }

    #[test]
    fn marks_are_those_of_the_source_s_machine() {
        let marks = |zone: usize| Reserve::Little.watermarks(MACHINE[zone], MACHINE[..zone].iter().sum());
        let of = |marks: Watermarks| [marks.min, marks.spare, marks.low, marks.high, marks.pass];
        assert_eq!(of(marks(0)), [262, 327, 328, 393, 31]);
        assert_eq!(of(marks(1)), [1692 + 504, 2115 + 504, 2116 + 504, 2538 + 504, 202]);
        assert_eq!(of(marks(2)), [7 + 3750, 8 + 3750, 9 + 3750, 10 + 3750, 1]);
    }

    /// Reclaim that has begun has an end, and what it frees can be taken.
    #[test]
    fn marks_are_in_order() {
        for reserve in [Reserve::Plenty, Reserve::Little] {
            for (units, before) in
                (1..200).chain([5000, 1 << 40]).flat_map(|units| [(units, 0), (units, 70_000)])
            {
                let Watermarks { min, spare, low, high, pass } = reserve.watermarks(units, before);
                assert!(min <= spare && spare <= high && high <= units, "{reserve:?} {units} {before}");
                assert!(spare < low && (low <= high || spare == units), "{reserve:?} {units} {before}");
                assert!(pass > 0);
            }
        }
    }

    /// Reserves lower the share: what others need cannot be full of dirty folios.
    #[test]
    fn a_reserve_is_no_part_of_the_share() {
        let limit = Limit::Percent(40);
        let with = |reserve| [Zone { free: 100, reserve, reclaimable: 0, unsaved: 30 }];
        assert!(is_below(Scope::Zone, limit, &with(25), 0));
        assert!(!is_below(Scope::Zone, limit, &with(26), 0));
    }

    /// On a machine of one zone the rule changes nothing but the name of the attempt.
    #[test]
    fn one_zone_is_asked_whatever_is_dirty() {
        for unsaved in 0..=10 {
            let zones = [zone(0, 10, unsaved)];
            let found = place(Scope::Zone, Limit::Percent(40), &zones, |zone, _| Some(zone));
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
            let found = place(Scope::Zone, Limit::Percent(50), &zones, |zone, _| has(zone).then_some(zone));
            let below = (0..3).find(|index| has(*index) && zones[*index].unsaved == 0);
            assert_eq!(found, below.or_else(|| (0..3).find(|index| has(*index))), "{bits:b}");
        }
    }
}
