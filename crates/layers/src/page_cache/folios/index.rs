//! Where the folios of a shard lie.
//!
//! Each unit of a folio has an entry in a hash table (`units`): one look-up finds a folio of any size. Folios are in lists by region as well, so that
//! those of a region are found without asking for each of its units; a list may have those of other regions too.
//!
//! A folio of 2 MiB has 512 entries, which takes a part of the time that copying its content does. Fewer would save no memory: it is charged for
//! folios of one unit.

use std::ops::Range;

use super::folio::{Folio, FolioPlace};
use super::places::{FolioSpan, Places, UnitNumber};
use super::shares::Share;
use super::units::Units;
use crate::page_cache::work::FOLIO;
use crate::slice::note;

/// Units for each list.
const LIST_UNITS: u64 = 16;

/// Units that are asked for one by one, at most.
const FEW: u64 = 32;

pub(crate) struct Index {
    units: Units,
    /// The first folio of each list.
    lists: Box<[FolioPlace]>,
    /// A region has 2^order units.
    region_order: u32,
}

#[inline]
fn at(zones: &[Share], place: FolioPlace) -> &Folio {
    zones[place.zone()].slots.at(place.slot())
}

fn at_mut(zones: &mut [Share], place: FolioPlace) -> &mut Folio {
    zones[place.zone()].slots.at_mut(place.slot())
}

fn units(span: FolioSpan) -> impl Iterator<Item = UnitNumber> {
    (span.unit.0..span.end().0).map(UnitNumber)
}

impl Index {
    /// Bytes that it takes for each unit, but for lists; and beside that.
    pub(crate) const BYTES_EACH: u64 = Units::BYTES_EACH;
    pub(crate) const BYTES_SPARE: u64 = Units::BYTES_SPARE + size_of::<FolioPlace>() as u64 + 16;

    /// Bytes of lists for so many units.
    pub(crate) const fn list_bytes(units: u64) -> u64 {
        size_of::<FolioPlace>() as u64 * units.div_ceil(LIST_UNITS)
    }

    /// Of folios that have no more than so many units together.
    pub(crate) fn new(units: u64, places: &Places) -> Self {
        let lists = vec![FolioPlace::NOWHERE; (units / LIST_UNITS + 1) as usize].into();
        Self { units: Units::new(units), lists, region_order: places.region_shift - places.unit_shift }
    }

    /// The folio that has a unit, and its place.
    #[inline(always)]
    pub(crate) fn find<'a>(&self, zones: &'a [Share], unit: UnitNumber) -> Option<(&'a Folio, FolioPlace)> {
        let mut met = None;
        // The last that is met is the one that is found.
        self.units.find(self.units.print(unit.0), |held| {
            let (folio, _) = met.insert((at(zones, FolioPlace(held)), FolioPlace(held)));
            folio.has(unit)
        })?;
        met
    }

    /// The list of a unit's region.
    fn list(&self, unit: UnitNumber) -> usize {
        self.units.print(unit.0 >> self.region_order).of(self.lists.len())
    }

    fn listed<'a>(&self, zones: &'a [Share], list: usize) -> impl Iterator<Item = &'a Folio> {
        let folio = |place: FolioPlace| (place != FolioPlace::NOWHERE).then(|| at(zones, place));
        std::iter::successors(folio(self.lists[list]), move |last| folio(last.beside[0]))
    }

    /// A folio is there.
    pub(crate) fn insert(&mut self, zones: &mut [Share], place: FolioPlace) {
        let span = at(zones, place).span();
        units(span).for_each(|unit| self.units.insert(self.units.print(unit.0), place.0));
        let first = &mut self.lists[self.list(span.unit)];
        let next = std::mem::replace(first, place);
        at_mut(zones, place).beside = [next, FolioPlace::NOWHERE];
        if next != FolioPlace::NOWHERE {
            at_mut(zones, next).beside[1] = place;
        }
    }

    /// A folio is about to leave.
    pub(crate) fn remove(&mut self, zones: &mut [Share], place: FolioPlace) {
        let (span, [next, last]) = (at(zones, place).span(), at(zones, place).beside);
        for unit in units(span) {
            let entry = self.units.find(self.units.print(unit.0), |held| held == place.0);
            self.units.remove(entry.expect("each unit of a folio has its entry"));
        }
        match last {
            FolioPlace::NOWHERE => self.lists[self.list(span.unit)] = next,
            last => at_mut(zones, last).beside[0] = next,
        }
        if next != FolioPlace::NOWHERE {
            at_mut(zones, next).beside[1] = last;
        }
    }

    /// The folios that have some of these units, in order.
    pub(crate) fn within<'a>(&self, zones: &'a [Share], units: Range<UnitNumber>) -> Vec<&'a Folio> {
        if units.end.0 - units.start.0 <= FEW {
            return self.one_by_one(zones, units);
        }
        let touches = |folio: &&Folio| folio.unit < units.end && folio.span().end() > units.start;
        let regions = units.start.0 >> self.region_order..=(units.end.0 - 1) >> self.region_order;
        let mut found: Vec<&Folio> = if regions.end() - regions.start() >= self.lists.len() as u64 {
            zones.iter().flat_map(|zone| zone.slots.all()).filter(touches).collect()
        } else {
            let listed = |region: u64| {
                let (order, list) = (self.region_order, self.list(UnitNumber(region << self.region_order)));
                self.listed(zones, list).filter(move |folio| folio.unit.0 >> order == region)
            };
            regions.flat_map(listed).filter(touches).collect()
        };
        found.sort_unstable_by_key(|folio| folio.unit);
        note(found.len() as u32 * FOLIO);
        found
    }

    fn one_by_one<'a>(&self, zones: &'a [Share], units: Range<UnitNumber>) -> Vec<&'a Folio> {
        let (mut found, mut at) = (Vec::new(), units.start);
        while at < units.end {
            let folio = self.find(zones, at).map(|(folio, _)| folio);
            found.extend(folio);
            at = folio.map_or(UnitNumber(at.0 + 1), |folio| folio.span().end());
        }
        found
    }

    /// Asserts that each folio is found by each of its units, and is in its list.
    pub(crate) fn verify(&self, zones: &[Share]) {
        let (mut folios, mut entries, mut listed) = (0, 0, 0);
        for span in zones.iter().flat_map(|zone| zone.slots.all()).map(Folio::span) {
            for unit in units(span) {
                let found = self.find(zones, unit).map(|(folio, _)| folio.span());
                assert_eq!(found, Some(span), "{unit:?}");
                entries += 1;
            }
            folios += 1;
        }
        for list in 0..self.lists.len() {
            let right = |folio: &Folio| self.list(folio.unit) == list;
            listed += self
                .listed(zones, list)
                .inspect(|folio| assert!(right(folio), "a folio is in its list"))
                .count();
        }
        assert_eq!((self.units.len(), listed), (entries, folios), "each folio has its places");
    }
}
