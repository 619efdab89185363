//! What a shard of the cache holds: folios by where they lie, in the order in which they leave, and which regions are dirty.
//!
//! Folios of several sizes lie side by side, never over each other.

pub(super) mod folio;
pub(super) mod index;
pub(super) mod places;
pub(super) mod shares;
pub(super) mod slabs;
pub(super) mod units;
pub(super) mod wanted;
pub(super) mod zones;

use std::ops::Range;
use std::sync::Arc;

use spillway_core::{ByteRange, Regions, mutant};
use spillway_policy::dirty_regions::{DirtyRegions, RegionNumber, Stamp};
use spillway_policy::eviction::S3Fifo;
use spillway_policy::folio::FolioState;
use spillway_policy::zones::Watermarks;

use super::work::{FOLIO, copied};
use crate::slice::{Slice, note};
use folio::{Folio, FolioPlace};
use index::Index;
use places::{FolioSpan, ORDERS, Piece, Places, UnitNumber};
use shares::{SLOT_BYTES, Share, Traffic};
use slabs::Frame;
use wanted::WantedRanges;

/// A shard of the cache, behind its lock.
pub(super) struct Folios {
    places: Places,
    pub(super) zones: Box<[Share]>,
    index: Index,
    /// Folios of each order.
    pub(super) orders: [u32; ORDERS],
    pub(super) dirty: DirtyRegions,
    /// What clients wait for there.
    pub(super) wanted: WantedRanges,
}

/// Bytes that a folio of so many blocks takes beside its content: slot, entry in the index, queues, blocks' state and what the allocator keeps
/// of that. Lists of the index and dirty regions are charged for many together.
pub(super) const fn bytes_beside(blocks: u32) -> u64 {
    let state = FolioState::bytes_max(blocks);
    let allocated = if state > 0 { 2 } else { 0 };
    SLOT_BYTES + Index::BYTES_EACH + S3Fifo::BYTES_A_FOLIO + state + 16 * allocated
}

/// A folio that has left.
pub(super) struct Evicted {
    pub(super) span: FolioSpan,
    /// It was read ahead, and not accessed since.
    pub(super) unread: bool,
}

impl Folios {
    /// With so many units of each zone.
    pub(super) fn new(places: Places, units: &[u64], regions: &Arc<dyn Regions>) -> Self {
        let share = |(zone, units): (u8, &u64)| Share::new(zone, *units, &places, regions.clone());
        Self {
            places,
            zones: (0..).zip(units).map(share).collect(),
            index: Index::new(units.iter().sum(), &places),
            orders: [0; ORDERS],
            dirty: DirtyRegions::default(),
            wanted: WantedRanges::default(),
        }
    }

    /// Units that folios have.
    pub(super) fn units(&self) -> u64 {
        (0..).zip(self.orders).map(|(order, folios)| u64::from(folios) << order).sum()
    }

    fn find(&self, unit: UnitNumber) -> Option<(&Folio, FolioPlace)> {
        self.index.find(&self.zones, unit)
    }

    /// The folio that has a unit.
    pub(super) fn get(&self, unit: UnitNumber) -> Option<&Folio> {
        Some(self.find(unit)?.0)
    }

    pub(super) fn get_mut(&mut self, unit: UnitNumber) -> Option<&mut Folio> {
        let (_, place) = self.find(unit)?;
        Some(self.zones[place.zone()].slots.at_mut(place.slot()))
    }

    /// What stands in a part of a folio.
    #[inline]
    pub(super) fn bytes(&self, folio: &Folio, bytes: Range<usize>) -> &[u8] {
        self.zones[usize::from(folio.zone())].slabs.bytes(&folio.frame, bytes)
    }

    /// Puts bytes into the folio that has a unit, from byte `at` of it on.
    pub(super) fn put(&mut self, unit: UnitNumber, at: usize, bytes: &[u8]) {
        note(copied(bytes.len() as u64));
        let (_, place) = self.find(unit).expect("it is there");
        self.zones[place.zone()].bytes_mut(place.slot(), at..at + bytes.len()).copy_from_slice(bytes);
    }

    /// The folio that has the byte of `range` at `start`, and what it has of the rest of the range.
    #[inline(always)]
    pub(super) fn at(&self, range: ByteRange, start: u64) -> Option<(&Folio, Piece)> {
        let (folio, _) = self.index.find(&self.zones, self.places.unit_at(range.offset + start))?;
        Some((folio, self.places.piece(range, start, folio.span())))
    }

    /// The pieces of `range`, all of which is in folios.
    pub(super) fn pieces(&self, range: ByteRange) -> Vec<Piece> {
        let (mut pieces, mut start) = (Vec::new(), 0);
        while start < range.len {
            let (_, piece) = self.at(range, start).expect("what is dirty or on its way stays");
            start += piece.bytes.len() as u64;
            pieces.push(piece);
        }
        note(pieces.len() as u32 * FOLIO);
        pieces
    }

    /// The largest span from `unit` on, which no folio has, that would lie over no folio; at most of `order`.
    pub(super) fn room(&self, unit: UnitNumber, order: u8) -> FolioSpan {
        if order == 0 || mutant::on("page_cache: bring a folio in over another") {
            return FolioSpan { unit, order };
        }
        let end = FolioSpan { unit, order }.end();
        let next = self.index.within(&self.zones, unit..end).first().map_or(end, |folio| folio.unit);
        FolioSpan { unit, order: (next.0 - unit.0).ilog2() as u8 }
    }

    /// Memory of a zone for a folio of `order`, or of the largest below it for which there is some.
    pub(super) fn take(&mut self, zone: usize, order: u8) -> Option<Frame> {
        self.zones[zone].slabs.take(order)
    }

    /// Gives memory back that was not used after all.
    pub(super) fn give(&mut self, frame: Frame) {
        self.zones[usize::from(frame.zone)].slabs.put(frame);
    }

    /// Whether folios of `zone` are to leave, until enough of it is free.
    pub(super) fn is_wanting(&self, zone: usize) -> bool {
        self.free_of(zone) < self.watermarks(zone).high
    }

    /// Whether there is no memory of `zone`.
    pub(super) fn has_none(&self, zone: usize) -> bool {
        self.zones[zone].slabs.units() == 0
    }

    /// Whether so little of each zone is free that folios are to leave.
    pub(super) fn is_low(&self) -> bool {
        (0..self.zones.len()).all(|zone| self.free_of(zone) < self.watermarks(zone).low)
    }

    /// What is free of a zone when something changes.
    pub(super) fn watermarks(&self, zone: usize) -> Watermarks {
        self.zones[zone].watermarks
    }

    /// Units of a zone that are free.
    pub(super) fn free_of(&self, zone: usize) -> u64 {
        self.zones[zone].slabs.free()
    }

    /// A new folio from `unit` on, where there is room for it: for an access to some blocks of it, or read ahead.
    pub(super) fn insert(&mut self, unit: UnitNumber, frame: Frame, access: Option<&Range<u32>>) {
        let folio = Folio::new(unit, frame, &self.places, access);
        let (zone, span) = (folio.zone(), folio.span());
        assert!(span.unit.0.is_multiple_of(span.units()), "a folio lies at a multiple of its size");
        let place = FolioPlace::new(zone, self.zones[usize::from(zone)].insert(folio));
        self.index.insert(&mut self.zones, place);
        self.orders[usize::from(span.order)] += 1;
    }

    /// The slot of a folio of `zone` that can leave, if one of those looked at can; it is to be removed.
    pub(super) fn leaving(&mut self, zone: usize, slice: &mut Slice) -> Option<u32> {
        self.zones[zone].leaving(slice, |_| ())
    }

    /// The folio of a slot of `zone` leaves.
    pub(super) fn remove(&mut self, zone: usize, slot: u32) -> Evicted {
        self.index.remove(&mut self.zones, FolioPlace::new(zone as u8, slot));
        let folio = self.zones[zone].remove(slot);
        let (span, unread) = (folio.span(), folio.is_unread());
        self.orders[usize::from(span.order)] -= 1;
        self.give(folio.frame);
        Evicted { span, unread }
    }

    /// What has happened in a zone.
    pub(super) fn traffic(&self, zone: usize) -> Traffic {
        self.zones[zone].traffic()
    }

    /// What happens in a zone, but for folios that come and leave.
    pub(super) fn count(&mut self, zone: u8) -> &mut Traffic {
        &mut self.zones[usize::from(zone)].traffic
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &Folio> {
        self.zones.iter().flat_map(|zone| zone.slots.all())
    }

    /// The folios that `range` touches and the cache has, in order.
    pub(super) fn within(&self, range: ByteRange) -> Vec<&Folio> {
        let end = (range.offset + range.len).div_ceil(self.places.unit_bytes());
        self.index.within(&self.zones, self.places.unit_at(range.offset)..UnitNumber(end))
    }

    /// Writes blocks of a folio, which is there; returns how many of it have become dirty, and its zone.
    pub(super) fn write(&mut self, piece: &Piece, bytes: &[u8], stamp: Stamp) -> (u64, u8) {
        let region = self.places.region_of(piece.folio.unit);
        let (_, place) = self.find(piece.folio.unit).expect("it is there");
        note(FOLIO + copied(bytes.len() as u64));
        let share = &mut self.zones[place.zone()];
        share.bytes_mut(place.slot(), piece.bytes.clone()).copy_from_slice(bytes);
        let folio = share.slots.at_mut(place.slot());
        folio.touch(&piece.blocks);
        let dirtied = u64::from(folio.state.write(piece.blocks.clone()));
        let zone = folio.zone();
        self.count(zone).dirtied += dirtied;
        self.dirty.dirtied(region, dirtied, stamp);
        (dirtied, zone)
    }

    /// The dirty runs of a region, in order; those that follow each other across folios are one.
    pub(super) fn dirty_runs(&self, region: RegionNumber) -> Vec<ByteRange> {
        self.runs(self.places.region_range(region), |folio| folio.state.dirty_runs().collect())
    }

    /// The runs of `range`, all of it in one region, that the device below may not have yet.
    pub(super) fn unsaved_runs(&self, range: ByteRange) -> Vec<ByteRange> {
        self.runs(range, |folio| {
            folio.state.unsaved_runs(self.places.part(range, folio.span()).blocks).collect()
        })
    }

    fn runs(&self, range: ByteRange, of: impl Fn(&Folio) -> Vec<Range<u32>>) -> Vec<ByteRange> {
        let mut runs: Vec<ByteRange> = Vec::new();
        for folio in self.within(range) {
            for run in of(folio).iter().map(|blocks| self.places.range(folio.span(), blocks)) {
                match runs.last_mut() {
                    Some(last) if last.offset + last.len == run.offset => last.len += run.len,
                    _ => runs.push(run),
                }
            }
        }
        runs
    }

    fn spans_within(&self, range: ByteRange) -> Vec<FolioSpan> {
        self.within(range).into_iter().map(Folio::span).collect()
    }

    /// What `range` holds is not needed any more. None of it is dirty or on its way.
    pub(super) fn forget(&mut self, range: ByteRange) {
        for span in self.spans_within(range) {
            let blocks = self.places.part(range, span).blocks;
            let dirty = self.get_mut(span.unit).expect("it is there").state.forget(blocks);
            assert_eq!(dirty, 0, "what is forgotten is below");
        }
    }

    /// The same for what of it is not dirty.
    pub(super) fn forget_clean(&mut self, range: ByteRange) {
        for span in self.spans_within(range) {
            let blocks = self.places.part(range, span).blocks;
            let state = &mut self.get_mut(span.unit).expect("it is there").state;
            let unsaved: Vec<_> = state.unsaved_runs(blocks.clone()).collect();
            let ends = unsaved.iter().map(|run| run.start).chain([blocks.end]);
            for (start, end) in [blocks.start].into_iter().chain(unsaved.iter().map(|run| run.end)).zip(ends)
            {
                if start < end {
                    state.forget(start..end);
                }
            }
        }
    }

    /// Asserts that folios, index, counts and dirty regions agree; returns the dirty blocks of each zone, and those that are being written
    /// back.
    pub(super) fn verify(&self) -> Vec<(u64, u64)> {
        let mut spans: Vec<FolioSpan> = self.all().map(Folio::span).collect();
        spans.sort_unstable_by_key(|span| span.unit);
        assert!(spans.windows(2).all(|two| two[0].end() <= two[1].unit), "no folio lies over another");
        self.index.verify(&self.zones);
        let units: u64 = spans.iter().map(|span| span.units()).sum();
        assert_eq!(units, self.units(), "folios are counted by size");
        self.dirty.verify();
        let unsaved: Vec<(u64, u64)> = self.zones.iter().map(Share::verify).collect();
        let dirty: u64 = unsaved.iter().map(|zone| zone.0).sum();
        assert_eq!(dirty, self.dirty.blocks(), "dirty blocks are counted by region");
        unsaved
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::page_cache::tests::Scarce;

    const UNITS: u64 = 100;

    /// In two zones of memory for less than all units.
    fn folios(order_max: u8) -> Folios {
        let places = Places { block_shift: 12, unit_shift: 12, order_max, region_shift: 17, shards: 1 };
        Folios::new(places, &[32, 32], &(Scarce::plenty() as Arc<dyn Regions>))
    }

    /// Whether no folio has any of `units`.
    fn is_free(plain: &BTreeMap<u64, FolioSpan>, units: Range<u64>) -> bool {
        plain.values().all(|span| span.end().0 <= units.start || units.end <= span.unit.0)
    }

    /// Brings a folio of `order` or less in, as `unit` comes to lie, if none is there.
    fn bring_in(
        folios: &mut Folios,
        plain: &mut BTreeMap<u64, FolioSpan>,
        zone: usize,
        unit: u64,
        order: u8,
    ) {
        let unit = unit >> order << order;
        if !is_free(plain, unit..unit + 1) {
            return;
        }
        let room = folios.room(UnitNumber(unit), order);
        let largest = (0..=order).rev().find(|order| is_free(plain, unit..unit + (1 << order)));
        assert_eq!((room.unit.0, Some(room.order)), (unit, largest));
        let Some(frame) = folios.take(zone, room.order) else { return };
        let span = FolioSpan { order: frame.order, ..room };
        folios.insert(span.unit, frame, Some(&(0..1)));
        plain.insert(unit, span);
    }

    proptest! {
        #[test]
        fn folios_of_all_sizes_come_and_leave(
            order_max in 0u8..6,
            steps in prop::collection::vec((0u8..7, 0u64..UNITS, 0u8..6), 1..200),
        ) {
            let (mut folios, mut plain) = (folios(order_max), BTreeMap::new());
            for (kind, unit, order) in steps {
                let zone = (unit % 2) as usize;
                match kind {
                    0 => {
                        let slot = folios.leaving(zone, &mut Slice::new());
                        slot.map(|slot| plain.remove(&folios.remove(zone, slot).span.unit.0));
                    }
                    // Leaves later than others.
                    1 => _ = folios.get(UnitNumber(unit)).map(|folio| folio.touch(&(3..4))),
                    _ => bring_in(&mut folios, &mut plain, zone, unit, order.min(order_max)),
                }
                folios.verify();
                let end = unit + [1, 9, 30, 40, 100, 300][usize::from(order)];
                let range = ByteRange::new(unit << 12, (end - unit) << 12);
                let found: Vec<FolioSpan> = folios.within(range).into_iter().map(Folio::span).collect();
                let touched = |span: &&FolioSpan| span.unit.0 < end && unit < span.end().0;
                prop_assert_eq!(found, plain.values().filter(touched).copied().collect::<Vec<_>>());
                for unit in 0..UNITS + 32 {
                    let span = folios.get(UnitNumber(unit)).map(Folio::span);
                    let below = plain.range(..=unit).next_back().map(|(_, span)| *span);
                    prop_assert_eq!(span, below.filter(|span| unit < span.end().0));
                }
            }
        }
    }
}
