//! The guest's side of vhost-user-blk: a driver with a split virtqueue (VIRTIO 1.2, sections 2.7 and 5.2) in memory that it shares.
//!
//! It believes nothing: an answer that nobody waits for, a second one, or one that says other lengths than were asked for is a panic, which
//! breaks the story.

mod link;
mod ring;

use std::sync::Arc;

use spillway_core::shared_memory::SharedMemory;
use spillway_core::{Kind, Op, Request, SECTOR};
use spillway_sim::rings::MachineMemory;

pub(crate) use link::Link;
use ring::{Piece, Ring};

/// Types of requests.
mod kind {
    pub(super) const IN: u32 = 0;
    pub(super) const OUT: u32 = 1;
    pub(super) const FLUSH: u32 = 4;
    pub(super) const DISCARD: u32 = 11;
    pub(super) const WRITE_ZEROES: u32 = 13;
}

const UNMAP: u32 = 1;

/// Bytes in front of a request, and of the range of a discard or zeroing.
const HEADER_LEN: u64 = 16;
const RANGE_LEN: u64 = 16;

/// What a status is that nobody has written.
const NO_STATUS: u8 = 0xff;

/// Places in the room of a request: header, status, the pieces of an indirect table, content.
const STATUS_AT: u64 = HEADER_LEN;
const TABLE_AT: u64 = 32;
const CONTENT_AT: u64 = 96;

/// What the driver does of its own choice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Habits {
    /// Queues.
    pub(crate) queues: u16,
    /// Requests in a queue at a time.
    pub(crate) slots: u16,
    /// Bytes of the content of a request at most, whole pages.
    pub(crate) len_max: u64,
    /// Each side says from which entry on it wants to hear of more.
    pub(crate) event_index: bool,
    /// A request is one entry, which names a table.
    pub(crate) indirect: bool,
    /// The device is told that the driver does not flush.
    pub(crate) write_through: bool,
}

impl Habits {
    /// Bytes of memory that all queues need.
    fn memory_len(&self) -> u64 {
        u64::from(self.queues) * self.queue_len()
    }

    /// Bytes of memory of one queue.
    fn queue_len(&self) -> u64 {
        let rooms = u64::from(self.slots) * self.room_len();
        (Ring::len(self.slots) + rooms).next_multiple_of(4096)
    }

    fn room_len(&self) -> u64 {
        (CONTENT_AT + self.len_max.max(RANGE_LEN)).next_multiple_of(16)
    }
}

/// What a request came to, and of a read the content.
type Outcome = Result<Vec<u8>, Kind>;

/// A request that is under way: how much of it the device writes to, and who waits.
struct UnderWay {
    ticket: u64,
    reads: u64,
}

/// One queue, as its driver has it.
struct Driver {
    memory: Arc<MachineMemory>,
    habits: Habits,
    ring: Ring,
    rooms_at: u64,
    /// By their slots.
    under_way: Vec<Option<UnderWay>>,
}

impl Driver {
    /// Queue `index` in `memory`.
    fn new(memory: &Arc<MachineMemory>, habits: Habits, index: usize) -> Self {
        let at = index as u64 * habits.queue_len();
        let ring = Ring::new(memory.clone(), at, habits.slots, habits.event_index);
        let under_way = (0..habits.slots).map(|_| None).collect();
        Self { memory: memory.clone(), habits, ring, rooms_at: at + Ring::len(habits.slots), under_way }
    }

    fn free_slot(&self) -> Option<usize> {
        self.under_way.iter().position(Option::is_none)
    }

    /// Adds a request to `slot`, which is free, with a place to cut its content at. Whether the device wants a kick for it.
    fn add(&mut self, slot: usize, ticket: u64, request: &Request, payload: &[u8], cut: u64) -> bool {
        let room = self.rooms_at + slot as u64 * self.habits.room_len();
        let (range, ranged) = (request.range, matches!(request.op, Op::WriteZeroes | Op::Discard));
        let (kind, content) = match request.op {
            Op::Read => (kind::IN, Vec::new()),
            Op::Write => (kind::OUT, payload.to_vec()),
            Op::Flush => (kind::FLUSH, Vec::new()),
            Op::WriteZeroes => (kind::WRITE_ZEROES, segment(request)),
            Op::Discard => (kind::DISCARD, segment(request)),
        };
        let sector = if ranged || request.op == Op::Flush { 0 } else { range.offset / SECTOR };
        let reads = if request.op == Op::Read { range.len } else { 0 };
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.memory.write(room, &header);
        self.memory.write(room + STATUS_AT, &[NO_STATUS]);
        self.memory.write(room + CONTENT_AT, &content);
        let piece = |at, len, writable| Piece { at, len, writable };
        let mut pieces = vec![piece(room, HEADER_LEN, false)];
        let (len, writable) = (reads.max(content.len() as u64), reads > 0);
        let cut = cut.min(len);
        pieces.extend([
            piece(room + CONTENT_AT, cut, writable),
            piece(room + CONTENT_AT + cut, len - cut, writable),
        ]);
        pieces.push(piece(room + STATUS_AT, 1, true));
        pieces.retain(|piece| piece.len > 0);
        let before = self.under_way[slot].replace(UnderWay { ticket, reads });
        assert!(before.is_none(), "the slot is free");
        let table = self.habits.indirect.then_some(room + TABLE_AT);
        self.ring.offer(slot as u16, &pieces, table)
    }

    /// Takes an answer: the ticket of its request, and what came of that.
    fn take(&mut self) -> Option<(u64, Outcome)> {
        let (slot, written) = self.ring.take()?;
        let done = self.under_way.get_mut(usize::from(slot)).and_then(Option::take);
        let UnderWay { ticket, reads } = done.expect("an answer to something asked");
        let room = self.rooms_at + u64::from(slot) * self.habits.room_len();
        let (mut status, mut content) = ([0], vec![0; reads as usize]);
        self.memory.read(room + STATUS_AT, &mut status);
        self.memory.read(room + CONTENT_AT, &mut content);
        let outcome = match status[0] {
            0 => Ok(content),
            1 => Err(Kind::Io),
            2 => Err(Kind::NotSupported),
            other => panic!("status {other} is none"),
        };
        assert!(
            outcome.is_err() || u64::from(written) == reads + 1,
            "{written} bytes for {reads} and a status"
        );
        Some((ticket, outcome))
    }
}

/// Where a discard or zeroing goes.
fn segment(request: &Request) -> Vec<u8> {
    let sectors = (request.range.len / SECTOR) as u32;
    let hole = request.op == Op::WriteZeroes && !request.flags.no_hole;
    let flags = if hole { UNMAP } else { 0 };
    let sector = request.range.offset / SECTOR;
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
