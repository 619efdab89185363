//! Zones of memory: each has frames of its own, its share of the dirty limit, and, in each shard, a list of its folios by who leaves next.
//!
//! A folio that is about to be dirtied gets memory of a zone below its share; one that is read gets any. So reclaim, which goes zone by zone,
//! finds clean folios in each of them. By default there is a zone for each NUMA node, as large in proportion; which memory the processor
//! then touches is up to the kernel. Zones without an order of preference take turns by size, so that all are aged alike.

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_policy::zones::{Attempt, Limit, Reserve, Watermarks, Zone, place};

use super::folios::ZONES_MAX;
use super::frames::{Frame, Frames};
use super::settings::Division;

/// A zone; in blocks what is counted.
struct Kept {
    frames: Frames,
    /// Blocks that are dirty, and those that are being written back.
    dirty: AtomicU64,
    moving: AtomicU64,
}

/// What a zone holds, in blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) all: u64,
    pub(super) free: u64,
    pub(super) dirty: u64,
    pub(super) moving: u64,
}

pub(super) struct Zones {
    kept: Box<[Kept]>,
    division: Division,
    /// Blocks of a frame.
    blocks: u64,
    turns: AtomicU64,
}

impl Zones {
    /// `count` frames of `bytes` and `blocks` each, divided as `division` says.
    pub(super) fn new(division: &Division, count: u64, bytes: u64, blocks: u64) -> Self {
        let kept = divided(count, division.parts()).into_iter().map(|count| Kept {
            frames: Frames::new(count, bytes),
            dirty: AtomicU64::new(0),
            moving: AtomicU64::new(0),
        });
        Self { kept: kept.collect(), division: division.clone(), blocks, turns: AtomicU64::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    fn sum(&self, of: impl Fn(&Kept) -> u64) -> u64 {
        self.kept.iter().map(of).sum()
    }

    /// Frames that there may be.
    pub(super) fn frames(&self) -> u64 {
        self.sum(|zone| zone.frames.count())
    }

    /// Frames of a zone.
    pub(super) fn frames_of(&self, zone: usize) -> u64 {
        self.kept[zone].frames.count()
    }

    /// Frames of a zone that are free, made or not.
    pub(super) fn free_of(&self, zone: usize) -> u64 {
        self.kept[zone].frames.free()
    }

    /// Frames that have memory, in use or not.
    pub(super) fn made(&self) -> u64 {
        self.sum(|zone| zone.frames.made())
    }

    /// Frames that are free, made or not.
    pub(super) fn free(&self) -> u64 {
        self.sum(|zone| zone.frames.free())
    }

    /// The zones in the order in which they are asked for memory.
    pub(super) fn order(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let count = self.len();
        let first = if count == 1 || !self.division.zones.is_empty() { 0 } else { self.turn() };
        (first..first + count).map(move |zone| zone % count)
    }

    /// The zone whose turn it is: each as often as it has frames.
    fn turn(&self) -> usize {
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        // Neighbouring turns fall far from each other.
        let mut at = turn.wrapping_mul(0x9e37_79b9_7f4a_7c15) % self.frames();
        let mine = |zone: &Kept| {
            let here = at < zone.frames.count();
            at = at.saturating_sub(zone.frames.count());
            here
        };
        self.kept.iter().position(mine).expect("a turn is one of the frames")
    }

    /// What is free of a zone when something changes.
    pub(super) fn watermarks(&self, zone: usize) -> Watermarks {
        let before = self.kept[..zone].iter().map(|zone| zone.frames.count()).sum();
        self.division.reserve.watermarks(self.frames_of(zone), before)
    }

    /// Whether requests reclaim memory themselves where none is free.
    pub(super) fn reclaim_directly(&self) -> bool {
        self.division.reserve == Reserve::Plenty
    }

    /// A free frame for a request: of the first of `zones` that has some to spare, else of the first that has any for it.
    pub(super) fn take_any(&self, mut zones: impl Iterator<Item = usize> + Clone) -> Option<Frame> {
        let spare = zones.clone().find_map(|zone| self.take_spare(zone));
        spare.or_else(|| zones.find_map(|zone| self.take_last(zone)))
    }

    fn take_spare(&self, zone: usize) -> Option<Frame> {
        self.take_above(zone, self.watermarks(zone).spare)
    }

    fn take_last(&self, zone: usize) -> Option<Frame> {
        self.take_above(zone, self.watermarks(zone).min)
    }

    fn take_above(&self, zone: usize, mark: u64) -> Option<Frame> {
        if mark > 0 && self.free_of(zone) <= mark { None } else { self.take(zone) }
    }

    /// A free frame of a zone.
    fn take(&self, zone: usize) -> Option<Frame> {
        let bytes = self.kept[zone].frames.take()?;
        Some(Frame { zone: zone as u16, bytes })
    }

    pub(super) fn put(&self, frame: Frame) {
        self.kept[usize::from(frame.zone)].frames.put(frame.bytes);
    }

    /// Memory for a folio that is about to be dirtied, where `percent` of all may be unsaved: a free frame, or one that `reclaim` gets from
    /// a zone. In a zone below its share, where one has any.
    pub(super) fn place(&self, percent: u64, reclaim: impl Fn(usize) -> Option<Frame>) -> Option<Frame> {
        if self.len() == 1 {
            return self.take_last(0).or_else(|| reclaim(0));
        }
        let order: Vec<usize> = self.order().collect();
        let zones: Vec<Zone> = order.iter().map(|zone| self.held(*zone).zone()).collect();
        place(self.division.scope, Limit::Percent(percent), &zones, |nth, attempt| match attempt {
            Attempt::Spare => self.take_spare(order[nth]),
            Attempt::Reclaim => reclaim(order[nth]),
            Attempt::Fallback => self.take_last(order[nth]).or_else(|| reclaim(order[nth])),
        })
    }

    /// Blocks have become dirty.
    pub(super) fn dirtied(&self, zone: u16, blocks: u64) {
        self.kept[usize::from(zone)].dirty.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Dirty blocks are on their way.
    pub(super) fn begun(&self, zone: u16, blocks: u64) {
        let before = self.kept[usize::from(zone)].dirty.fetch_sub(blocks, Ordering::Relaxed);
        assert!(before >= blocks, "{blocks} dirty blocks of {before} in zone {zone}");
        self.kept[usize::from(zone)].moving.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Blocks are not on their way any more; so many of them are dirty again.
    pub(super) fn ended(&self, zone: u16, blocks: u64, again: u64) {
        let before = self.kept[usize::from(zone)].moving.fetch_sub(blocks, Ordering::Relaxed);
        assert!(
            before >= blocks && again <= blocks,
            "{blocks} blocks of {before} end in zone {zone}, {again} dirty"
        );
        self.dirtied(zone, again);
    }

    pub(super) fn held(&self, zone: usize) -> Held {
        let zone = &self.kept[zone];
        Held {
            all: zone.frames.count() * self.blocks,
            free: zone.frames.free() * self.blocks,
            dirty: zone.dirty.load(Ordering::Relaxed),
            moving: zone.moving.load(Ordering::Relaxed),
        }
    }
}

impl Held {
    fn zone(self) -> Zone {
        let Self { all, free, dirty, moving } = self;
        Zone { free, reserve: 0, reclaimable: all - free, unsaved: dirty + moving }
    }

    /// Blocks of folios that hold nothing the device below does not have.
    pub(super) fn clean(self) -> u64 {
        self.all.saturating_sub(self.free + self.dirty + self.moving)
    }
}

/// `count` frames divided by these parts, one at least for each; those beyond the most that there may be are left out.
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
    use spillway_policy::zones::Scope;

    #[test]
    fn frames_are_divided_without_rest() {
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

    fn zones(parts: &[u64], scope: Scope) -> Zones {
        let division = Division { zones: parts.to_vec(), scope, ..Division::default() };
        Zones::new(&division, 100, 4096, 1)
    }

    #[test]
    fn zones_without_preference_take_turns_by_their_size() {
        let zones = Zones::new(&Division { nodes: vec![1, 3], ..Division::default() }, 400, 4096, 1);
        let first = (0..4000).filter(|_| zones.order().next() == Some(0)).count();
        assert!((900..1100).contains(&first), "{first} of 4000 for a quarter");
    }

    /// The zones from which frames come until none is free, each dirtied.
    fn dirtied(scope: Scope) -> Vec<u16> {
        let zones = zones(&[20, 80], scope);
        let take = || zones.place(40, |_| None).inspect(|frame| zones.dirtied(frame.zone, 1));
        std::iter::from_fn(take).map(|frame| frame.zone).collect()
    }

    #[test]
    fn what_is_dirtied_goes_to_a_zone_below_its_share() {
        let before = |zones: &[u16], count: usize| zones[..count].iter().filter(|zone| **zone == 0).count();
        let with = dirtied(Scope::Zone);
        // One more than its share: at it, a zone is not above it.
        assert_eq!((before(&with, 9), before(&with, 41)), (9, 9));
        assert_eq!(with.len(), 100, "where none is below its share any will do");
        assert_eq!(before(&dirtied(Scope::Global), 20), 20, "with one limit for all the first is filled");
    }

    #[test]
    fn a_zone_below_its_share_reclaims_before_another_above_it_gives_its_free_memory() {
        let zones = zones(&[20, 80], Scope::Zone);
        let all: Vec<Frame> = std::iter::from_fn(|| zones.take(1)).collect();
        zones.dirtied(0, 20);
        let asked = zones.place(40, |zone| (zone == 1).then(|| Frame { zone: 1, bytes: Box::default() }));
        assert_eq!((asked.expect("it reclaims").zone, all.len()), (1, 80));
        assert_eq!(zones.place(40, |_| None).expect("any will do").zone, 0);
        assert_eq!((zones.held(1).clean(), zones.held(0).free), (80, 19));
    }
}
