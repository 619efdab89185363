//! Slots in queues, oldest first: lists through arrays, so that any slot leaves from the middle in a few steps.

use crate::chunked::Chunked;

/// Number of a queue.
pub(super) type QueueNumber = usize;

/// Bits of the number of a slot, of an order, and of a queue.
const SLOT_BITS: u32 = 27;
const ORDER_BITS: u32 = 6;
const QUEUE_BITS: u32 = 4;

/// No slot: a number above all of them.
const NONE: u32 = (1 << SLOT_BITS) - 1;

/// Of a slot in no queue.
const NOWHERE: u8 = (1 << QUEUE_BITS) - 1;

/// Bytes of a slot.
pub(super) const BYTES_A_SLOT: u64 = size_of::<Packed>() as u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Link {
    older: u32,
    newer: u32,
    /// [`NOWHERE`] where the slot is in no queue.
    queue: u8,
    /// What it holds counts as 2^order units.
    order: u8,
}

/// A link in a word: there is one for each folio.
#[derive(Clone, Copy, Debug)]
struct Packed(u64);

const _: () = assert!(2 * SLOT_BITS + ORDER_BITS + QUEUE_BITS <= u64::BITS, "a link is a word");

impl Packed {
    fn new(link: Link) -> Self {
        let Link { older, newer, queue, order } = link;
        assert!(order < 1 << ORDER_BITS, "order {order}");
        let above = u64::from(queue) << ORDER_BITS | u64::from(order);
        Self((above << SLOT_BITS | u64::from(newer)) << SLOT_BITS | u64::from(older))
    }

    fn link(self) -> Link {
        let slot = |word: u64| word as u32 & NONE;
        let above = self.0 >> (2 * SLOT_BITS);
        Link {
            older: slot(self.0),
            newer: slot(self.0 >> SLOT_BITS),
            queue: (above >> ORDER_BITS) as u8,
            order: (above & ((1 << ORDER_BITS) - 1)) as u8,
        }
    }
}

impl Default for Packed {
    fn default() -> Self {
        Self::new(Link { older: NONE, newer: NONE, queue: NOWHERE, order: 0 })
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
    links: Chunked<Packed>,
    ends: [Ends; N],
}

impl<const N: usize> Default for Queues<N> {
    fn default() -> Self {
        Self { links: Chunked::default(), ends: [Ends { oldest: NONE, newest: NONE, len: 0, units: 0 }; N] }
    }
}

impl<const N: usize> Queues<N> {
    /// Slots in `queue`.
    pub(super) fn len(&self, queue: QueueNumber) -> u32 {
        self.ends[queue].len
    }

    /// Units of what slots in `queue` hold.
    pub(super) fn units(&self, queue: QueueNumber) -> u64 {
        self.ends[queue].units
    }

    /// The slot that has been in `queue` for longest.
    pub(super) fn oldest(&self, queue: QueueNumber) -> Option<u32> {
        Some(self.ends[queue].oldest).filter(|slot| *slot != NONE)
    }

    /// Puts `slot`, which is in no queue and holds 2^`order` units, behind the others of `queue`.
    pub(super) fn push(&mut self, queue: QueueNumber, slot: u32, order: u8) {
        assert!(slot < NONE, "slot {slot} is one of 2^{SLOT_BITS}");
        self.links.grow_to(slot + 1);
        assert_eq!(self.links[slot].link().queue, NOWHERE, "slot {slot} is free");
        let ends = &mut self.ends[queue];
        let older = std::mem::replace(&mut ends.newest, slot);
        ends.len += 1;
        ends.units += 1 << order;
        self.links[slot] = Packed::new(Link { older, newer: NONE, queue: queue as u8, order });
        self.follow(queue, older, slot);
    }

    /// Takes `slot` out of its queue; the order of what it holds.
    pub(super) fn remove(&mut self, slot: u32) -> u8 {
        let link = self.links[slot].link();
        assert_ne!(link.queue, NOWHERE, "slot {slot} is in a queue");
        let queue = usize::from(link.queue);
        self.follow(queue, link.older, link.newer);
        match link.newer {
            NONE => self.ends[queue].newest = link.older,
            newer => self.change(newer, |newer| newer.older = link.older),
        }
        self.ends[queue].len -= 1;
        self.ends[queue].units -= 1 << link.order;
        self.change(slot, |link| link.queue = NOWHERE);
        link.order
    }

    /// Makes `slot` the newest of `queue`.
    pub(super) fn move_to(&mut self, queue: QueueNumber, slot: u32) {
        let order = self.remove(slot);
        self.push(queue, slot, order);
    }

    fn change(&mut self, slot: u32, change: impl FnOnce(&mut Link)) {
        let mut link = self.links[slot].link();
        change(&mut link);
        self.links[slot] = Packed::new(link);
    }

    /// `newer` follows `older`, or is the oldest.
    fn follow(&mut self, queue: QueueNumber, older: u32, newer: u32) {
        match older {
            NONE => self.ends[queue].oldest = newer,
            older => self.change(older, |link| link.newer = newer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_a_word() {
        for link in [
            Link { older: NONE, newer: 0, queue: NOWHERE, order: 63 },
            Link { older: 0, newer: NONE, queue: 1, order: 0 },
            Link { older: 5, newer: NONE - 1, queue: 0, order: 9 },
        ] {
            assert_eq!(Packed::new(link).link(), link);
        }
    }
}
