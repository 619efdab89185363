//! Regions beside a model of them.

use super::*;
use proptest::prelude::*;

const REGIONS: u64 = 4;
const BLOCKS: usize = 3;

fn at(region: usize) -> RegionNumber {
    RegionNumber(region as u64)
}

/// When each block became dirty, and when what a batch has of it did.
#[derive(Default)]
struct World {
    dirty: [[Option<Stamp>; BLOCKS]; REGIONS as usize],
    writing: [Option<[Option<Stamp>; BLOCKS]>; REGIONS as usize],
    regions: DirtyRegions,
}

impl World {
    fn write(&mut self, region: usize, block: usize, stamp: Stamp) {
        let fresh = self.dirty[region][block].is_none();
        self.dirty[region][block].get_or_insert(stamp);
        self.regions.dirtied(at(region), u64::from(fresh), stamp);
    }

    fn take(&mut self, region: usize) {
        self.regions.take(at(region));
        self.writing[region] = Some(std::mem::take(&mut self.dirty[region]));
    }

    fn take_part(&mut self, region: usize, block: usize) {
        self.regions.take_part(at(region), 1);
        let mut part = [None; BLOCKS];
        part[block] = self.dirty[region][block].take();
        self.writing[region] = Some(part);
    }

    fn end(&mut self, region: usize, landed: bool) {
        let batch = self.writing[region].take().expect("it is written back");
        let mut failed = 0;
        for (dirty, stamp) in self.dirty[region].iter_mut().zip(batch) {
            if let (false, Some(stamp)) = (landed, stamp) {
                failed += u64::from(dirty.is_none());
                *dirty = Some(stamp);
            }
        }
        let end = if landed { BatchEnd::Landed } else { BatchEnd::Withdrawn };
        self.regions.ended(at(region), end, failed);
    }

    /// The oldest stamp of anything that the device below may not have.
    fn oldest(&self, region: usize) -> Option<Stamp> {
        let batch = self.writing[region].iter().flatten();
        self.dirty[region].iter().chain(batch).filter_map(|stamp| *stamp).min()
    }

    fn check(&self) {
        self.regions.verify();
        let dirty = self.dirty.iter().flatten().filter(|stamp| stamp.is_some()).count();
        assert_eq!(self.regions.blocks(), dirty as u64);
        let oldest = (0..REGIONS as usize).filter_map(|region| self.oldest(region)).min();
        // It may be called older than it is, never younger.
        assert!(self.regions.oldest() <= oldest || oldest.is_none());
        assert_eq!(
            self.regions.oldest().is_none(),
            oldest.is_none() && self.writing.iter().all(Option::is_none)
        );
        for region in 0..REGIONS as usize {
            let (dirty, writing) = (&self.dirty[region], &self.writing[region]);
            let dirty = dirty.iter().any(Option::is_some);
            match self.regions.state(at(region)) {
                RegionState::Clean => assert!(!dirty && writing.is_none()),
                RegionState::Dirty => assert!(dirty && writing.is_none()),
                RegionState::Writing(_) => assert!(writing.is_some()),
            }
            let can_go = dirty && writing.is_none();
            assert_eq!(self.regions.next(at(region), Stamp::MAX) == Some(at(region)), can_go);
        }
    }
}

proptest! {
    #[test]
    fn nothing_dirty_is_forgotten_or_called_younger(
        steps in prop::collection::vec((0u8..6, 0..REGIONS as usize, 0..BLOCKS), 1..200),
    ) {
        let mut world = World::default();
        for (now, (kind, region, block)) in (1..).zip(steps) {
            let writing = world.writing[region].is_some();
            match kind {
                0 | 1 => world.write(region, block, Stamp(now)),
                2 if !writing && world.dirty[region].iter().any(Option::is_some) => world.take(region),
                3 if writing => world.end(region, block > 0),
                4 if !writing && world.dirty[region][block].is_some() => world.take_part(region, block),
                _ => {}
            }
            world.check();
        }
    }

    /// Whatever is dirtied meanwhile, what was dirty at a moment is below after each region was written back twice.
    #[test]
    fn writers_do_not_hold_up_who_waits_for_what_is_older(
        writes in prop::collection::vec((0..REGIONS as usize, 0..BLOCKS), 1..40),
    ) {
        let mut world = World::default();
        (0..REGIONS as usize).for_each(|region| world.write(region, 0, Stamp(1)));
        world.take(0);
        let mut writes = writes.into_iter().cycle();
        let mut ends = 0;
        while world.regions.oldest().is_some_and(|oldest| oldest < Stamp(2)) {
            let (region, block) = writes.next().expect("it has no end");
            world.write(region, block, Stamp(2));
            for region in 0..REGIONS as usize {
                if world.writing[region].is_some() {
                    world.end(region, true);
                    ends += 1;
                } else if world.regions.next(at(region), Stamp(2)) == Some(at(region)) {
                    world.take(region);
                }
            }
            prop_assert!(ends <= 2 * REGIONS, "laps without end");
        }
    }
}

#[test]
fn what_is_past_its_deadline_is_found_among_younger_ones() {
    let mut regions = DirtyRegions::default();
    for (region, stamp) in [(5, 9), (3, 8), (7, 2), (1, 9)] {
        regions.dirtied(at(region), 1, Stamp(stamp));
    }
    assert_eq!(regions.next(at(0), Stamp(3)), Some(at(7)));
    assert_eq!(regions.next(at(0), Stamp::MAX), Some(at(1)));
    assert_eq!(regions.next(at(2), Stamp::MAX), Some(at(3)));
    regions.take(at(7));
    assert_eq!(regions.next(at(0), Stamp(3)), None);
    assert_eq!(regions.oldest(), Some(Stamp(2)), "it is not below yet");
}

#[test]
fn a_region_is_due_by_its_oldest_block_until_a_batch_has_failed() {
    let mut regions = DirtyRegions::default();
    regions.dirtied(at(1), 1, Stamp(2));
    regions.dirtied(at(1), 1, Stamp(9));
    let asked = [(1, 2), (1, 3), (2, 3)];
    let due = |regions: &DirtyRegions| asked.map(|(region, stamp)| regions.is_due(at(region), Stamp(stamp)));
    assert_eq!(due(&regions), [false, true, false]);
    for (end, expected) in [(BatchEnd::Withdrawn, true), (BatchEnd::Failed, false)] {
        regions.take(at(1));
        regions.ended(at(1), end, 2);
        assert_eq!(due(&regions), [false, expected, false], "{end:?}");
    }
}

/// Who waits for a batch that has all that is dirty must not take a part for it.
#[test]
fn a_part_is_no_batch_to_wait_for_and_leaves_the_rest_as_old_as_it_was() {
    let mut regions = DirtyRegions::default();
    regions.dirtied(at(1), 3, Stamp(5));
    let last = regions.taken();
    regions.take_part(at(1), 2);
    assert!(matches!(regions.state(at(1)), RegionState::Writing(number) if number <= last));
    regions.dirtied(at(1), 1, Stamp(9));
    regions.ended(at(1), BatchEnd::Landed, 0);
    assert_eq!(
        (regions.state(at(1)), regions.blocks(), regions.oldest()),
        (RegionState::Dirty, 2, Some(Stamp(5)))
    );
    let whole = regions.take(at(1));
    regions.dirtied(at(1), 1, Stamp(9));
    regions.ended(at(1), BatchEnd::Landed, 0);
    regions.take_part(at(1), 1);
    assert!(regions.has_landed(at(1), whole), "what has landed stays so");
    regions.ended(at(1), BatchEnd::Landed, 0);
    assert_eq!(regions.state(at(1)), RegionState::Clean);
}

#[test]
fn a_failed_batch_is_as_old_as_it_was() {
    let mut regions = DirtyRegions::default();
    regions.dirtied(at(1), 2, Stamp(5));
    let number = regions.take(at(1));
    regions.dirtied(at(1), 1, Stamp(9));
    regions.ended(at(1), BatchEnd::Failed, 1);
    assert_eq!((regions.oldest(), regions.blocks()), (Some(Stamp(5)), 2));
    assert_eq!((regions.has_failed(at(1), number), regions.has_landed(at(1), number)), (true, false));
    let later = regions.take(at(1));
    regions.dirtied(at(1), 1, Stamp(11));
    regions.ended(at(1), BatchEnd::Landed, 0);
    assert!(regions.has_landed(at(1), number) && regions.has_landed(at(1), later));
    assert_eq!((regions.oldest(), regions.taken()), (Some(Stamp(11)), later));
}
