//! The cache itself: what its parts share, and how they look at it.

pub(super) mod charges;
pub(super) mod counts;
pub(super) mod pressure;
pub(super) mod streams;

use std::sync::Arc;

use spillway_core::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Changes, GroupFlush, Ordering, RangeSet, RwLock, Semaphore,
    StickyError, Work,
};
use spillway_core::{BlockSize, ByteRange, Env, Geometry, Kind, Seam, Works, Workspace};
use spillway_policy::dirty_regions::{RegionNumber, Stamp};
use spillway_policy::zones::ZoneAttempt;

use super::config::{Mode, Settings};
use super::folios::places::{ORDERS, Places};
use super::folios::shares::Traffic;
use super::folios::slabs::Frame;
use super::folios::zones::Zones;
use super::folios::{Evicted, Folios};
use crate::decisions::{Decision, Decisions};
use crate::slice::Slice;
use crate::writeback::{Aging, Meter, Pauses, Writeback};
use charges::{Dirtiable, unsaved_blocks, unsaved_min};
use counts::{Count, Counts};
use pressure::Pressure;
use streams::AccessStreams;

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
    /// Blocks that are dirty, being written back, or about to become dirty.
    pub(super) unsaved: Semaphore,
    /// Background reclaim.
    pub(super) reclaim: Work,
    /// Of each shard.
    pub(super) pressure: Box<[Pressure]>,
    /// Ends of a batch and of a read of the device below, and folios that have left.
    pub(super) changes: Changes,
    /// Of what becomes dirty now.
    pub(super) epoch: AtomicU64,
    /// What became dirty in an epoch before this one is waited for.
    pub(super) wanted: AtomicU64,
    /// Its timer runs for as long as something is unsaved.
    pub(super) aging: Aging<Core>,
    /// Ranges that are changed beside the cache.
    pub(super) outside: RangeSet,
    pub(super) writeback: Writeback<Core>,
    /// Of writers, before they reach the limit.
    pub(super) pauses: Pauses,
    pub(super) decisions: Decisions,
    pub(super) works: Works,
    /// Where write-back goes on.
    pub(super) cursor: AtomicU64,
    /// A batch of the engine has failed since it took one.
    pub(super) has_failed: AtomicBool,
    pub(super) streams: AccessStreams,
    /// Of the device below.
    pub(super) meter: Arc<Meter>,
    /// Copies of what is written back.
    pub(super) batches: Workspace,
    /// Batches of the engine that wait for that.
    pub(super) queued: AtomicUsize,
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
    /// Until when reclaim leaves the device below alone, which has failed.
    #[cfg(feature = "of-2011")]
    pub(super) page_outs: spillway_core::sync::Mutex<spillway_policy::backoff::Backoff>,
    pub(super) verify_calls: AtomicU64,
    pub(super) dirtiable: Dirtiable,
}

/// Units in use for which one call of [`Core::verify`] more is left out.
const VERIFIED_UNITS: u64 = 256;

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

    #[inline]
    pub(super) fn shard(&self, region: RegionNumber) -> &RwLock<Folios> {
        &self.shards[self.places.shard_of(region)]
    }

    /// The shard that has a byte of the device.
    #[inline]
    pub(super) fn home(&self, offset: u64) -> &RwLock<Folios> {
        self.shard(self.places.region_at(offset))
    }

    /// Whether `range` is being changed beside the cache. Asked with the lock of its shard, in which who changes it looks afterwards.
    pub(super) fn is_outside(&self, range: ByteRange) -> bool {
        !self.outside.is_empty() && self.outside.overlaps(range)
    }

    /// Memory of a shard for a folio that is read, of `order` or less: what is free, or, where reclaim is late, that of a folio that leaves.
    pub(super) fn frame(self: &Arc<Self>, shard: &mut Folios, order: u8, slice: &mut Slice) -> Option<Frame> {
        #[cfg(feature = "of-2011")]
        if self.is_of_2011() {
            return self.frame_of_2011(shard, order, slice, None);
        }
        let mut zones = self.zones.order();
        let free = zones.clone().find_map(|zone| self.take(shard, zone, order));
        let frame = free.or_else(|| zones.find_map(|zone| self.evict_directly(shard, zone, order, slice)));
        self.look_at_memory(shard);
        frame
    }

    /// The same for a folio that is about to be dirtied, in a zone below its share of the dirty limit where one has any.
    pub(super) fn frame_to_dirty(
        self: &Arc<Self>,
        shard: &mut Folios,
        order: u8,
        slice: &mut Slice,
    ) -> Option<Frame> {
        #[cfg(feature = "of-2011")]
        if self.is_of_2011() {
            let percent = self.settings.dirty_ratio.get();
            return self.frame_of_2011(shard, order, slice, Some(percent));
        }
        let frame = self.zones.place(self.settings.dirty_ratio.get(), |zone, attempt| match attempt {
            ZoneAttempt::Spare => self.take(shard, zone, order),
            ZoneAttempt::Reclaim => self.evict_directly(shard, zone, order, slice),
            ZoneAttempt::Fallback => {
                let free = self.take(shard, zone, order);
                free.or_else(|| self.evict_directly(shard, zone, order, slice))
            }
        });
        self.look_at_memory(shard);
        frame
    }

    pub(super) fn take(&self, shard: &mut Folios, zone: usize, order: u8) -> Option<Frame> {
        let frame = shard.take(zone, order)?;
        self.zones.taken(frame.zone, frame.units());
        Some(frame)
    }

    pub(super) fn evict_directly(
        self: &Arc<Self>,
        shard: &mut Folios,
        zone: usize,
        order: u8,
        slice: &mut Slice,
    ) -> Option<Frame> {
        if !self.evict(shard, zone, slice) {
            return None;
        }
        self.counts.add(Count::EvictedDirectly, 1);
        self.take(shard, zone, order)
    }

    /// Has a folio of `zone` leave a shard; whether one could.
    pub(super) fn evict(self: &Arc<Self>, shard: &mut Folios, zone: usize, slice: &mut Slice) -> bool {
        #[cfg(feature = "of-2011")]
        if self.of_2011().reclaim {
            return self.evict_of_2011(shard, zone, slice);
        }
        shard.leaving(zone, slice).inspect(|slot| self.remove(shard, zone, *slot)).is_some()
    }

    /// The folio of a slot of `zone` leaves a shard.
    pub(super) fn remove(&self, shard: &mut Folios, zone: usize, slot: u32) {
        let Evicted { span, unread } = shard.remove(zone, slot);
        self.zones.given(zone as u8, span.units());
        if unread {
            self.wasted(zone as u8, self.places.start(span.unit));
        }
    }

    /// Blocks that may be unsaved at `percent`, at least those of two folios.
    pub(super) fn blocks_at(&self, percent: u64) -> u64 {
        let blocks = unsaved_blocks(self.zones.units(), self.places.unit_blocks(), percent);
        blocks.max(unsaved_min(self.places.blocks(self.places.order_max)))
    }

    /// Sets the limit of unsaved blocks that `dirty_ratio` asks for; where the budget has no room for their regions, one for which there is.
    pub(super) fn limit_unsaved(&self) {
        let blocks = self.blocks_at(self.settings.dirty_ratio.get());
        let regions = blocks.min(self.zones.units());
        let charged = self.dirtiable.charge(regions);
        self.unsaved.set_limit(if charged < regions { charged } else { blocks });
    }

    /// Folios of each order.
    pub(super) fn folios(&self) -> [u64; ORDERS] {
        let mut sum = [0; ORDERS];
        for shard in &self.shards {
            let counts = shard.read().orders;
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += u64::from(count));
        }
        sum
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

    /// The first failure sticks.
    pub(super) fn fail(&self, what: &'static str, kind: Kind) {
        #[cfg(feature = "of-2011")]
        self.page_outs.lock().failed(self.env.now());
        if self.failure.set(kind) {
            self.decisions
                .note(Decision("fail flushes", what), 0, || format!("failed with {}", kind.errno_name()));
            tracing::error!(
                "page cache: {what} failed ({}): flushes fail from now on; what is dirty stays in memory and is tried again",
                kind.errno_name()
            );
        }
        self.changes.wake_all();
    }

    /// Asserts that the parts agree with each other. A large cache is looked at now and then, so that many calls stay cheap.
    pub(super) fn verify(&self) {
        let calls = self.verify_calls.fetch_add(1, Ordering::Relaxed);
        if !calls.is_multiple_of(1 + (self.zones.units() - self.zones.free()) / VERIFIED_UNITS) {
            return;
        }
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.read().verify()).collect();
        for zone in 0..self.zones.len() {
            let held = self.zones.held(zone);
            let sum = shards.iter().fold((0, 0), |sum, shard| (sum.0 + shard[zone].0, sum.1 + shard[zone].1));
            assert_eq!(sum, (held.dirty, held.moving), "unsaved blocks of zone {zone} are counted");
            let free = self.shards.iter().map(|shard| shard.read().free_of(zone)).sum::<u64>();
            assert_eq!(
                free * u64::from(self.places.unit_blocks()),
                held.free,
                "free memory of zone {zone} is counted"
            );
        }
        let unsaved = self.zones.dirty() + self.zones.moving();
        assert!(unsaved <= self.unsaved.used(), "what is not below is counted");
    }
}
