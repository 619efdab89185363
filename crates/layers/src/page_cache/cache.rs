//! The cache itself: what its parts share, and how they look at it.

use std::sync::Arc;

use spillway_core::sync::{
    AtomicBool, AtomicU64, GroupFlush, Mutex, Ordering, RangeSet, RwLock, Semaphore, StickyError, WaitList,
    Watermark, Work,
};
use spillway_core::{BlockSize, ByteRange, Charge, Env, Geometry, Kind, Seam, Workspace};
use spillway_policy::ages::Ages;
use spillway_policy::dirty_regions::{RegionNumber, Stamp};

use super::counts::{Count, Counts};
use super::folio::Folio;
use super::folios::Folios;
use super::frames::Frame;
use super::places::{FolioNumber, Places};
use super::settings::{Mode, Settings};
use super::shares::Traffic;
use super::streams::Streams;
use super::zones::Zones;
use crate::writeback::{Meter, Pauses, Writeback};

/// See the head of this module.
pub struct PageCache {
    pub(super) core: Arc<Core>,
}

/// The parts; each owns its state.
pub(super) struct Core {
    pub(super) below: Seam,
    pub(super) env: Arc<dyn Env>,
    pub(super) settings: Settings,
    pub(super) places: Places,
    /// Asked for with each request.
    pub(super) block_size: BlockSize,
    pub(super) shards: Box<[RwLock<Folios>]>,
    pub(super) zones: Zones,
    /// The shard that a folio leaves next.
    pub(super) hand: AtomicU64,
    /// Blocks that are dirty, being written back, or about to become dirty.
    pub(super) unsaved: Semaphore,
    /// Blocks that are dirty, and those that are being written back.
    pub(super) dirty: AtomicU64,
    pub(super) moving: AtomicU64,
    /// Writers that wait, for that or for memory.
    pub(super) waiting: AtomicU64,
    /// A folio may leave.
    pub(super) room: WaitList,
    /// Background reclaim, and whether it finds too few clean folios.
    pub(super) reclaim: Work,
    pub(super) short: AtomicBool,
    /// Counts ends: of a batch, of a read of the device below. Counted after the change, so that who reads it first and then looks
    /// misses nothing.
    pub(super) changes: Watermark,
    /// Of what becomes dirty now.
    pub(super) epoch: AtomicU64,
    /// What became dirty in an epoch before this one is waited for.
    pub(super) wanted: AtomicU64,
    pub(super) ages: Mutex<Ages>,
    pub(super) age_timer: Work,
    /// Ranges that are changed beside the cache.
    pub(super) outside: RangeSet,
    pub(super) writeback: Writeback<Core>,
    /// Of writers, before they reach the limit.
    pub(super) pauses: Pauses,
    /// Where write-back goes on.
    pub(super) cursor: AtomicU64,
    pub(super) streams: Streams,
    /// Of the device below.
    pub(super) meter: Arc<Meter>,
    /// Copies of what is written back.
    pub(super) batches: Workspace,
    /// Flushes of clients, and of the device below.
    pub(super) flushes: GroupFlush,
    pub(super) syncs: GroupFlush,
    /// The first failure of write-back, or of a flush below.
    pub(super) failure: StickyError,
    /// The first failure of a flush below: what was there before it may be lost, whatever is written later.
    pub(super) sync_failure: StickyError,
    /// The end has made everything durable, whatever failed before.
    pub(super) ended: AtomicBool,
    pub(super) counts: Counts,
    pub(super) verify_calls: AtomicU64,
    pub(super) _charge: Charge,
}

/// Calls of [`Core::verify`] of which one looks at everything, for each folio.
const VERIFIED_FOLIOS: u64 = 256;

impl Core {
    /// What the cache is to those above: the device below, in its own blocks.
    pub(super) fn geometry(&self) -> Geometry {
        let (below, block_size) = (self.below.geometry(), self.block_size);
        let through = self.settings.mode == Mode::Writethrough;
        Geometry {
            size: below.size & !(block_size.bytes() - 1),
            block_size,
            optimal_io: below.optimal_io.max(block_size.bytes() as u32),
            write_through: below.write_through && through,
            ..below
        }
    }

    /// The size in [`Core::geometry`].
    pub(super) fn size(&self) -> u64 {
        self.below.size() & !(self.block_size.bytes() - 1)
    }

    /// Of what becomes dirty now: the epoch.
    pub(super) fn stamp(&self) -> Stamp {
        Stamp(self.epoch.load(Ordering::Acquire))
    }

    pub(super) fn shard(&self, region: RegionNumber) -> &RwLock<Folios> {
        &self.shards[self.places.shard_of(region)]
    }

    /// The shard that has `folio`.
    pub(super) fn home(&self, folio: FolioNumber) -> &RwLock<Folios> {
        self.shard(self.places.region_of(folio))
    }

    /// Whether `range` is being changed beside the cache. Asked with the lock of its shard, in which who changes it looks afterwards.
    pub(super) fn is_outside(&self, range: ByteRange) -> bool {
        !self.outside.is_empty() && self.outside.overlaps(range)
    }

    /// Memory for a folio that is read: a frame that nobody uses, or, where reclaim is late, that of a folio that leaves.
    pub(super) fn frame(self: &Arc<Self>) -> Option<Frame> {
        let mut order = self.zones.order();
        let free = self.zones.take_any(order.clone());
        self.look_at_frames();
        free.or_else(|| order.find_map(|zone| self.evict_directly(zone)))
    }

    /// The same for a folio that is about to be dirtied, in a zone below its share of the dirty limit where one has any.
    pub(super) fn frame_to_dirty(self: &Arc<Self>) -> Option<Frame> {
        let frame = self.zones.place(self.settings.dirty_ratio.get(), |zone| self.evict_directly(zone));
        self.look_at_frames();
        frame
    }

    fn evict_directly(self: &Arc<Self>, zone: usize) -> Option<Frame> {
        if !self.zones.reclaim_directly() {
            return None;
        }
        self.evict(zone).inspect(|_| self.counts.add(Count::EvictedDirectly, 1))
    }

    /// The memory of a folio of `zone` that leaves.
    pub(super) fn evict(self: &Arc<Self>, zone: usize) -> Option<Frame> {
        let count = self.shards.len() as u64;
        let first = self.hand.fetch_add(1, Ordering::Relaxed);
        let mut met = self.notes_dirty().then(Vec::new);
        let evict = |number: u64| self.shards[(number % count) as usize].write().evict(zone, met.as_mut());
        let folio = (first..first + count).find_map(evict);
        met.into_iter().flatten().for_each(|folio| self.meet_dirty(folio));
        folio.map(|folio| self.give_up(folio))
    }

    /// A folio has left; its memory.
    fn give_up(&self, folio: Folio) -> Frame {
        if folio.is_unread() {
            self.wasted(self.places.start(folio.number));
        }
        Frame { zone: folio.zone, bytes: folio.bytes }
    }

    /// Gives memory back that was not used after all.
    pub(super) fn give_frame(&self, frame: Frame) {
        self.zones.put(frame);
        self.room.wake_one();
    }

    /// Blocks that may be unsaved at `percent`, at least those of two folios.
    pub(super) fn blocks_at(&self, percent: u64) -> u64 {
        let blocks = u64::from(self.places.folio_blocks());
        (self.zones.frames() * blocks * percent / 100).max(2 * blocks)
    }

    /// What has happened in a zone.
    pub(super) fn traffic_of(&self, zone: usize) -> Traffic {
        let mut sum = Traffic::default();
        self.shards.iter().for_each(|shard| sum += shard.read().traffic(zone));
        sum
    }

    /// What has happened in all zones.
    pub(super) fn traffic(&self) -> Traffic {
        let mut sum = Traffic::default();
        (0..self.zones.len()).for_each(|zone| sum += self.traffic_of(zone));
        sum
    }

    /// Something has ended that others may wait for.
    pub(super) fn wake(&self) {
        self.changes.step();
        self.room.wake_all();
    }

    /// The first failure sticks.
    pub(super) fn fail(&self, what: &str, kind: Kind) {
        if self.failure.set(kind) {
            tracing::error!(
                "page cache: {what} failed ({}): flushes fail from now on; what is dirty stays in memory and is tried again",
                kind.errno_name()
            );
        }
        self.wake();
    }

    /// Asserts that the parts agree with each other. A large cache is looked at now and then, so that many calls stay cheap.
    pub(super) fn verify(&self) {
        let calls = self.verify_calls.fetch_add(1, Ordering::Relaxed);
        if !calls.is_multiple_of(1 + self.zones.made() / VERIFIED_FOLIOS) {
            return;
        }
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.read().verify()).collect();
        for zone in 0..self.zones.len() {
            let held = self.zones.held(zone);
            let sum = shards.iter().fold((0, 0), |sum, shard| (sum.0 + shard[zone].0, sum.1 + shard[zone].1));
            assert_eq!(sum, (held.dirty, held.moving), "unsaved blocks of zone {zone} are counted");
        }
        let dirty: u64 = shards.iter().flatten().map(|zone| zone.0).sum();
        let moving: u64 = shards.iter().flatten().map(|zone| zone.1).sum();
        assert_eq!(dirty, self.dirty.load(Ordering::Relaxed), "dirty blocks are counted");
        assert_eq!(moving, self.moving.load(Ordering::Relaxed), "blocks that are written back are counted");
        assert!(dirty + moving <= self.unsaved.used(), "what is not below is counted");
        let folios: usize = self.shards.iter().map(|shard| shard.read().len()).sum();
        assert!(folios as u64 + self.zones.free() <= self.zones.frames(), "each frame has one place");
    }
}
