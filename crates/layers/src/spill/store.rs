//! An open spill file, and what its parts share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicBool, AtomicU32, AtomicU64, Marks, Ordering, Semaphore, WaitList, Work};
use spillway_core::{Charge, Env, IoBuf, Kind, Request, Seam, Workspace, mutant};

use super::format::{Layout, Record, Superblock};
use super::length::Length;
use super::segments::space::Space;
use super::segments::streams::{OpenSegments, room_of};
use super::segments::{SegmentState, Segments, ToFree};

/// Failed writes in a row after which nothing is written any more.
const FAILURES_MAX: u32 = 8;

/// Between two tries of a write that waits for room.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

/// Where a record lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Location {
    /// Number of the segment, below 2^24.
    pub segment: u32,
    /// First byte in the segment, below 2^22.
    pub offset: u32,
}

/// A record in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spilled {
    /// Where it lies.
    pub at: Location,
    /// What it is; its checksum changes with the place.
    pub record: Record,
}

impl Spilled {
    /// Its first byte in the segment.
    pub(super) fn start(&self) -> usize {
        self.at.offset as usize
    }

    /// The byte behind it.
    pub(super) fn end(&self) -> usize {
        self.start() + usize::from(self.record.len)
    }

    /// The room that it takes.
    pub(super) fn room(&self) -> u32 {
        room_of(self.record.len.into())
    }
}

/// Whose pages are spilled: knows which slot names what.
pub trait Owner {
    /// Whether `slot` names the record at `at`.
    fn names(&self, slot: u32, at: Location) -> bool;

    /// The same for room that is wanted: a clean copy of what the owner has elsewhere is given up, and released.
    fn needs(&self, slot: u32, at: Location) -> bool {
        self.names(slot, at)
    }

    /// The record was copied: has its slot name the copy, if it still names the record at `from`. True if so.
    fn moved(&self, from: Location, to: Spilled) -> bool;

    /// The record is not what was written: has `slot` answer with an error until it is written, if it still names the record at
    /// `at`. True if so.
    fn lost(&self, slot: u32, at: Location) -> bool;
}

/// What is counted since the file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Records written for their owner.
    RecordsWritten,
    /// Bytes written, of every kind.
    BytesWritten,
    /// Records read.
    RecordsRead,
    /// I/Os that read records.
    Reads,
    /// Records that were not what was written.
    Mismatches,
    /// Writes that failed.
    WriteErrors,
    /// Reads that failed.
    ReadErrors,
    /// Batches that found no room, in the file or on its host.
    Full,
    /// Segments that were cleaned.
    SegmentsCleaned,
    /// Records that the cleaner copied.
    RecordsMoved,
    /// Segments that cannot be cleaned because they cannot be read, or because their summary was not written.
    SetAside,
}

const COUNTS: usize = Count::SetAside as usize + 1;

/// Buffers beside those of requests, charged when the file is opened.
pub(super) struct Workspaces {
    /// Content on its way to the file.
    pub(super) batches: Workspace,
    /// Ends of segments that are written to.
    pub(super) tails: Workspace,
    /// What is read for the owner.
    pub(super) reads: Workspace,
    /// What is cleaned, and the checkpoint.
    pub(super) cleaner: Workspace,
}

/// How long writes wait for room on a host that is full, in milliseconds.
#[derive(Default)]
pub(super) struct RoomWait {
    /// From the first of them on; 0 for not at all.
    time_ms: AtomicU64,
    /// Of the environment's clock; 0 before the first of them.
    until_ms: AtomicU64,
    /// Called before each wait.
    begins: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// A spill file in use.
pub struct Store {
    pub(super) device: Seam,
    /// How it becomes longer, where it does.
    pub(super) length: Option<Length>,
    pub(super) env: Arc<dyn Env>,
    pub(super) superblock: Superblock,
    pub(super) workspaces: Workspaces,
    pub(super) segments: Segments,
    pub(super) space: Space,
    pub(super) streams: OpenSegments,
    /// Held by who opens the next segment of a stream.
    pub(super) opening: [Semaphore; 2],
    /// Held by who cleans.
    pub(super) cleaning: Semaphore,
    /// Segments to be punched.
    pub(super) freeing: Marks,
    /// Segments that cannot be cleaned; of free ones, those whose last unit cannot be written.
    pub(super) set_aside: Marks,
    /// Segments whose last unit may still have the footer of their last use.
    pub(super) stale: Marks,
    /// Closes and punches segments.
    pub(super) upkeep: Work,
    /// A segment was closed or freed.
    pub(super) settled: WaitList,
    pub(super) counters: Counters<COUNTS>,
    pub(super) failures: AtomicU32,
    pub(super) stopped: AtomicBool,
    pub(super) room_wait: RoomWait,
    pub(super) _charge: Charge,
}

impl Store {
    /// How much there was of something.
    pub fn count(&self, what: Count) -> u64 {
        self.counters.sum(what as usize)
    }

    /// Whether nothing is written any more because too many writes have failed in a row.
    pub fn has_failed(&self) -> bool {
        self.failures.load(Ordering::Relaxed) >= FAILURES_MAX
    }

    /// Writes are tried again, though too many have failed: for an owner that ends, and has no other place for what it writes.
    pub fn try_again(&self) {
        self.failures.store(0, Ordering::Relaxed);
    }

    /// Bytes of the spill file, or that it may have.
    pub fn size(&self) -> u64 {
        self.length.as_ref().map_or_else(|| self.device.geometry().size, Length::bytes_max)
    }

    /// Segments that new content may take, those that can be cleaned apart.
    pub fn free_segments(&self) -> u32 {
        self.space.for_content()
    }

    /// Asserts that the room of each segment is that of the records which slots name, as the places of their pages and as `copies`, and that
    /// free segments are what is left. While nothing is read or written, but ends of segments.
    pub fn verify(&self, named: impl Iterator<Item = Spilled>, copies: impl Iterator<Item = Spilled>) {
        let mut rooms = vec![(0, 0); self.segments.count() as usize];
        let room = |spilled: Spilled| (spilled.at.segment as usize, spilled.room());
        named.map(room).for_each(|(segment, room)| rooms[segment].0 += room);
        copies.map(room).for_each(|(segment, room)| rooms[segment].1 += room);
        let writes_ends = self.streams.are_closing();
        for (segment, &(named, copies)) in (0..).zip(&rooms) {
            let look = self.segments.look(segment);
            let expected = (named + copies, copies, false);
            assert_eq!(
                (look.live, look.copies, look.pinned && !writes_ends),
                expected,
                "room of segment {segment}, {look:?}"
            );
        }
        self.space
            .verify(self.segments.count(), |segment| self.segments.look(segment).state == SegmentState::Free);
    }

    pub(super) fn add(&self, what: Count, amount: u64) {
        self.counters.add(what as usize, amount);
    }

    pub(super) fn layout(&self) -> &Layout {
        &self.superblock.layout
    }

    /// [`Kind::ShuttingDown`] once it was stopped, [`Kind::Io`] after too many failures.
    pub(super) fn check(&self) -> Result<(), Kind> {
        if self.stopped.load(Ordering::Relaxed) {
            return Err(Kind::ShuttingDown);
        }
        if self.has_failed() { Err(Kind::Io) } else { Ok(()) }
    }

    /// Writes `buf` into a segment.
    pub(super) async fn write_at(
        &self,
        segment: u32,
        offset: usize,
        buf: IoBuf,
    ) -> (Result<(), Kind>, IoBuf) {
        let bytes = buf.len() as u64;
        let at = self.at(segment, offset, &buf);
        let reply = self.device.submit(Request::write(at, buf)).await;
        match reply.result {
            Ok(()) => {
                self.add(Count::BytesWritten, bytes);
                if !mutant::on("spill: count failures that do not follow each other") {
                    self.failures.store(0, Ordering::Relaxed);
                }
            }
            // The host's file system is full, and the file is not broken.
            Err(Kind::NoSpace) => {}
            Err(kind) => self.write_failed(kind),
        }
        (reply.result, reply.buf)
    }

    /// The same for what has no other place.
    pub(super) async fn write_patiently(
        &self,
        segment: u32,
        offset: usize,
        mut buf: IoBuf,
    ) -> (Result<(), Kind>, IoBuf) {
        let write = async || {
            let (result, back) = self.write_at(segment, offset, std::mem::take(&mut buf)).await;
            buf = back;
            result
        };
        (self.insist(write).await, buf)
    }

    /// Makes a write of a stop that has no other place once more where it fails, and again while its owner waits for room on the host.
    pub(super) async fn insist(&self, mut write: impl AsyncFnMut() -> Result<(), Kind>) -> Result<(), Kind> {
        let mut written = write().await;
        if written.is_err() && self.stopped.load(Ordering::Relaxed) {
            written = write().await;
        }
        while written == Err(Kind::NoSpace) && self.waits_for_room().await {
            written = write().await;
        }
        written
    }

    /// From now on, writes that find no room on the host wait for it, for so long after the first of them: for an owner that ends, and has no
    /// other place for what it writes. Each wait is told of as it `begins`.
    pub fn wait_for_room(&self, time: Duration, begins: impl Fn() + Send + Sync + 'static) {
        self.room_wait.begins.get_or_init(|| Box::new(begins));
        self.room_wait.time_ms.store(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// Waits until a write that found no room on the host may be tried again; false where it may not.
    pub(super) async fn waits_for_room(&self) -> bool {
        let RoomWait { time_ms, until_ms, begins } = &self.room_wait;
        let (time, now) = (time_ms.load(Ordering::Relaxed), self.env.now().as_millis() as u64);
        if time == 0 {
            return false;
        }
        if until_ms.compare_exchange(0, now + time, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            tracing::warn!(
                "{}: the file system of the spill file is full: make room within {} s, or what the device stores is lost",
                self.superblock.name,
                time / 1000,
            );
        }
        let waits = now < until_ms.load(Ordering::Relaxed);
        if waits {
            begins.get().inspect(|begins| begins());
            self.env.sleep(ROOM_PAUSE).await;
        }
        waits
    }

    /// Where on the device `buf` lies, which is a part of the segment.
    fn at(&self, segment: u32, offset: usize, buf: &IoBuf) -> u64 {
        assert!(segment < self.segments.count(), "segment {segment}");
        assert!(offset + buf.len() <= self.layout().segment_bytes(), "{} bytes at {offset}", buf.len());
        self.layout().segment_offset(segment) + offset as u64
    }

    fn write_failed(&self, kind: Kind) {
        self.add(Count::WriteErrors, 1);
        if self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_MAX {
            let name = &self.superblock.name;
            tracing::error!(
                "{name}: {FAILURES_MAX} writes to the spill file have failed in a row ({}): nothing is spilled any more",
                kind.errno_name()
            );
        }
    }

    /// Reads from a segment into `buf`.
    pub(super) async fn read_at(&self, segment: u32, offset: usize, buf: IoBuf) -> Result<IoBuf, Kind> {
        let at = self.at(segment, offset, &buf);
        let reply = self.device.submit(Request::read(at, buf)).await;
        if reply.result.is_err() {
            self.add(Count::ReadErrors, 1);
        }
        reply.result.map(|()| reply.buf)
    }

    /// Reads metadata of a segment into `memory`, once more where that fails: it has no other place.
    pub(super) async fn read_metadata(
        &self,
        segment: u32,
        offset: usize,
        len: usize,
        memory: &Workspace,
    ) -> Result<IoBuf, Kind> {
        let buf = memory.take(len).await;
        match self.read_at(segment, offset, buf).await {
            Err(_) => self.read_at(segment, offset, memory.take(len).await).await,
            read => read,
        }
    }

    /// Gives a segment to the upkeep, if it is to be freed.
    pub(super) fn free(self: &Arc<Self>, to_free: Option<ToFree>) {
        let Some(ToFree(segment)) = to_free else { return };
        let segment = segment.into();
        assert!(!self.freeing.has(segment), "a segment is freed once");
        self.freeing.mark(segment);
        self.queue_upkeep();
    }
}
