//! What a shard has of a zone: folios by slot, in the order in which they leave, and what has happened to them.

use std::cell::RefCell;
use std::ops::AddAssign;

use spillway_policy::chunked::{CHUNK, Chunked};
use spillway_policy::eviction::{Eviction, Residents, S3Fifo};

use super::folio::Folio;
use super::places::FolioNumber;

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
        self.at(slot).number.0
    }

    fn mark(&self, slot: u32) -> u32 {
        self.at(slot).mark()
    }

    fn set_mark(&self, slot: u32, mark: u32) {
        self.at(slot).set_mark(mark);
    }

    fn was_used(&self, slot: u32) -> bool {
        !self.at(slot).is_unread()
    }

    fn may_leave(&self, slot: u32) -> bool {
        self.at(slot).is_idle()
    }
}

/// The folios of a zone while one is sought that can leave.
struct Leaving<'a> {
    slots: &'a Slots,
    /// Those that cannot because they are dirty, where that matters.
    dirty: RefCell<Option<&'a mut Vec<FolioNumber>>>,
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
        if let Some(dirty) = self.dirty.borrow_mut().as_mut() {
            let folio = self.slots.at(slot);
            dirty.extend(folio.state.dirty_runs().next().map(|_| folio.number));
        }
        self.slots.may_leave(slot)
    }
}

/// What has happened in a zone, or a shard's part of it, since the cache was opened. Accesses are those of clients: readahead and write-back
/// access nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traffic {
    /// Folios that clients have brought in, and those that readahead has.
    pub(super) created: u64,
    pub(super) created_ahead: u64,
    /// Folios that were accessed again while they were new, or soon after they had left.
    pub(super) activated: u64,
    pub(super) evicted: u64,
    /// Blocks that clients have dirtied; that were written back; that were not, and are dirty again.
    pub(super) dirtied: u64,
    pub(super) written: u64,
    pub(super) redirtied: u64,
    /// Blocks that reclaim has begun to write.
    pub(super) reclaim_writes: u64,
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        self.created += other.created;
        self.created_ahead += other.created_ahead;
        self.activated += other.activated;
        self.evicted += other.evicted;
        self.dirtied += other.dirtied;
        self.written += other.written;
        self.redirtied += other.redirtied;
        self.reclaim_writes += other.reclaim_writes;
    }
}

/// Bits of the number of a slot.
pub(super) const SLOT_BITS: u32 = 26;

/// Bytes that a share takes for folios that it does not have, at most.
pub(super) const BYTES_SPARE: u64 = CHUNK as u64 * size_of::<Option<Folio>>() as u64 + S3Fifo::BYTES_SPARE;

/// Folios looked at for one that can leave.
const LOOKS: u32 = 64;

/// See the head of this file.
pub(super) struct Share {
    slots: Slots,
    free: Vec<u32>,
    eviction: S3Fifo,
    pub(super) traffic: Traffic,
}

impl Share {
    /// For about so many folios.
    pub(super) fn new(folios: u64) -> Self {
        Self {
            slots: Slots::default(),
            free: Vec::new(),
            eviction: S3Fifo::new(u32::try_from(folios).unwrap_or(u32::MAX)),
            traffic: Traffic::default(),
        }
    }

    pub(super) fn at(&self, slot: u32) -> &Folio {
        self.slots.at(slot)
    }

    pub(super) fn at_mut(&mut self, slot: u32) -> &mut Folio {
        self.slots.0[slot].as_mut().expect("the slot has a folio")
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Folio> {
        self.slots.all()
    }

    /// A new folio; the slot that it gets.
    pub(super) fn insert(&mut self, folio: Folio) -> u32 {
        let (slot, number) = (self.free_slot(), folio.number.0);
        let created =
            if folio.is_unread() { &mut self.traffic.created_ahead } else { &mut self.traffic.created };
        *created += 1;
        assert!(self.slots.0[slot].replace(folio).is_none(), "slot {slot} was free");
        self.eviction.admit(slot, number);
        slot
    }

    fn free_slot(&mut self) -> u32 {
        if self.free.is_empty() {
            let len = self.slots.0.len();
            self.slots.0.grow_to(len + 1);
            assert!(self.slots.0.len() <= 1 << SLOT_BITS, "a shard's zone has at most 2^{SLOT_BITS} folios");
            self.free.extend((len..self.slots.0.len()).rev());
        }
        self.free.pop().expect("there are some now")
    }

    /// A folio that leaves, and its slot, if one of those looked at can. Notes in `met` which of them are dirty.
    pub(super) fn evict(&mut self, met: Option<&mut Vec<FolioNumber>>) -> Option<(u32, Folio)> {
        let leaving = Leaving { slots: &self.slots, dirty: RefCell::new(met) };
        let slot = self.eviction.evict(LOOKS, &leaving)?;
        let folio = self.slots.0[slot].take().expect("what leaves is there");
        assert!(folio.is_idle(), "what leaves is not needed");
        self.free.push(slot);
        self.traffic.evicted += 1;
        Some((slot, folio))
    }

    pub(super) fn traffic(&self) -> Traffic {
        Traffic { activated: self.eviction.activated(), ..self.traffic }
    }

    /// Asserts that slots and folios agree; returns dirty blocks, and those that are being written back.
    pub(super) fn verify(&self, zone: u16) -> (u64, u64) {
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
