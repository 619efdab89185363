//! Zones of memory: each has its share of the dirty limit, and, in each shard, slabs and a list of folios by who leaves next.
//!
//! A folio that is about to be dirtied gets memory of a zone below its share; one that is read gets any. So reclaim, which goes zone by zone,
//! finds clean folios in each of them. By default there is a zone for each NUMA node, as large in proportion; which memory the processor
//! then touches is up to the kernel. Zones without an order of preference take turns by size, so that all are aged alike.

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_policy::zones::{Zone, ZoneAttempt, place};

use super::folio::ZONES_MAX;
use super::places::Places;
use crate::page_cache::config::Division;

/// A zone; in blocks what is counted.
struct Kept {
    units: u64,
    /// Units that are free.
    free: AtomicU64,
    /// Blocks that are dirty, and those that are being written back.
    dirty: AtomicU64,
    moving: AtomicU64,
}

/// What a zone holds, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ZoneUsage {
    pub(crate) all: u64,
    pub(crate) free: u64,
    pub(crate) dirty: u64,
    pub(crate) moving: u64,
}

pub(crate) struct Zones {
    kept: Box<[Kept]>,
    division: Division,
    /// Blocks of a unit.
    blocks: u64,
    turns: AtomicU64,
}

impl Zones {
    /// `count` units, divided as `division` says.
    pub(crate) fn new(division: &Division, count: u64, places: &Places) -> Self {
        let kept = divided(count, division.parts()).into_iter().map(|units| Kept {
            units,
            free: AtomicU64::new(units),
            dirty: AtomicU64::new(0),
            moving: AtomicU64::new(0),
        });
        Self {
            kept: kept.collect(),
            division: division.clone(),
            blocks: places.unit_blocks().into(),
            turns: AtomicU64::new(0),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    fn sum(&self, of: impl Fn(&Kept) -> u64) -> u64 {
        self.kept.iter().map(of).sum()
    }

    /// Units that there may be.
    pub(crate) fn units(&self) -> u64 {
        self.sum(|zone| zone.units)
    }

    /// The units of each zone that each of so many shards has: dealt in turn, so that where there are enough no shard goes without.
    pub(crate) fn dealt(&self, shards: u64) -> Vec<Vec<u64>> {
        let mut first = 0;
        let mut parts = vec![Vec::new(); shards as usize];
        for Kept { units, .. } in &self.kept {
            for (shard, part) in (0..).zip(&mut parts) {
                let place = (shard + shards - first) % shards;
                part.push(units / shards + u64::from(place < units % shards));
            }
            first = (first + units) % shards;
        }
        parts
    }

    /// Units that are free.
    pub(crate) fn free(&self) -> u64 {
        self.sum(|zone| zone.free.load(Ordering::Relaxed))
    }

    /// Blocks that are dirty. Counted and read in one order with who waits for room: a writer sees them, or the engine its blocks.
    pub(crate) fn dirty(&self) -> u64 {
        self.sum(|zone| zone.dirty.load(Ordering::SeqCst))
    }

    /// Blocks that are being written back.
    pub(crate) fn moving(&self) -> u64 {
        self.sum(|zone| zone.moving.load(Ordering::Relaxed))
    }

    /// The zones in the order in which they are asked for memory.
    pub(crate) fn order(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let count = self.len();
        let first = if count == 1 || !self.division.zones.is_empty() { 0 } else { self.turn() };
        (first..first + count).map(move |zone| zone % count)
    }

    /// The zone whose turn it is: each as often as it has units.
    fn turn(&self) -> usize {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        // Neighbouring turns fall far from each other.
        let mut at = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.units();
        let mine = |zone: &Kept| {
            let here = at < zone.units;
            at = at.saturating_sub(zone.units);
            here
        };
        self.kept.iter().position(mine).expect("a turn is one of the units")
    }

    /// Units of a zone were taken.
    pub(crate) fn taken(&self, zone: u8, units: u64) {
        let before = self.kept[usize::from(zone)].free.fetch_sub(units, Ordering::Relaxed);
        assert!(before >= units, "{units} of {before} units in zone {zone}");
    }

    /// Units of a zone are free again.
    pub(crate) fn given(&self, zone: u8, units: u64) {
        let zone = &self.kept[usize::from(zone)];
        let before = zone.free.fetch_add(units, Ordering::Relaxed);
        assert!(
            before + units <= zone.units,
            "{units} units come back, and {before} of {} are free",
            zone.units
        );
    }

    /// Memory for a folio that is about to be dirtied, where `percent` of all may be unsaved: what `take` gets from a zone that is below its
    /// share, where one has any.
    pub(crate) fn place<T>(
        &self,
        percent: u64,
        mut take: impl FnMut(usize, ZoneAttempt) -> Option<T>,
    ) -> Option<T> {
        if self.len() == 1 {
            return take(0, ZoneAttempt::Fallback);
        }
        let zones_in_order: Vec<usize> = self.order().collect();
        let zones: Vec<Zone> = zones_in_order.iter().map(|zone| self.held(*zone).zone()).collect();
        place(percent, &zones, |nth, attempt| take(zones_in_order[nth], attempt))
    }

    /// Blocks have become dirty.
    pub(crate) fn dirtied(&self, zone: u8, blocks: u64) {
        self.kept[usize::from(zone)].dirty.fetch_add(blocks, Ordering::SeqCst);
    }

    /// Dirty blocks are on their way.
    pub(crate) fn begun(&self, zone: u8, blocks: u64) {
        let before = self.kept[usize::from(zone)].dirty.fetch_sub(blocks, Ordering::Relaxed);
        assert!(before >= blocks, "{blocks} dirty blocks of {before} in zone {zone}");
        self.kept[usize::from(zone)].moving.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Blocks are not on their way any more; so many of them are dirty again.
    pub(crate) fn ended(&self, zone: u8, blocks: u64, again: u64) {
        let before = self.kept[usize::from(zone)].moving.fetch_sub(blocks, Ordering::Relaxed);
        assert!(
            before >= blocks && again <= blocks,
            "{blocks} blocks of {before} end in zone {zone}, {again} dirty"
        );
        self.dirtied(zone, again);
    }

    pub(crate) fn held(&self, zone: usize) -> ZoneUsage {
        let zone = &self.kept[zone];
        ZoneUsage {
            all: zone.units * self.blocks,
            free: zone.free.load(Ordering::Relaxed) * self.blocks,
            dirty: zone.dirty.load(Ordering::Relaxed),
            moving: zone.moving.load(Ordering::Relaxed),
        }
    }
}

impl ZoneUsage {
    fn zone(self) -> Zone {
        let Self { all, free, dirty, moving } = self;
        Zone { free, reserve: 0, reclaimable: all - free, unsaved: dirty + moving }
    }

    /// Blocks of folios that hold nothing the device below does not have.
    pub(crate) fn clean(self) -> u64 {
        self.all.saturating_sub(self.free + self.dirty + self.moving)
    }
}

/// `count` units divided by these parts, one at least for each; those beyond the most that there may be are left out.
fn divided(count: u64, parts: &[u64]) -> Vec<u64> {
    let parts = &parts[..parts.len().min(ZONES_MAX).min(usize::try_from(count).unwrap_or(ZONES_MAX))];
    let all: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if parts.len() < 2 || all == 0 {
        return vec![count];
    }
    // One each is set aside; where the rest begins and ends is rounded, so that nothing is lost.
    let rest = u128::from(count) - parts.len() as u128;
    let mut before = 0;
    let begin = |parts: u128| (rest * parts / all) as u64;
    let share = |part: &u64| {
        let first = begin(before);
        before += u128::from(*part);
        1 + begin(before) - first
    };
    parts.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_divided_without_rest() {
        assert_eq!(divided(100, &[]), [100]);
        assert_eq!(divided(100, &[7]), [100]);
        assert_eq!(divided(100, &[0, 0]), [100]);
        assert_eq!(divided(103, &[1, 2, 1]), [26, 51, 26]);
        assert_eq!(divided(4, &[1000, 1, 0, 0]), [1, 1, 1, 1]);
        assert_eq!(divided(2, &[1, 1, 1]), [1, 1]);
        assert_eq!(divided(1 << 40, &[1 << 62, 1 << 63]).iter().sum::<u64>(), 1 << 40);
        let many = divided(1000, &[3; 100]);
        assert_eq!((many.len(), many.iter().sum()), (ZONES_MAX, 1000));
    }

    /// Blocks, units and folios are the same.
    const PLACES: Places =
        Places { block_shift: 12, unit_shift: 12, order_max: 0, region_shift: 12, shards: 1 };

    fn zones(parts: &[u64]) -> Zones {
        let division = Division { zones: parts.to_vec(), ..Division::default() };
        Zones::new(&division, 100, &PLACES)
    }

    #[test]
    fn zones_without_preference_take_turns_by_their_size() {
        let zones = Zones::new(&Division { nodes: vec![1, 3], ..Division::default() }, 400, &PLACES);
        let first = (0..4000).filter(|_| zones.order().next() == Some(0)).count();
        assert!((900..1100).contains(&first), "{first} of 4000 for a quarter");
    }

    /// Takes a unit of a zone, if one is free.
    fn take(zones: &Zones, zone: usize) -> Option<u8> {
        let any = zones.held(zone).free > 0;
        any.then(|| zones.taken(zone as u8, 1)).map(|()| zone as u8)
    }

    #[test]
    fn each_shard_has_its_part_of_each_zone() {
        let zones = Zones::new(&Division { zones: vec![1, 1, 6], ..Division::default() }, 11, &PLACES);
        let dealt = zones.dealt(4);
        let sums: Vec<u64> = dealt.iter().map(|part| part.iter().sum()).collect();
        assert_eq!((sums, zones.units()), (vec![3, 3, 3, 2], 11));
        let of_zone = |zone: usize| dealt.iter().map(|part| part[zone]).sum::<u64>();
        assert_eq!([0, 1, 2].map(of_zone), [0, 1, 2].map(|zone| zones.held(zone).all));
        assert_eq!(zones.dealt(1), [[0, 1, 2].map(of_zone)]);
    }

    /// The zones from which memory comes until none is free, each unit dirtied.
    fn dirtied(percent: u64) -> Vec<u8> {
        let zones = zones(&[20, 80]);
        let free = |zone, attempt| if attempt == ZoneAttempt::Reclaim { None } else { take(&zones, zone) };
        let dirty = || zones.place(percent, free).inspect(|zone| zones.dirtied(*zone, 1));
        std::iter::from_fn(dirty).collect()
    }

    #[test]
    fn what_is_dirtied_goes_to_a_zone_below_its_share() {
        let before = |zones: &[u8], count: usize| zones[..count].iter().filter(|zone| **zone == 0).count();
        let with = dirtied(40);
        // One more than its share: at it, a zone is not above it.
        assert_eq!((before(&with, 9), before(&with, 41)), (9, 9));
        assert_eq!(with.len(), 100, "where none is below its share any will do");
        assert_eq!(before(&dirtied(100), 20), 20, "where all may be unsaved the first is filled");
    }

    #[test]
    fn a_zone_below_its_share_reclaims_before_another_above_it_gives_its_free_memory() {
        let zones = zones(&[20, 80]);
        while take(&zones, 1).is_some() {}
        zones.dirtied(0, 20);
        let ask = |reclaimed: Option<u8>| {
            zones.place(40, |zone, attempt| match attempt {
                ZoneAttempt::Reclaim => reclaimed.filter(|reclaimed| usize::from(*reclaimed) == zone),
                _ => take(&zones, zone),
            })
        };
        assert_eq!(ask(Some(1)), Some(1), "it reclaims");
        assert_eq!(ask(None), Some(0), "any will do");
        assert_eq!((zones.held(1).clean(), zones.held(0).free), (80, 19));
    }
}
