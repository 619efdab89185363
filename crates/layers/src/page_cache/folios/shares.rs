//! What a shard has of a zone: memory, folios by slot, in the order in which they leave, and what has happened to them.

use std::ops::{AddAssign, Range};
use std::sync::Arc;

use spillway_core::Regions;
use spillway_policy::chunked::{CHUNK, Chunked};
use spillway_policy::eviction::{Residents, S3Fifo};
use spillway_policy::zones::Watermarks;

use super::folio::Folio;
use super::places::Places;
use super::slabs::Slabs;
use crate::page_cache::work::LOOK;
use crate::slice::{Slice, note};

/// A slot of a folio.
enum Slot {
    /// The next one that is free.
    Free(Option<u32>),
    Taken(Folio),
}

/// Bytes of a slot.
pub(crate) const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

const _: () = assert!(size_of::<Slot>() == size_of::<Folio>(), "there is one for each folio");

impl Default for Slot {
    fn default() -> Self {
        Self::Free(None)
    }
}

/// Folios by slot.
#[derive(Default)]
pub(crate) struct Slots {
    slots: Chunked<Slot>,
    /// The first one that is free.
    free: Option<u32>,
}

impl Slots {
    #[inline]
    pub(crate) fn at(&self, slot: u32) -> &Folio {
        match &self.slots[slot] {
            Slot::Taken(folio) => folio,
            Slot::Free(_) => panic!("slot {slot} has no folio"),
        }
    }

    pub(crate) fn at_mut(&mut self, slot: u32) -> &mut Folio {
        match &mut self.slots[slot] {
            Slot::Taken(folio) => folio,
            Slot::Free(_) => panic!("slot {slot} has no folio"),
        }
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Folio> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Taken(folio) => Some(folio),
            Slot::Free(_) => None,
        })
    }

    fn put(&mut self, folio: Folio) -> u32 {
        if self.free.is_none() {
            self.grow();
        }
        let slot = self.free.expect("there are some now");
        let Slot::Free(next) = self.slots[slot] else { panic!("slot {slot} has a folio") };
        self.free = next;
        self.slots[slot] = Slot::Taken(folio);
        slot
    }

    fn take(&mut self, slot: u32) -> Folio {
        match std::mem::replace(&mut self.slots[slot], Slot::Free(self.free)) {
            Slot::Taken(folio) => {
                self.free = Some(slot);
                folio
            }
            Slot::Free(_) => panic!("slot {slot} has no folio"),
        }
    }

    fn grow(&mut self) {
        let len = self.slots.len();
        self.slots.grow_to(len + 1);
        for slot in (len..self.slots.len()).rev() {
            self.slots[slot] = Slot::Free(self.free.replace(slot));
        }
    }

    /// Asserts that each slot is free or has a folio.
    fn verify(&self) {
        let next = |slot: &u32| match self.slots[*slot] {
            Slot::Free(next) => next,
            Slot::Taken(_) => panic!("slot {slot} has a folio"),
        };
        let free = std::iter::successors(self.free, next).count();
        assert_eq!(free + self.all().count(), self.slots.len() as usize, "each slot is free or has a folio");
    }
}

impl Residents for Slots {
    fn name(&self, slot: u32) -> u64 {
        self.at(slot).span().name()
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
}

/// What has happened in a zone, or a shard's part of it, since the cache was opened. Accesses are those of clients: readahead and write-back
/// access nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    /// Folios that clients have brought in, and those that readahead has.
    pub(crate) created: u64,
    pub(crate) created_ahead: u64,
    /// Folios that were accessed again while they were new, or soon after they had left.
    pub(crate) activated: u64,
    pub(crate) evicted: u64,
    /// Blocks that clients have dirtied; that were written back; that were not, and are dirty again.
    pub(crate) dirtied: u64,
    pub(crate) written: u64,
    pub(crate) redirtied: u64,
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
    }
}

/// Bytes that a share takes for folios that it does not have, at most.
pub(crate) const BYTES_SPARE: u64 = CHUNK as u64 * SLOT_BYTES + S3Fifo::BYTES_SPARE;

/// Folios looked at for one that can leave.
const LOOKS: u32 = 64;

/// See the head of this file.
pub(crate) struct Share {
    pub(crate) slabs: Slabs,
    pub(crate) watermarks: Watermarks,
    pub(crate) slots: Slots,
    pub(crate) eviction: S3Fifo,
    pub(crate) traffic: Traffic,
}

impl Share {
    /// With so many units of memory.
    pub(crate) fn new(zone: u8, units: u64, places: &Places, regions: Arc<dyn Regions>) -> Self {
        Self {
            slabs: Slabs::new(zone, units, places, regions),
            watermarks: Watermarks::new(units),
            slots: Slots::default(),
            eviction: S3Fifo::new(u32::try_from(units).unwrap_or(u32::MAX)),
            traffic: Traffic::default(),
        }
    }

    /// A part of what stands in a folio.
    pub(crate) fn bytes_mut(&mut self, slot: u32, bytes: Range<usize>) -> &mut [u8] {
        self.slabs.bytes_mut(&self.slots.at(slot).frame, bytes)
    }

    /// A new folio; the slot that it gets.
    pub(crate) fn insert(&mut self, folio: Folio) -> u32 {
        let span = folio.span();
        let created =
            if folio.is_unread() { &mut self.traffic.created_ahead } else { &mut self.traffic.created };
        *created += 1;
        let slot = self.slots.put(folio);
        self.eviction.admit(slot, span.name(), span.order);
        slot
    }

    /// The slot of a folio that can leave, if one of those looked at can, each of which `seen` is given; it is to be removed.
    pub(crate) fn leaving(&mut self, slice: &mut Slice, mut seen: impl FnMut(&Folio)) -> Option<u32> {
        let slots = &self.slots;
        let may_leave = |slot| {
            note(LOOK);
            slice.count(LOOK);
            let folio = slots.at(slot);
            seen(folio);
            folio.is_idle()
        };
        self.eviction.evict(LOOKS, slots, may_leave)
    }

    /// The folio of a slot leaves.
    pub(crate) fn remove(&mut self, slot: u32) -> Folio {
        let folio = self.slots.take(slot);
        assert!(folio.is_idle(), "what leaves is not needed");
        self.traffic.evicted += 1;
        folio
    }

    pub(crate) fn traffic(&self) -> Traffic {
        Traffic { activated: self.eviction.activated(), ..self.traffic }
    }

    /// Asserts that memory, slots and folios agree; returns dirty blocks, and those that are being written back.
    pub(crate) fn verify(&self) -> (u64, u64) {
        let folios = || self.slots.all();
        self.slots.verify();
        let used: u64 = folios().map(|folio| folio.frame.units()).sum();
        assert_eq!(used + self.slabs.free(), self.slabs.units(), "each unit is free, or a folio's");
        let unsaved = folios().map(|folio| folio.state.unsaved());
        unsaved.fold((0, 0), |sum, one| (sum.0 + u64::from(one.0), sum.1 + u64::from(one.1)))
    }
}
