//! A guest's driver and its memory, and a host that keeps what it is given.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_core::shared_memory::{ConversationHost, EventOf, NewQueue, SharedMemory};
use spillway_core::sync::{AtomicBool, Mutex, Ordering};
use spillway_core::{Aligned, Error, LocalFuture};

use super::super::inflight::{Inflight, Unflushed, total_len};
use super::super::memory::{GuestMemory, RegionPlace, SharedRegion};
use super::super::queue::BlockQueue;
use super::super::ring::RingLayout;
use super::super::setup::{Parts, SharedQueueState, TransferLimits};
use crate::Export;
use crate::test_device::TestDevice;
use spillway_core::sync::AtomicU32;

/// Entries of the queue.
pub(super) const SIZE: u16 = 16;

/// Where the guest's memory begins for it, and how much there is.
pub(super) const BASE: u64 = 1 << 20;
pub(super) const LEN: u64 = 1 << 20;

/// Places of the parts.
const AVAILABLE: u64 = BASE + 0x1000;
const USED: u64 = BASE + 0x2000;
const BUFFERS: u64 = BASE + 0x4000;

pub(super) const LAYOUT: RingLayout =
    RingLayout { size: SIZE, descriptors: BASE, available: AVAILABLE, used: USED };

pub(super) const NEXT: u16 = 1;
pub(super) const WRITE: u16 = 2;
pub(super) const INDIRECT: u16 = 4;

/// Memory that a test can look at.
pub(super) struct Heap {
    bytes: Mutex<Vec<u8>>,
    pub(super) gone: AtomicBool,
}

impl Heap {
    pub(super) fn new(len: u64) -> Arc<Self> {
        Arc::new(Self { bytes: Mutex::new(vec![0; len as usize]), gone: AtomicBool::new(false) })
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().clone()
    }
}

impl SharedMemory for Heap {
    fn len(&self) -> u64 {
        self.bytes.lock().len() as u64
    }

    fn read(&self, at: u64, to: &mut [u8]) {
        to.copy_from_slice(&self.bytes.lock()[at as usize..][..to.len()]);
    }

    fn write(&self, at: u64, from: &[u8]) {
        self.bytes.lock()[at as usize..][..from.len()].copy_from_slice(from);
    }

    fn load(&self, at: u64) -> u16 {
        let mut bytes = [0; 2];
        self.read(at, &mut bytes);
        u16::from_le_bytes(bytes)
    }

    fn store(&self, at: u64, value: u16) {
        self.write(at, &value.to_le_bytes());
    }

    fn is_whole(&self) -> bool {
        !self.gone.load(Ordering::SeqCst)
    }
}

/// A request that the driver has added.
pub(super) struct Added {
    pub(super) head: u16,
    data: u64,
    len: usize,
}

/// The driver of one queue.
pub(super) struct Guest {
    pub(super) heap: Arc<Heap>,
    pub(super) memory: GuestMemory,
    next_entry: u16,
    next_buffer: u64,
    pub(super) available: u16,
    pub(super) seen: u16,
}

impl Guest {
    pub(super) fn new() -> Self {
        let heap = Heap::new(LEN);
        let mut memory = GuestMemory::default();
        let place = RegionPlace { guest: BASE, len: LEN, user: 0x7000_0000 };
        assert!(memory.add(SharedRegion { place, memory: heap.clone() }));
        Self { heap, memory, next_entry: 0, next_buffer: BUFFERS, available: 0, seen: 0 }
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.memory.write(at, bytes).unwrap();
    }

    pub(super) fn entry(&self, table: u64, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        let bytes = [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(table + 16 * u64::from(index), &bytes.concat());
    }

    /// Room in its memory.
    pub(super) fn room(&mut self, len: u64) -> u64 {
        let at = self.next_buffer;
        self.next_buffer += len.next_multiple_of(16);
        assert!(self.next_buffer <= BASE + LEN, "the guest's memory is full");
        at
    }

    /// Makes an entry of the table available.
    pub(super) fn offer(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + 2 * u64::from(self.available % SIZE), &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.memory.store(AVAILABLE + 2, self.available).unwrap();
    }

    /// Pieces in a row, from the next entry on; their head.
    pub(super) fn chain(&mut self, pieces: &[(u64, u32, u16)]) -> u16 {
        let head = self.next_entry;
        for (number, &(at, len, flags)) in pieces.iter().enumerate() {
            let last = number + 1 == pieces.len();
            let next = (self.next_entry + 1) % SIZE;
            self.entry(BASE, self.next_entry, at, len, if last { flags } else { flags | NEXT }, next);
            self.next_entry = next;
        }
        head
    }

    fn header(&mut self, kind: u32, sector: u64) -> u64 {
        let at = self.room(16);
        self.put(at, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        at
    }

    /// A request of one piece of payload: what the device reads, or room of so many bytes for what it writes.
    pub(super) fn request(&mut self, kind: u32, sector: u64, payload: &[u8], room: usize) -> Added {
        let header = self.header(kind, sector);
        let len = payload.len() + room;
        let (data, status) = (self.room(len as u64), self.room(1));
        self.put(data, payload);
        self.put(status, &[0xff]);
        let writes = if room > 0 { WRITE } else { 0 };
        let data_piece = [(data, len as u32, writes)];
        let pieces =
            [&[(header, 16, 0)][..], if len > 0 { &data_piece } else { &[] }, &[(status, 1, WRITE)]].concat();
        let head = self.chain(&pieces);
        self.offer(head);
        Added { head, data, len }
    }

    /// The content and the status of a request that was given back.
    pub(super) fn outcome(&self, added: &Added) -> (Vec<u8>, u8) {
        let mut bytes = vec![0; added.len];
        self.memory.read(added.data, &mut bytes).unwrap();
        let mut status = [0];
        let behind = added.data + (added.len as u64).next_multiple_of(16);
        self.memory.read(behind, &mut status).unwrap();
        (bytes, status[0])
    }

    /// What was given back since the last call: heads and bytes written.
    pub(super) fn used(&mut self) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        while self.seen != self.memory.load(USED + 2).unwrap() {
            let mut bytes = [0; 8];
            self.memory.read(USED + 4 + 8 * u64::from(self.seen % SIZE), &mut bytes).unwrap();
            let (head, len) = bytes.split_at(4);
            let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
            found.push((number(head), number(len)));
            self.seen = self.seen.wrapping_add(1);
        }
        found
    }

    /// Says from which entry of the used ring on it wants an interrupt.
    pub(super) fn interrupt_at(&self, entry: u16) {
        self.memory.store(AVAILABLE + 4 + 2 * u64::from(SIZE), entry).unwrap();
    }

    /// The entry from which on the device wants a kick.
    pub(super) fn kick_at(&self) -> u16 {
        self.memory.load(USED + 4 + 8 * u64::from(SIZE)).unwrap()
    }

    /// The device's flags of the used ring, and the driver's of the available one.
    pub(super) fn used_flags(&self) -> u16 {
        self.memory.load(USED).unwrap()
    }

    pub(super) fn set_flags(&self, flags: u16) {
        self.memory.store(AVAILABLE, flags).unwrap();
    }
}

/// A device, and memory for its requests in flight.
pub(super) struct Fixture {
    pub(super) device: Arc<TestDevice>,
    pub(super) export: Arc<Export>,
    pub(super) inflight: Arc<Heap>,
    pub(super) unflushed: Arc<Unflushed>,
    pub(super) limits: TransferLimits,
    pub(super) event_index: bool,
    pub(super) write_through: bool,
}

impl Fixture {
    pub(super) fn new() -> Self {
        let device = TestDevice::new(1 << 20);
        let export = Arc::new(Export::new("ram0", Aligned::new(device.clone())).unwrap());
        Self {
            device,
            export,
            inflight: Heap::new(total_len(1, SIZE)),
            unflushed: Arc::new(Unflushed::unseen()),
            limits: TransferLimits { payload_len_max: 1 << 18, held_bytes_max: 1 << 20 },
            event_index: true,
            write_through: false,
        }
    }

    pub(super) fn parts(&self, guest: &Guest) -> Parts {
        Parts {
            export: self.export.clone(),
            limits: self.limits,
            shared: Arc::new(SharedQueueState {
                memory: Mutex::new(Arc::new(guest.memory.clone())),
                enabled: AtomicU32::new(1),
                base: AtomicU32::new(0),
            }),
            layout: LAYOUT,
            event_index: self.event_index,
            base: 0,
            inflight: Inflight::open(self.inflight.clone(), 0, SIZE),
            unflushed: self.unflushed.clone(),
            write_through: self.write_through,
        }
    }

    pub(super) fn queue(&self, guest: &Guest) -> BlockQueue {
        BlockQueue::new(self.parts(guest))
    }
}

/// Gives its memory for any file, and keeps the queues that are started.
#[derive(Default)]
pub(super) struct ToyHost {
    pub(super) heap: Option<Arc<Heap>>,
    pub(super) made: Option<Arc<Heap>>,
    pub(super) started: Vec<(usize, NewQueue)>,
    pub(super) stopped: Vec<usize>,
    pub(super) woken: Vec<usize>,
}

impl ConversationHost for ToyHost {
    fn map(&mut self, _: OwnedFd, _: u64, len: u64) -> Result<Arc<dyn SharedMemory>, Error> {
        let known = self.heap.iter().chain(&self.made).find(|heap| heap.len() == len);
        match known {
            Some(heap) => Ok(heap.clone()),
            None if len <= LEN => Ok(Heap::new(len)),
            None => Err(Error::invalid("the file has less")),
        }
    }

    fn create(&mut self, len: u64) -> Result<OwnedFd, Error> {
        self.made = Some(Heap::new(len));
        Ok(descriptor())
    }

    fn set_event(&mut self, _: usize, _: EventOf, _: Option<OwnedFd>) -> Result<(), Error> {
        Ok(())
    }

    fn start(&mut self, index: usize, new_queue: NewQueue) {
        self.started.push((index, new_queue));
    }

    fn wake(&mut self, index: usize) {
        self.woken.push(index);
    }

    fn stop(&mut self, index: usize) -> LocalFuture<()> {
        self.stopped.push(index);
        Box::pin(std::future::ready(()))
    }

    fn set_channel(&mut self, _: OwnedFd) -> Result<(), Error> {
        Ok(())
    }
}

/// Any descriptor.
pub(super) fn descriptor() -> OwnedFd {
    std::fs::File::open("/dev/null").unwrap().into()
}
