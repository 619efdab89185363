//! Slots in queues, oldest first: lists through arrays, so that any slot leaves from the middle in a few steps.

use crate::chunked::Chunked;

/// Number of a queue.
pub(super) type Queue = usize;

const NONE: u32 = u32::MAX;

/// Of a slot in no queue.
const NOWHERE: u8 = u8::MAX;

/// Bytes of a slot.
pub(super) const BYTES_A_SLOT: u64 = size_of::<Link>() as u64;

#[derive(Clone, Copy, Debug)]
struct Link {
    older: u32,
    newer: u32,
    /// [`NOWHERE`] where the slot is in no queue.
    queue: u8,
    /// What it holds counts as 2^order units.
    order: u8,
}

impl Default for Link {
    fn default() -> Self {
        Self { older: NONE, newer: NONE, queue: NOWHERE, order: 0 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Ends {
    oldest: u32,
    newest: u32,
    len: u32,
    units: u64,
}

/// `N` queues of slots.
pub(super) struct Queues<const N: usize> {
    links: Chunked<Link>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        Self { links: Chunked::default(), ends: [Ends { oldest: NONE, newest: NONE, len: 0, units: 0 }; N] }
    }
}

impl<const N: usize> Queues<N> {
    /// Slots in `queue`.
    pub(super) fn len(&self, queue: Queue) -> u32 {
        self.ends[queue].len
    }

    /// Units of what slots in `queue` hold.
    pub(super) fn units(&self, queue: Queue) -> u64 {
        self.ends[queue].units
    }

    /// The slot that has been in `queue` for longest.
    pub(super) fn oldest(&self, queue: Queue) -> Option<u32> {
        Some(self.ends[queue].oldest).filter(|slot| *slot != NONE)
    }

    /// Puts `slot`, which is in no queue and holds 2^`order` units, behind the others of `queue`.
    pub(super) fn push(&mut self, queue: Queue, slot: u32, order: u8) {
        self.links.grow_to(slot + 1);
        assert_eq!(self.links[slot].queue, NOWHERE, "slot {slot} is free");
        let ends = &mut self.ends[queue];
        let older = std::mem::replace(&mut ends.newest, slot);
        ends.len += 1;
        ends.units += 1 << order;
        self.links[slot] = Link { older, newer: NONE, queue: queue as u8, order };
        *self.newer_of(queue, older) = slot;
    }

    /// Takes `slot` out of its queue.
    pub(super) fn remove(&mut self, slot: u32) {
        let Link { older, newer, queue, order } = self.links[slot];
        assert_ne!(queue, NOWHERE, "slot {slot} is in a queue");
        let queue = usize::from(queue);
        *self.newer_of(queue, older) = newer;
        match newer {
            NONE => self.ends[queue].newest = older,
            newer => self.links[newer].older = older,
        }
        self.ends[queue].len -= 1;
        self.ends[queue].units -= 1 << order;
        self.links[slot].queue = NOWHERE;
    }

    /// Makes `slot` the newest of `queue`.
    pub(super) fn move_to(&mut self, queue: Queue, slot: u32) {
        self.remove(slot);
        self.push(queue, slot, self.links[slot].order);
    }

    /// Where it is said which slot follows `older`.
    fn newer_of(&mut self, queue: Queue, older: u32) -> &mut u32 {
        match older {
            NONE => &mut self.ends[queue].oldest,
            older => &mut self.links[older].newer,
        }
    }
}
