//! Which requests a queue has taken and not given back, in memory that outlives this process: the front end keeps it, and shows it to the
//! server that comes next. The layout is that of the vhost-user specification for split virtqueues, "Inflight I/O tracking".
//!
//! Behind the queues lies a trailer of our own: which server wrote it, whether it has acknowledged writes since the last flush that a crash
//! would lose, and whether a former one has lost such.

use std::sync::Arc;

use spillway_core::mutant;
use spillway_core::shared_memory::SharedMemory;
use spillway_core::sync::{AtomicU32, Mutex, Ordering};

use super::ring::QUEUE_SIZE_MAX;

/// Version of the layout.
const VERSION: u16 = 1;

/// Where the numbers of a queue lie: of its region, and of each entry behind that.
const VERSION_AT: u64 = 8;
const SIZE_AT: u64 = 10;
const LAST_AT: u64 = 12;
const USED_AT: u64 = 14;
const ENTRIES_AT: u64 = 16;
const ENTRY_LEN: u64 = 16;
const ENTRY_NEXT_AT: u64 = 6;
const ENTRY_COUNTER_AT: u64 = 8;

/// Regions of queues begin at multiples of this.
const ALIGNMENT: u64 = 64;

const TRAILER_LEN: u64 = 64;
const MAGIC: u64 = u64::from_le_bytes(*b"spillway");
const SERVER_AT: u64 = 8;
const UNFLUSHED_AT: u64 = 16;
const LOST_AT: u64 = 18;

/// Bytes of the region of a queue.
fn region_len(size: u16) -> u64 {
    (ENTRIES_AT + ENTRY_LEN * u64::from(size)).next_multiple_of(ALIGNMENT)
}

/// Bytes for so many queues, each of `size` entries, and the trailer.
pub(crate) fn total_len(queues: u16, size: u16) -> u64 {
    u64::from(queues) * region_len(size) + TRAILER_LEN
}

/// Most bytes for a device of so many queues.
pub const fn inflight_bytes_max(queues: usize) -> u64 {
    queues as u64 * (ENTRIES_AT + ENTRY_LEN * QUEUE_SIZE_MAX as u64 + ALIGNMENT) + TRAILER_LEN
}

/// The requests of one queue.
pub(crate) struct Inflight {
    memory: Arc<dyn SharedMemory>,
    start: u64,
    size: u16,
    /// How many were taken before.
    counter: u64,
}

impl Inflight {
    /// The region of queue `index` of several, each of `size` entries. `None` where it holds something else, or is too short.
    pub(crate) fn open(memory: Arc<dyn SharedMemory>, index: usize, size: u16) -> Option<Self> {
        let start = index as u64 * region_len(size);
        // The region of a queue of few entries is as long as the trailer.
        if start + region_len(size) + TRAILER_LEN > memory.len() {
            return None;
        }
        let this = Self { memory, start, size, counter: 0 };
        match (this.load(VERSION_AT), this.load(SIZE_AT)) {
            (0, _) => {
                this.store(SIZE_AT, size);
                this.store(VERSION_AT, VERSION);
            }
            (VERSION, known) if known == size => {}
            _ => return None,
        }
        Some(this)
    }

    fn load(&self, at: u64) -> u16 {
        self.memory.load(self.start + at)
    }

    fn store(&self, at: u64, value: u16) {
        self.memory.store(self.start + at, value);
    }

    fn entry(&self, head: u16) -> u64 {
        assert!(head < self.size, "entry {head} of {}", self.size);
        ENTRIES_AT + ENTRY_LEN * u64::from(head)
    }

    /// A request is taken.
    pub(crate) fn take(&mut self, head: u16) {
        self.counter += 1;
        let entry = self.entry(head);
        self.memory.write(self.start + entry + ENTRY_COUNTER_AT, &self.counter.to_le_bytes());
        self.store(entry, 1);
    }

    /// A request is about to be given back.
    pub(crate) fn give_back(&self, head: u16) {
        self.store(self.entry(head) + ENTRY_NEXT_AT, self.load(LAST_AT));
        self.store(LAST_AT, head);
    }

    /// It was given back, and the used ring has come to `used`.
    pub(crate) fn given_back(&self, head: u16, used: u16) {
        self.store(self.entry(head), 0);
        self.store(USED_AT, used);
    }

    /// What was taken and not given back, in the order in which it was taken, where the used ring has come to `used`.
    pub(crate) fn recover(&mut self, used: u16) -> Vec<u16> {
        let last = self.load(LAST_AT);
        if self.load(USED_AT) != used && last < self.size {
            // The former server came to its end between giving it back and noting so.
            self.given_back(last, used);
        }
        let taken = (0..self.size).filter(|&head| self.load(self.entry(head)) & 0xff != 0);
        let mut taken: Vec<(u64, u16)> = taken.map(|head| (self.counter_of(head), head)).collect();
        taken.sort_unstable();
        self.counter = taken.last().map_or(0, |(counter, _)| *counter).min(u64::MAX / 2);
        if mutant::on("inflight: forget what a former server has taken") {
            taken.clear();
        }
        taken.into_iter().map(|(_, head)| head).collect()
    }

    fn counter_of(&self, head: u16) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(self.start + self.entry(head) + ENTRY_COUNTER_AT, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// What a former server left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Former {
    /// There was none.
    None,
    /// It was this one.
    This,
    /// Another, which may have acknowledged writes that no flush has covered.
    Other { unflushed: bool },
}

/// Whether writes were acknowledged that no flush has covered, for the server that comes after a crash; and whether such were lost, for as
/// long as the front end keeps this memory: a guest that starts anew has other.
pub(crate) struct Unflushed {
    trailer: Option<(Arc<dyn SharedMemory>, u64)>,
    /// Whether a crash of this server loses them.
    buffered: bool,
    /// [`WRITTEN`] after a write, 0 after a flush, [`FLUSHING`] in between.
    state: AtomicU32,
    /// The number of the last flush that was begun; held while the state becomes another, and the trailer with it.
    flushes: Mutex<u64>,
    /// Whether every flush has to fail.
    lost: bool,
}

const WRITTEN: u32 = 1;
const FLUSHING: u32 = 2;

impl Unflushed {
    /// Nothing is noted for anybody.
    pub(crate) fn unseen() -> Self {
        Self { trailer: None, buffered: false, state: AtomicU32::new(0), flushes: Mutex::new(0), lost: false }
    }

    /// What the trailer of `memory` says to `server`, which loses writes in a crash where it is `buffered`. Nothing is changed until
    /// [`Unflushed::claim`].
    pub(crate) fn open(memory: Arc<dyn SharedMemory>, server: u64, buffered: bool) -> (Self, Former) {
        if memory.len() < TRAILER_LEN {
            return (Self::unseen(), Former::Other { unflushed: true });
        }
        let at = (memory.len() - TRAILER_LEN) / ALIGNMENT * ALIGNMENT;
        let number = |at: u64| {
            let mut bytes = [0; 8];
            memory.read(at, &mut bytes);
            u64::from_le_bytes(bytes)
        };
        let marked = memory.load(at + UNFLUSHED_AT) != 0;
        let former = match (number(at), number(at + SERVER_AT)) {
            (0, 0) => Former::None,
            (MAGIC, known) if known == server => Former::This,
            (MAGIC, _) => Former::Other { unflushed: marked },
            _ => Former::Other { unflushed: true },
        };
        let state = AtomicU32::new(if marked { WRITTEN } else { 0 });
        let lost = memory.load(at + LOST_AT) != 0;
        (Self { trailer: Some((memory, at)), buffered, state, flushes: Mutex::new(0), lost }, former)
    }

    /// The memory is that of `server` from now on.
    pub(crate) fn claim(&self, server: u64) {
        if let Some((memory, at)) = &self.trailer {
            memory.write(*at, &MAGIC.to_le_bytes());
            memory.write(at + SERVER_AT, &server.to_le_bytes());
        }
    }

    fn note(&self, place: u64, value: bool) {
        if let Some((memory, at)) = &self.trailer {
            memory.store(at + place, value.into());
        }
    }

    /// Whether there are such writes.
    pub(crate) fn any(&self) -> bool {
        self.state.load(Ordering::Acquire) != 0
    }

    /// A former server has lost what it had acknowledged.
    pub(crate) fn lose(&mut self) {
        self.lost = true;
        self.note(LOST_AT, true);
    }

    /// Whether flushes have to fail for that: each, as every file system and program of the guest may have written what is gone.
    pub(crate) fn lost(&self) -> bool {
        self.lost
    }

    /// With the turn. Where the state says that there are writes, so does the memory: others look at the state alone.
    fn mark(&self, state: u32) {
        if state != 0 {
            self.note(UNFLUSHED_AT, true);
        }
        self.state.store(state, Ordering::Release);
        if state == 0 {
            self.note(UNFLUSHED_AT, false);
        }
    }

    /// A write is about to be acknowledged.
    pub(crate) fn written(&self) {
        if self.buffered && self.state.load(Ordering::Acquire) != WRITTEN {
            let _turn = self.flushes.lock();
            self.mark(WRITTEN);
        }
    }

    /// A flush begins; its number.
    pub(crate) fn begin_flush(&self) -> u64 {
        let mut flushes = self.flushes.lock();
        *flushes += 1;
        if self.state.load(Ordering::Acquire) == WRITTEN {
            self.mark(FLUSHING);
        }
        *flushes
    }

    /// The flush of that number has covered all that was acknowledged before it began.
    pub(crate) fn flushed(&self, number: u64) {
        let flushes = self.flushes.lock();
        if *flushes == number && self.state.load(Ordering::Acquire) == FLUSHING {
            self.mark(0);
        }
    }
}
