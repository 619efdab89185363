//! What a shard of the cache holds: folios by number, in the order in which they leave, and which regions are dirty.

use std::cell::Cell;
use std::hash::BuildHasher;
use std::ops::Range;

use hashbrown::{DefaultHashBuilder, HashTable};
use spillway_core::ByteRange;
use spillway_core::sync::{AtomicU32, Ordering};
use spillway_policy::chunked::{CHUNK, Chunked};
use spillway_policy::dirty_regions::DirtyRegions;
use spillway_policy::eviction::{Eviction, Residents, S3Fifo};
use spillway_policy::folio::FolioState;

use super::frames::Frame;
use super::places::{Piece, Places};

/// A folio's access word: the mark of its eviction; whether it was read ahead and not accessed since; whether a window of readahead
/// begins in it, and at which block; the block behind the last access.
const MARK: u32 = 3;
const UNREAD: u32 = 1 << 2;
const WINDOW: u32 = 1 << 3;
const WINDOW_SHIFT: u32 = 4;
const END_SHIFT: u32 = 17;
const WINDOW_BLOCK: u32 = (1 << END_SHIFT) - (1 << WINDOW_SHIFT);

/// What an access met of readahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    /// The folio was read ahead, and this is the first access.
    pub(super) unread: bool,
    /// A window begins here.
    pub(super) window: bool,
}

/// Consecutive blocks of the device in memory.
pub(super) struct Folio {
    pub(super) number: u64,
    pub(super) bytes: Box<[u8]>,
    pub(super) state: FolioState,
    /// The zone that its memory is of.
    pub(super) zone: u16,
    /// Reads of the device below that are under way for it. It stays, and keeps what it holds, until they end: so that what they mark
    /// as being read is theirs.
    pub(super) fills: u16,
    access: AtomicU32,
}

impl Folio {
    /// One that is brought in by an access to `blocks`, which counts for nothing, or read ahead.
    fn new(number: u64, frame: Frame, blocks: u32, access: Option<&Range<u32>>) -> Self {
        let word = access.map_or(UNREAD, |blocks| blocks.end << END_SHIFT);
        let Frame { zone, bytes } = frame;
        Self { number, bytes, zone, state: FolioState::new(blocks), fills: 0, access: AtomicU32::new(word) }
    }

    /// Notes an access. One that goes on where the last one ended is part of the same: else reading a folio block by block once would
    /// look like using it often. The first to what was read ahead is what has brought it in.
    pub(super) fn touch(&self, blocks: &Range<u32>) -> Seen {
        let before = self.access.load(Ordering::Relaxed);
        if before & (UNREAD | WINDOW) != 0 {
            return self.touch_ahead(blocks);
        }
        self.access.store(accessed(before, blocks), Ordering::Relaxed);
        Seen::default()
    }

    #[cold]
    fn touch_ahead(&self, blocks: &Range<u32>) -> Seen {
        let begins =
            |word: u32| word & WINDOW != 0 && blocks.contains(&((word & WINDOW_BLOCK) >> WINDOW_SHIFT));
        let touched = |word: u32| {
            let window = if begins(word) { 0 } else { word & (WINDOW | WINDOW_BLOCK) };
            Some(accessed(word, blocks) | window)
        };
        let before = self.access.fetch_update(Ordering::Relaxed, Ordering::Relaxed, touched);
        let before = before.expect("it is changed whatever it is");
        Seen { unread: before & UNREAD != 0, window: begins(before) }
    }

    /// A window of readahead begins at `block`. An access at the same time may undo this.
    pub(super) fn mark_window(&self, block: u32) {
        let marked = |word: u32| Some(word & !WINDOW_BLOCK | WINDOW | block << WINDOW_SHIFT);
        let marked = self.access.fetch_update(Ordering::Relaxed, Ordering::Relaxed, marked);
        assert!(marked.is_ok(), "it is changed whatever it is");
    }

    /// Whether it was read ahead, and not accessed since.
    pub(super) fn is_unread(&self) -> bool {
        self.access.load(Ordering::Relaxed) & UNREAD != 0
    }
}

/// The mark and the end of an access word after an access.
fn accessed(before: u32, blocks: &Range<u32>) -> u32 {
    let (mark, end) = (before & MARK, before >> END_SHIFT);
    let same = before & UNREAD != 0 || blocks.start == end && end > 0;
    let mark = if same { mark } else { S3Fifo::touched(mark, 0) };
    mark | blocks.end << END_SHIFT
}

/// Folios by slot.
#[derive(Default)]
struct Slots(Chunked<Option<Folio>>);

impl Slots {
    fn at(&self, slot: u32) -> &Folio {
        self.0[slot].as_ref().expect("the slot has a folio")
    }

    fn all(&self) -> impl Iterator<Item = &Folio> {
        self.0.iter().flatten()
    }
}

impl Residents for Slots {
    fn name(&self, slot: u32) -> u64 {
        self.at(slot).number
    }

    fn mark(&self, slot: u32) -> u32 {
        self.at(slot).access.load(Ordering::Relaxed) & MARK
    }

    fn set_mark(&self, slot: u32, mark: u32) {
        let access = &self.at(slot).access;
        access.store(access.load(Ordering::Relaxed) & !MARK | mark, Ordering::Relaxed);
    }

    fn was_used(&self, slot: u32) -> bool {
        !self.at(slot).is_unread()
    }

    fn may_leave(&self, slot: u32) -> bool {
        let folio = self.at(slot);
        folio.fills == 0 && folio.state.is_idle()
    }
}

/// The folios of a zone while one is sought that can leave.
struct Leaving<'a> {
    slots: &'a Slots,
    /// The first one that cannot because it is dirty.
    dirty: Cell<Option<u64>>,
}

impl Residents for Leaving<'_> {
    fn name(&self, slot: u32) -> u64 {
        self.slots.name(slot)
    }

    fn was_used(&self, slot: u32) -> bool {
        self.slots.was_used(slot)
    }

    fn mark(&self, slot: u32) -> u32 {
        self.slots.mark(slot)
    }

    fn set_mark(&self, slot: u32, mark: u32) {
        self.slots.set_mark(slot, mark);
    }

    fn may_leave(&self, slot: u32) -> bool {
        let folio = self.slots.at(slot);
        if self.dirty.get().is_none() && folio.state.dirty_runs().next().is_some() {
            self.dirty.set(Some(folio.number));
        }
        self.slots.may_leave(slot)
    }
}

/// What a shard has of a zone.
struct Share {
    slots: Slots,
    free: Vec<u32>,
    eviction: S3Fifo,
}

impl Share {
    fn free_slot(&mut self) -> u32 {
        if self.free.is_empty() {
            let len = self.slots.0.len();
            self.slots.0.grow_to(len + 1);
            assert!(self.slots.0.len() <= 1 << SLOT_BITS, "a shard's zone has at most 2^{SLOT_BITS} folios");
            self.free.extend((len..self.slots.0.len()).rev());
        }
        self.free.pop().expect("there are some now")
    }

    /// Asserts that slots and folios agree; returns dirty blocks, and those that are being written back.
    fn verify(&self, zone: u16) -> (u64, u64) {
        let folios = || self.slots.all();
        assert_eq!(
            self.free.len() + folios().count(),
            self.slots.0.len() as usize,
            "each slot is free or has a folio"
        );
        assert!(folios().all(|folio| folio.zone == zone), "each folio is in the zone of its memory");
        let unsaved = folios().map(|folio| folio.state.unsaved());
        unsaved.fold((0, 0), |sum, one| (sum.0 + u64::from(one.0), sum.1 + u64::from(one.1)))
    }
}

/// Bits of the number of a slot; above them that of its zone.
const SLOT_BITS: u32 = 26;

/// Most zones.
pub(super) const ZONES_MAX: usize = 1 << (u32::BITS - SLOT_BITS);

/// A shard of the cache, behind its lock.
pub(super) struct Folios {
    places: Places,
    zones: Box<[Share]>,
    /// Zones and slots.
    by_number: HashTable<u32>,
    hasher: DefaultHashBuilder,
    pub(super) dirty: DirtyRegions,
}

fn at(zones: &[Share], place: u32) -> &Folio {
    zones[(place >> SLOT_BITS) as usize].slots.at(place & ((1 << SLOT_BITS) - 1))
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

/// Bytes that a zone takes in a shard for folios that it does not have, at most.
pub(super) const BYTES_SPARE: u64 = CHUNK as u64 * size_of::<Option<Folio>>() as u64 + S3Fifo::BYTES_SPARE;

/// Folios looked at for one that can leave.
const LOOKS: u32 = 64;

impl Folios {
    /// For about so many folios of each zone.
    pub(super) fn new(places: Places, folios: impl Iterator<Item = u64>) -> Self {
        let share = |folios| Share {
            slots: Slots::default(),
            free: Vec::new(),
            eviction: S3Fifo::new(u32::try_from(folios).unwrap_or(u32::MAX)),
        };
        Self {
            places,
            zones: folios.map(share).collect(),
            by_number: HashTable::new(),
            hasher: DefaultHashBuilder::default(),
            dirty: DirtyRegions::default(),
        }
    }

    /// Folios.
    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    fn find(&self, number: u64) -> Option<u32> {
        let hash = self.hasher.hash_one(number);
        self.by_number.find(hash, |place| at(&self.zones, *place).number == number).copied()
    }

    /// The folio of that number.
    pub(super) fn get(&self, number: u64) -> Option<&Folio> {
        self.find(number).map(|place| at(&self.zones, place))
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Folio> {
        let place = self.find(number)?;
        let share = &mut self.zones[(place >> SLOT_BITS) as usize];
        share.slots.0[place & ((1 << SLOT_BITS) - 1)].as_mut()
    }

    /// A new folio, for an access to some blocks of it, or read ahead.
    pub(super) fn insert(&mut self, number: u64, frame: Frame, access: Option<&Range<u32>>) {
        let zone = frame.zone;
        assert_eq!(frame.bytes.len() as u64, self.places.folio_bytes(), "a frame of a folio");
        let folio = Folio::new(number, frame, self.places.folio_blocks(), access);
        let share = &mut self.zones[usize::from(zone)];
        let slot = share.free_slot();
        assert!(share.slots.0[slot].replace(folio).is_none(), "slot {slot} was free");
        share.eviction.admit(slot, number);
        let (zones, hasher) = (&self.zones, &self.hasher);
        let place = u32::from(zone) << SLOT_BITS | slot;
        let hash = |place: &u32| hasher.hash_one(at(zones, *place).number);
        self.by_number.insert_unique(hash(&place), place, hash);
    }

    /// A folio of `zone` that leaves, if one of those looked at can; else the first of them that is dirty.
    pub(super) fn evict(&mut self, zone: usize) -> Result<Folio, Option<u64>> {
        let share = &mut self.zones[zone];
        let leaving = Leaving { slots: &share.slots, dirty: Cell::new(None) };
        match share.eviction.evict(LOOKS, &leaving) {
            Some(slot) => Ok(self.take_out(zone, slot)),
            None => Err(leaving.dirty.get()),
        }
    }

    /// The slot's folio is in no queue any more.
    fn take_out(&mut self, zone: usize, slot: u32) -> Folio {
        let share = &mut self.zones[zone];
        let folio = share.slots.0[slot].take().expect("what leaves is there");
        assert!(folio.fills == 0 && folio.state.is_idle(), "what leaves is not needed");
        share.free.push(slot);
        let (hash, place) = (self.hasher.hash_one(folio.number), (zone as u32) << SLOT_BITS | slot);
        let entry = self.by_number.find_entry(hash, |other| *other == place);
        entry.expect("each folio has its place").remove();
        folio
    }

    /// All of them.
    fn all(&self) -> impl Iterator<Item = &Folio> {
        self.zones.iter().flat_map(|share| share.slots.all())
    }

    /// Numbers of the folios that `range` touches and the cache has.
    pub(super) fn within(&self, range: ByteRange) -> Vec<u64> {
        let first = range.offset >> self.places.folio_shift;
        let numbers = first..(range.offset + range.len).div_ceil(self.places.folio_bytes());
        if numbers.end - numbers.start <= self.len() as u64 {
            return numbers.filter(|number| self.find(*number).is_some()).collect();
        }
        let all = self.all().map(|folio| folio.number);
        all.filter(|number| numbers.contains(number)).collect()
    }

    /// Copies what is written into the folio, which is there; returns how many of its blocks have become dirty, and its zone.
    pub(super) fn write(&mut self, piece: &Piece, bytes: &[u8], stamp: u64) -> (u64, u16) {
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
        self.dirty.dirtied(region, dirtied, stamp);
        (dirtied, zone)
    }

    /// The dirty runs of a region, in order; those that follow each other across folios are one.
    pub(super) fn dirty_runs(&self, region: u64) -> Vec<ByteRange> {
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

    /// Asserts that folios, hash table and dirty regions agree; returns the dirty blocks of each zone, and those that are being written
    /// back.
    pub(super) fn verify(&self) -> Vec<(u64, u64)> {
        assert_eq!(self.all().count(), self.len(), "each folio has its place");
        self.all().for_each(|folio| assert!(self.get(folio.number).is_some(), "folio {}", folio.number));
        self.dirty.verify();
        let unsaved: Vec<(u64, u64)> =
            (0u16..).zip(&self.zones).map(|(zone, share)| share.verify(zone)).collect();
        let dirty: u64 = unsaved.iter().map(|zone| zone.0).sum();
        assert_eq!(dirty, self.dirty.blocks(), "dirty blocks are counted by region");
        unsaved
    }
}
