//! What a shard of the cache holds: folios by number, in the order in which they leave, and which regions are dirty.

use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};
use spillway_core::ByteRange;
use spillway_policy::dirty_regions::{DirtyRegions, RegionNumber, Stamp};
use spillway_policy::eviction::S3Fifo;
use spillway_policy::folio::FolioState;

use super::folio::Folio;
use super::frames::Frame;
use super::places::{FolioNumber, Piece, Places};
use super::shares::{SLOT_BITS, Share, Traffic};

/// Most zones.
pub(super) const ZONES_MAX: usize = 1 << (u32::BITS - SLOT_BITS);

/// A shard of the cache, behind its lock.
pub(super) struct Folios {
    places: Places,
    zones: Box<[Share]>,
    /// Zones, and slots below them.
    by_number: HashTable<u32>,
    hasher: DefaultHashBuilder,
    pub(super) dirty: DirtyRegions,
}

/// The zone and the slot of a place.
fn cut(place: u32) -> (usize, u32) {
    ((place >> SLOT_BITS) as usize, place & ((1 << SLOT_BITS) - 1))
}

fn at(zones: &[Share], place: u32) -> &Folio {
    let (zone, slot) = cut(place);
    zones[zone].at(slot)
}

/// Bytes that a folio of so many blocks takes beside its content: slot, its place among those that are free, place in the hash table (at
/// worst half full, and both the old and the new one while it grows), queues, blocks' state, what the allocator keeps of that and of the
/// content.
pub(super) const fn bytes_beside(blocks: u32) -> u64 {
    let slot = size_of::<Option<Folio>>() as u64 + 2 * size_of::<u32>() as u64;
    let place = 3 * (size_of::<u32>() as u64 + 1);
    let state = FolioState::bytes_max(blocks);
    let allocated = if state > 0 { 3 } else { 1 };
    slot + place + S3Fifo::BYTES_A_FOLIO + state + 16 * allocated
}

impl Folios {
    /// For about so many folios of each zone.
    pub(super) fn new(places: Places, folios: impl Iterator<Item = u64>) -> Self {
        Self {
            places,
            zones: folios.map(Share::new).collect(),
            by_number: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            dirty: DirtyRegions::default(),
        }
    }

    /// Folios.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    fn find(&self, number: FolioNumber) -> Option<u32> {
        let hash = self.hasher.hash_one(number);
        self.by_number.find(hash, |place| at(&self.zones, *place).number == number).copied()
    }

    /// The folio of that number.
    #[inline]
    pub(super) fn get(&self, number: FolioNumber) -> Option<&Folio> {
        let (hash, mut met) = (self.hasher.hash_one(number), None);
        // The last that is met is the one that is found.
        self.by_number.find(hash, |place| met.insert(at(&self.zones, *place)).number == number)?;
        met
    }

    pub(super) fn get_mut(&mut self, number: FolioNumber) -> Option<&mut Folio> {
        let (zone, slot) = cut(self.find(number)?);
        Some(self.zones[zone].at_mut(slot))
    }

    /// A new folio, for an access to some blocks of it, or read ahead.
    pub(super) fn insert(&mut self, number: FolioNumber, frame: Frame, access: Option<&Range<u32>>) {
        assert_eq!(frame.bytes.len() as u64, self.places.folio_bytes(), "a frame of a folio");
        let folio = Folio::new(number, frame, self.places.folio_blocks(), access);
        let zone = folio.zone;
        let slot = self.zones[usize::from(zone)].insert(folio);
        let (zones, hasher) = (&self.zones, &self.hasher);
        let place = u32::from(zone) << SLOT_BITS | slot;
        let hash = |place: &u32| hasher.hash_one(at(zones, *place).number);
        self.by_number.insert_unique(hash(&place), place, hash);
    }

    /// A folio of `zone` that leaves, if one of those looked at can. Notes in `met` which of them are dirty.
    pub(super) fn evict(&mut self, zone: usize, met: Option<&mut Vec<FolioNumber>>) -> Option<Folio> {
        let (slot, folio) = self.zones[zone].evict(met)?;
        let (hash, place) = (self.hasher.hash_one(folio.number), (zone as u32) << SLOT_BITS | slot);
        let entry = self.by_number.find_entry(hash, |other| *other == place);
        entry.expect("each folio has its place").remove();
        Some(folio)
    }

    /// What has happened in a zone.
    pub(super) fn traffic(&self, zone: usize) -> Traffic {
        self.zones[zone].traffic()
    }

    /// What happens in a zone, but for folios that come and leave.
    pub(super) fn count(&mut self, zone: u16) -> &mut Traffic {
        &mut self.zones[usize::from(zone)].traffic
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &Folio> {
        self.zones.iter().flat_map(Share::all)
    }

    /// Numbers of the folios that `range` touches and the cache has.
    pub(super) fn within(&self, range: ByteRange) -> Vec<FolioNumber> {
        let first = range.offset >> self.places.folio_shift;
        let numbers = first..(range.offset + range.len).div_ceil(self.places.folio_bytes());
        if numbers.end - numbers.start <= self.len() as u64 {
            return numbers.map(FolioNumber).filter(|number| self.find(*number).is_some()).collect();
        }
        let all = self.all().map(|folio| folio.number);
        all.filter(|number| numbers.contains(&number.0)).collect()
    }

    /// Copies what is written into the folio, which is there; returns how many of its blocks have become dirty, and its zone.
    pub(super) fn write(&mut self, piece: &Piece, bytes: &[u8], stamp: Stamp) -> (u64, u16) {
        let region = self.places.region_of(piece.folio);
        let granules = self.places.granules(&piece.blocks);
        let folio = self.get_mut(piece.folio).expect("it is there");
        folio.bytes[piece.bytes.clone()].copy_from_slice(&bytes[piece.start..][..piece.bytes.len()]);
        folio.touch(&piece.blocks);
        let mut dirtied = u64::from(folio.state.write(piece.blocks.clone()));
        if granules != piece.blocks {
            dirtied += u64::from(folio.state.spread(granules));
        }
        let zone = folio.zone;
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
            folio.state.unsaved_runs(self.places.part(range, folio.number).blocks).collect()
        })
    }

    fn runs(&self, range: ByteRange, of: impl Fn(&Folio) -> Vec<Range<u32>>) -> Vec<ByteRange> {
        let mut runs: Vec<ByteRange> = Vec::new();
        let mut numbers = self.within(range);
        numbers.sort_unstable();
        for folio in numbers.into_iter().filter_map(|number| self.get(number)) {
            for run in of(folio).iter().map(|blocks| self.places.range(folio.number, blocks)) {
                match runs.last_mut() {
                    Some(last) if last.offset + last.len == run.offset => last.len += run.len,
                    _ => runs.push(run),
                }
            }
        }
        runs
    }

    /// What `range` holds is not needed any more. None of it is dirty or on its way.
    pub(super) fn forget(&mut self, range: ByteRange) {
        for number in self.within(range) {
            let blocks = self.places.part(range, number).blocks;
            let dirty = self.get_mut(number).expect("it is there").state.forget(blocks);
            assert_eq!(dirty, 0, "what is forgotten is below");
        }
    }

    /// The same for what of it is not dirty.
    pub(super) fn forget_clean(&mut self, range: ByteRange) {
        for number in self.within(range) {
            let blocks = self.places.part(range, number).blocks;
            let state = &mut self.get_mut(number).expect("it is there").state;
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

    /// Asserts that folios, hash table and dirty regions agree; returns the dirty blocks of each zone, and those that are being written
    /// back.
    pub(super) fn verify(&self) -> Vec<(u64, u64)> {
        assert_eq!(self.all().count(), self.len(), "each folio has its place");
        self.all().for_each(|folio| assert!(self.get(folio.number).is_some(), "folio {}", folio.number.0));
        self.dirty.verify();
        let unsaved: Vec<(u64, u64)> =
            (0u16..).zip(&self.zones).map(|(zone, share)| share.verify(zone)).collect();
        let dirty: u64 = unsaved.iter().map(|zone| zone.0).sum();
        assert_eq!(dirty, self.dirty.blocks(), "dirty blocks are counted by region");
        unsaved
    }
}
