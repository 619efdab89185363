//! A split virtqueue, as its driver has it.

use std::sync::Arc;

use spillway_core::shared_memory::SharedMemory;
use spillway_sim::rings::MachineMemory;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// In the flags of the used ring: a kick is not needed.
const NO_NOTIFY: u16 = 1;

/// Entries of the table for each request.
const ENTRIES_EACH: u16 = 4;

const ENTRY_LEN: u64 = 16;

/// A piece of memory of a request.
pub(super) struct Piece {
    pub(super) at: u64,
    pub(super) len: u64,
    /// By the device.
    pub(super) writable: bool,
}

/// The driver's side of a queue.
pub(super) struct Ring {
    memory: Arc<MachineMemory>,
    at: u64,
    /// Entries.
    size: u16,
    event_index: bool,
    /// Requests that were made available, and those that were taken back.
    available: u16,
    seen: u16,
}

impl Ring {
    /// Entries for so many requests at a time.
    pub(super) fn size(slots: u16) -> u16 {
        (slots * ENTRIES_EACH).next_power_of_two()
    }

    /// Bytes for so many requests at a time.
    pub(super) fn len(slots: u16) -> u64 {
        let size = u64::from(Self::size(slots));
        Self::used_at(size) + 6 + 8 * size
    }

    fn available_at(size: u64) -> u64 {
        ENTRY_LEN * size
    }

    fn used_at(size: u64) -> u64 {
        (Self::available_at(size) + 6 + 2 * size).next_multiple_of(4)
    }

    pub(super) fn new(memory: Arc<MachineMemory>, at: u64, slots: u16, event_index: bool) -> Self {
        Self { memory, at, size: Self::size(slots), event_index, available: 0, seen: 0 }
    }

    /// Where descriptors, available and used ring lie.
    pub(super) fn places(&self) -> [u64; 3] {
        let size = u64::from(self.size);
        [self.at, self.at + Self::available_at(size), self.at + Self::used_at(size)]
    }

    fn write_table(&self, at: u64, first: u16, pieces: &[Piece]) {
        for (number, piece) in pieces.iter().enumerate() {
            let index = first + number as u16;
            let more = number + 1 < pieces.len();
            let flags = if more { NEXT } else { 0 } | if piece.writable { WRITE } else { 0 };
            self.write_entry(at + ENTRY_LEN * u64::from(index), piece.at, piece.len as u32, flags, index + 1);
        }
    }

    fn write_entry(&self, place: u64, at: u64, len: u32, flags: u16, next: u16) {
        let entry = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.memory.write(place, &entry.concat());
    }

    /// Makes the request of `slot` available, in the queue's own table or in one at `table`. Whether the device wants a kick.
    pub(super) fn offer(&mut self, slot: u16, pieces: &[Piece], table: Option<u64>) -> bool {
        let [entries, available, used] = self.places();
        let head = slot * ENTRIES_EACH;
        match table {
            Some(table) => {
                self.write_table(table, 0, pieces);
                let len = ENTRY_LEN * pieces.len() as u64;
                self.write_entry(entries + ENTRY_LEN * u64::from(head), table, len as u32, INDIRECT, 0);
            }
            None => self.write_table(entries, head, pieces),
        }
        self.memory.store(available + 4 + 2 * u64::from(self.available % self.size), head);
        let old = self.available;
        self.available = old.wrapping_add(1);
        self.memory.store(available + 2, self.available);
        match self.event_index {
            true => self.memory.load(used + 4 + 8 * u64::from(self.size)) == old,
            false => self.memory.load(used) & NO_NOTIFY == 0,
        }
    }

    /// Takes an answer: the slot of its request, and how many bytes the device says to have written.
    pub(super) fn take(&mut self) -> Option<(u16, u32)> {
        let used = self.places()[2];
        if self.memory.load(used + 2) == self.seen {
            return None;
        }
        let mut entry = [0; 8];
        self.memory.read(used + 4 + 8 * u64::from(self.seen % self.size), &mut entry);
        let number = |at: usize| u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
        let head = number(0) as u16;
        assert!(number(0) < u32::from(self.size) && head.is_multiple_of(ENTRIES_EACH), "{head} is no head");
        self.seen = self.seen.wrapping_add(1);
        Some((head / ENTRIES_EACH, number(4)))
    }

    /// Asks for an interrupt with the next answer. False where there is one already.
    pub(super) fn listen(&self) -> bool {
        let [_, available, used] = self.places();
        if self.event_index {
            self.memory.store(available + 4 + 2 * u64::from(self.size), self.seen);
        }
        self.memory.load(used + 2) == self.seen
    }
}
