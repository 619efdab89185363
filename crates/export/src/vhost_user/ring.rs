//! A split virtqueue, as the device has it: VIRTIO 1.2, section 2.7.
//!
//! All of it lies in the guest's memory and may change at any moment: each number is read once, then checked, and what was checked is not
//! read again.

use std::sync::atomic::fence;

use smallvec::SmallVec;
use spillway_core::mutant;
use spillway_core::sync::Ordering;

use super::memory::{GuestMemory, NotShared};

/// Most entries of a queue.
pub const QUEUE_SIZE_MAX: u16 = 1024;

/// Most pieces of memory in one request; the guest is told of so many less header and status.
pub(crate) const SEGMENTS_MAX: usize = 256;

const DESCRIPTOR_LEN: u64 = 16;
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Flags of the two rings.
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// Bytes of the parts of a queue: descriptors, available ring with `used_event`, used ring with `avail_event`.
pub(crate) fn part_lens(size: u16) -> [u64; 3] {
    let size = u64::from(size);
    [DESCRIPTOR_LEN * size, 6 + 2 * size, 6 + 8 * size]
}

/// A piece of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) at: u64,
    pub(crate) len: u32,
}

/// Pieces in a row. A small request needs no memory of its own for them.
pub(crate) type GuestSegments = SmallVec<[Segment; 2]>;

/// Bytes of all.
pub(crate) fn bytes_of(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| u64::from(segment.len)).sum()
}

/// A request: what the device may read, and what it may write.
#[derive(Debug)]
pub(crate) struct Chain {
    pub(crate) head: u16,
    pub(crate) readable: GuestSegments,
    pub(crate) writable: GuestSegments,
}

/// The driver has broken the rules: what it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Broken(pub(crate) &'static str);

impl From<NotShared> for Broken {
    fn from(_: NotShared) -> Self {
        Self("it names memory that is not shared")
    }
}

/// Where a queue lies in the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RingLayout {
    /// Entries, a power of two up to [`QUEUE_SIZE_MAX`].
    pub(crate) size: u16,
    pub(crate) descriptors: u64,
    pub(crate) available: u64,
    pub(crate) used: u64,
}

struct Descriptor {
    at: u64,
    len: u32,
    flags: u16,
    next: u16,
}

impl Descriptor {
    fn read(memory: &GuestMemory, table: u64, index: u16) -> Result<Self, Broken> {
        let mut bytes = [0; DESCRIPTOR_LEN as usize];
        let at = table.checked_add(DESCRIPTOR_LEN * u64::from(index)).ok_or(NotShared)?;
        memory.read(at, &mut bytes)?;
        let [a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, f0, f1, n0, n1] = bytes;
        Ok(Self {
            at: u64::from_le_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            len: u32::from_le_bytes([l0, l1, l2, l3]),
            flags: u16::from_le_bytes([f0, f1]),
            next: u16::from_le_bytes([n0, n1]),
        })
    }

    fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }
}

/// The device's side of a queue.
pub(crate) struct Ring {
    layout: RingLayout,
    /// Whether each side says from which entry on it wants to hear.
    event_index: bool,
    next_available: u16,
    next_used: u16,
    /// `next_used` when the driver was last considered for an interrupt.
    signalled: u16,
    /// Whether the driver is told that kicks are not needed.
    hushed: bool,
}

impl Ring {
    /// Goes on with entry `base` of the available ring; the used ring says itself how far it is.
    pub(crate) fn new(
        layout: RingLayout,
        event_index: bool,
        base: u16,
        memory: &GuestMemory,
    ) -> Result<Self, NotShared> {
        assert!(layout.size.is_power_of_two() && layout.size <= QUEUE_SIZE_MAX, "{layout:?}");
        let next_used = memory.load(layout.used + 2)?;
        Ok(Self { layout, event_index, next_available: base, next_used, signalled: next_used, hushed: false })
    }

    /// The next entry of the available ring that is not taken.
    pub(crate) fn base(&self) -> u16 {
        self.next_available
    }

    /// How far the used ring is.
    pub(crate) fn used(&self) -> u16 {
        self.next_used
    }

    /// Takes what follows all that was given back, and so many more that were taken.
    pub(crate) fn go_on_behind(&mut self, taken: u16) {
        self.next_available = self.next_used.wrapping_add(taken);
    }

    /// Whether `head` is an entry of the table.
    fn has(&self, head: u16) -> bool {
        head < self.layout.size
    }

    /// Requests that are available and not taken.
    pub(crate) fn waiting(&self, memory: &GuestMemory) -> Result<u16, Broken> {
        let waiting = memory.load(self.layout.available + 2)?.wrapping_sub(self.next_available);
        match waiting <= self.layout.size {
            true => Ok(waiting),
            false => Err(Broken("it makes more requests available than the queue has entries")),
        }
    }

    fn has_more(&self, memory: &GuestMemory) -> Result<bool, Broken> {
        Ok(self.waiting(memory)? > 0)
    }

    /// Takes the next request.
    pub(crate) fn take(&mut self, memory: &GuestMemory) -> Result<Option<Chain>, Broken> {
        if !self.has_more(memory)? {
            return Ok(None);
        }
        let slot = u64::from(self.next_available % self.layout.size);
        let mut head = [0; 2];
        memory.read(self.layout.available + 4 + 2 * slot, &mut head)?;
        let chain = self.chain(memory, u16::from_le_bytes(head))?;
        self.next_available = self.next_available.wrapping_add(1);
        Ok(Some(chain))
    }

    /// The request that begins at `head`.
    pub(crate) fn chain(&self, memory: &GuestMemory, head: u16) -> Result<Chain, Broken> {
        if !self.has(head) {
            return Err(Broken("it makes an entry available that its queue does not have"));
        }
        let mut chain = Chain { head, readable: GuestSegments::new(), writable: GuestSegments::new() };
        let table = Entries { at: self.layout.descriptors, count: self.layout.size };
        if let Some(last) = table.follow(memory, head, &mut chain)? {
            let further = Entries::named_by(&last)?;
            if further.follow(memory, 0, &mut chain)?.is_some() {
                return Err(Broken("a table within a request names another"));
            }
        }
        Ok(chain)
    }

    /// Gives a request back of which `written` bytes were written to.
    pub(crate) fn give_back(
        &mut self,
        memory: &GuestMemory,
        head: u16,
        written: u32,
    ) -> Result<(), NotShared> {
        let slot = u64::from(self.next_used % self.layout.size);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(self.layout.used + 4 + 8 * slot, &entry)?;
        self.next_used = self.next_used.wrapping_add(1);
        memory.store(self.layout.used + 2, self.next_used)
    }

    /// Whether the driver wants an interrupt for what was given back since this was last asked.
    pub(crate) fn interrupts(&mut self, memory: &GuestMemory) -> Result<bool, NotShared> {
        let (old, new) = (self.signalled, self.next_used);
        if old == new {
            return Ok(false);
        }
        self.signalled = new;
        // What was given back is seen before it is asked who wants to know of it.
        fence(Ordering::SeqCst);
        if !self.event_index {
            return Ok(memory.load(self.layout.available)? & NO_INTERRUPT == 0);
        }
        let event = memory.load(self.layout.available + 4 + 2 * u64::from(self.layout.size))?;
        let old = if mutant::on("ring: ask for the last answer alone") { new.wrapping_sub(1) } else { old };
        Ok(passes(event, old, new))
    }

    /// The driver need not kick for now.
    pub(crate) fn hush(&mut self, memory: &GuestMemory) -> Result<(), NotShared> {
        // With event indices nothing is asked for beyond the entry that has come.
        if !self.event_index && !self.hushed {
            memory.store(self.layout.used, NO_NOTIFY)?;
        }
        self.hushed = true;
        Ok(())
    }

    /// The driver is to kick with the next request. False where there is one already.
    pub(crate) fn arm(&mut self, memory: &GuestMemory) -> Result<bool, Broken> {
        let blind = mutant::on("ring: arm without another look");
        if !blind && self.has_more(memory)? {
            return Ok(false);
        }
        if self.event_index {
            let place = self.layout.used + 4 + 8 * u64::from(self.layout.size);
            memory.store(place, self.next_available)?;
        } else if self.hushed {
            memory.store(self.layout.used, 0)?;
        }
        self.hushed = false;
        // The wish is seen before the look: a request that is not seen by the look is added by one who sees the wish.
        fence(Ordering::SeqCst);
        Ok(blind || !self.has_more(memory)?)
    }
}

/// Whether `event` is among the entries from `old` on to before `new`.
fn passes(event: u16, old: u16, new: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// A table of entries.
struct Entries {
    at: u64,
    count: u16,
}

impl Entries {
    /// The table that an entry names.
    fn named_by(entry: &Descriptor) -> Result<Self, Broken> {
        let count = entry.len / DESCRIPTOR_LEN as u32;
        let whole = entry.len.is_multiple_of(DESCRIPTOR_LEN as u32) && (1..=1 << 15).contains(&count);
        match whole && !entry.is(NEXT) {
            true => Ok(Self { at: entry.at, count: count as u16 }),
            false => Err(Broken("its indirect table is none")),
        }
    }

    /// Adds what the entries name from `first` on to `chain`. An entry that names a table ends that, and is returned.
    fn follow(
        &self,
        memory: &GuestMemory,
        first: u16,
        chain: &mut Chain,
    ) -> Result<Option<Descriptor>, Broken> {
        let mut next = first;
        while chain.readable.len() + chain.writable.len() < SEGMENTS_MAX {
            let entry = Descriptor::read(memory, self.at, next)?;
            if entry.is(INDIRECT) {
                return Ok(Some(entry));
            }
            let segment = Segment { at: entry.at, len: entry.len };
            match entry.is(WRITE) {
                true => chain.writable.push(segment),
                false if chain.writable.is_empty() => chain.readable.push(segment),
                false => return Err(Broken("what the device reads comes after what it writes")),
            }
            if !entry.is(NEXT) {
                return Ok(None);
            }
            if entry.next >= self.count {
                return Err(Broken("an entry goes on with one that its table does not have"));
            }
            next = entry.next;
        }
        Err(Broken("a request has no end, or more pieces than it may have"))
    }
}
