//! How a page cache is opened: what fits, how it is cut, what it charges.

use std::sync::Arc;

use spillway_core::size::human;
use spillway_core::sync::{
    AtomicBool, AtomicU64, AtomicUsize, Changes, GroupFlush, RangeSet, RwLock, Semaphore, StickyError, Work,
};
use spillway_core::{BlockDevice, Budget, Env, Error, Geometry, Kind, Regions, Seam, Works, Workspace};
use spillway_policy::dirty_regions::DirtyRegions;

use super::config::{Config, FOLIO_MAX, Settings};
use super::device::charges::{Dirtiable, unsaved_blocks, unsaved_min};
use super::device::counts::Counts;
use super::device::pressure::Pressure;
use super::device::streams::{AccessStreams, Bounds};
use super::device::{Core, PageCache};
use super::folios::folio::SLOT_BITS;
use super::folios::index::Index;
use super::folios::places::Places;
use super::folios::shares::BYTES_SPARE;
use super::folios::slabs;
use super::folios::zones::Zones;
use super::folios::{Folios, bytes_beside};
use crate::decisions::Decisions;
use crate::writeback::{Aging, Meter, Pauses, Writeback};

/// Most memory for copies of what is written back.
const BATCHES_MAX: u64 = 16 << 20;

/// Part of the cache's memory for that.
const BATCHES_PART: u64 = 16;

/// Most memory for what is on its way when it is read ahead.
const AHEAD_MAX: u64 = 4 << 20;

/// Part of the cache's memory for that.
const AHEAD_PART: u64 = 64;

/// Bytes of a shard, about.
const SHARD_BYTES: u64 = 64 << 20;
const SHARDS_MAX: u64 = 16;

/// Fewest folios that a cache is opened with; and no shard with fewer than two.
const FOLIOS_MIN: u64 = 4;

/// Most that a cache takes unless it is told how much.
const PRESET_MAX: u64 = 1 << 40;

/// Ranges held by zeroes and discards that fill the set.
const OUTSIDE_MAX: usize = 1024;

/// The first epoch: what is waited for or expired is of an earlier one than some number, which is 0 for none.
const FIRST_EPOCH: u64 = 1;

/// Bytes that a shard's part of a zone takes for each order of folios to know what is free, beside [`free_bytes`], and for a slab of which it
/// uses a part.
const FREE_SPARE: u64 = 128;

/// Bytes that a unit of memory takes in what is known of free memory (a bit for each size, and their summaries), with its part of a slab.
const fn free_bytes(unit: u64) -> u64 {
    1 + (slabs::BESIDE * unit).div_ceil(slabs::SLAB_MIN)
}

/// Bytes that a hundred of the smallest folios take, with the regions that are dirty where `percent` of the blocks are.
fn hundred_bytes(unit: u64, blocks: u32, percent: u64) -> u64 {
    let each = unit + bytes_beside(blocks) + free_bytes(unit);
    let regions = (u64::from(blocks) * percent).min(100);
    100 * each + Index::list_bytes(100) + regions * DirtyRegions::BYTES_A_REGION
}

/// The part of `of` that `one` is of `all`, rounded down.
fn part(one: u64, of: u64, all: u64) -> u64 {
    (u128::from(one) * u128::from(of) / u128::from(all)) as u64
}

/// How the memory of a cache is used.
struct Fit {
    places: Places,
    /// Of the smallest size.
    folios: u64,
    /// Regions that may be dirty.
    regions: u64,
    batches: u64,
    ahead: u64,
    charge: u64,
}

impl Fit {
    fn new(settings: &Settings, bytes: u64) -> Result<Self, Error> {
        let fit = Self::of(settings, bytes);
        let (given, most) = (human(bytes), fit.places.shards << SLOT_BITS);
        let wrong = if !fit.is_enough() {
            // In steps that are written as they are.
            let sizes = (1..256).map(|size| size << 12).chain((1..).map(|size| size << 20));
            let mut enough = sizes.filter(|size| *size >= bytes && Self::of(settings, *size).is_enough());
            let least = human(enough.next().expect("some size is enough"));
            format!("too little: give at least {least}, or smaller folios")
        } else if fit.folios > most {
            format!("too much: give at most {}, or larger folios", human(most << fit.places.unit_shift))
        } else {
            return Ok(fit);
        };
        Err(Error::invalid(format!("page_cache_bytes_max of {given} is {wrong}")))
    }

    /// Whether a cache can do with it.
    fn is_enough(&self) -> bool {
        self.folios >= FOLIOS_MIN.max(2 * self.places.shards)
    }

    fn of(settings: &Settings, bytes: u64) -> Self {
        let block_shift = settings.block_size().bytes().trailing_zeros();
        let folio = settings.folio_min();
        let region = match settings.cut.region_bytes {
            0 => (1 << (bytes / 8).max(1).ilog2()).clamp(folio, FOLIO_MAX),
            region => region.max(folio),
        };
        let largest = settings.folio_size.unwrap_or(region.min(FOLIO_MAX));
        let order_max = (largest / folio).ilog2() as u8;
        // All of a region, and what its runs are charged for.
        let batches = (bytes / BATCHES_PART).clamp(region + (region / 256).max(4096), BATCHES_MAX);
        let unit = settings.block_size().bytes().max(4096);
        let ahead = ((bytes / AHEAD_PART) & !(unit - 1)).clamp(unit, AHEAD_MAX);
        let (percent, unit_blocks) = (settings.dirty_ratio.get(), (folio >> block_shift) as u32);
        let hundred = hundred_bytes(folio, unit_blocks, percent);
        let shards = match settings.cut.shards {
            0 => (bytes / SHARD_BYTES).next_power_of_two().clamp(1, SHARDS_MAX),
            shards => shards,
        };
        let orders = u64::from(order_max) + 1;
        let zones = settings.division.count() * (BYTES_SPARE + orders * FREE_SPARE);
        let mut spare = shards * (zones + Index::BYTES_SPARE + DirtyRegions::BYTES_SPARE);
        spare += Bounds::new(ahead).bytes();
        let fitting = |spare| part(bytes.saturating_sub(batches + ahead + spare), 100, hundred);
        let (mut folios, floor) = (fitting(spare), unsaved_min(unit_blocks << order_max));
        if unsaved_blocks(folios, unit_blocks, percent) < floor {
            spare += floor.min(folios) * DirtyRegions::BYTES_A_REGION;
            folios = fitting(spare);
        }
        let (unit_shift, region_shift) = (folio.trailing_zeros(), region.trailing_zeros());
        assert!(block_shift <= unit_shift && unit_shift <= region_shift, "blocks, folios, regions");
        assert!(region.is_power_of_two() && shards.is_power_of_two(), "regions of {region}, {shards} shards");
        let places = Places { block_shift, unit_shift, order_max, region_shift, shards };
        let regions = unsaved_blocks(folios, unit_blocks, percent).max(floor).min(folios);
        Self { places, folios, regions, batches, ahead, charge: part(folios, hundred, 100) + spare }
    }
}

impl PageCache {
    /// The cache over `below`, and what it is, for people. All that it keeps is charged to `budget`; its long work is registered with
    /// `works`.
    ///
    /// [`Kind::Invalid`] where an option is out of its range, or does not fit the device below; [`Kind::NoSpace`] where the budget has
    /// no room.
    pub fn open(
        config: &Config,
        below: Arc<dyn BlockDevice>,
        env: Arc<dyn Env>,
        regions: &Arc<dyn Regions>,
        budget: &Arc<Budget>,
        works: Works,
    ) -> Result<(Arc<Self>, String), Error> {
        let settings = Settings::new(&config.over(&below.geometry()))?;
        check(&settings, &below.geometry())?;
        let bytes = settings.page_cache_bytes_max.unwrap_or((budget.room() / 4 * 3).min(PRESET_MAX));
        let fit = Fit::new(&settings, bytes)?;
        let batches =
            Workspace::new("copies of what a page cache writes back", budget, fit.batches as usize)?;
        let ahead = Workspace::new("what a page cache reads ahead", budget, fit.ahead as usize)?;
        let charge = budget.hold(fit.charge).map_err(|kind| {
            let (needed, room) = (human(fit.charge), human(budget.room()));
            let words = format!(
                "no room for a page cache: {needed} are needed, {room} are left of the memory budget: give --memory more, or \
                 page_cache_bytes_max less"
            );
            Error::new(kind, words)
        })?;
        let folio = settings.folio_min();
        let sizes = match fit.places.order_max {
            0 => human(folio),
            order => format!("{} to {}", human(folio), human(folio << order)),
        };
        let words = format!("page cache of {} in folios of {sizes}", human(fit.folios * folio));
        let dirtiable = Dirtiable::new(budget.clone(), fit.regions, charge);
        let core = core(settings, &fit, below, (env, regions, works), [batches, ahead], dirtiable);
        Ok((Arc::new(Self { core }), words))
    }
}

/// Whether the cache can stand on `below`.
fn check(settings: &Settings, below: &Geometry) -> Result<(), Error> {
    let (block, unit) = (settings.block_size().bytes(), below.block_size.bytes());
    if below.volatile {
        return Err(Error::invalid(
            "a page cache stands on a device that keeps its data: this one is memory itself",
        ));
    }
    if block < unit {
        return Err(Error::invalid(format!(
            "block_size {block} is below the block of the device below: give {unit} or more"
        )));
    }
    if !below.size.is_multiple_of(block) {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "the device below has {} bytes, which are no whole blocks of {block}: give block_size {unit}",
                below.size
            ),
        ));
    }
    Ok(())
}

fn core(
    settings: Settings,
    fit: &Fit,
    below: Arc<dyn BlockDevice>,
    (env, regions, works): (Arc<dyn Env>, &Arc<dyn Regions>, Works),
    [batches, ahead]: [Workspace; 2],
    dirtiable: Dirtiable,
) -> Arc<Core> {
    let meter = Meter::new(env.clone());
    let zones = Zones::new(&settings.division, fit.folios, &fit.places);
    let shard = |units: Vec<u64>| RwLock::new(Folios::new(fit.places, &units, regions));
    let counts = Counts::new(zones.len());
    let shards: Box<[_]> = zones.dealt(fit.places.shards).into_iter().map(shard).collect();
    let dirty_expire = |core: &Core| Some(core.settings.dirty_expire.get());
    let core = Arc::new_cyclic(|core| Core {
        below: Seam::new(below),
        places: fit.places,
        block_size: settings.block_size(),
        shards,
        zones,
        unsaved: Semaphore::new(0),
        reclaim: Work::default(),
        pressure: (0..fit.places.shards).map(|_| Pressure::default()).collect(),
        changes: Changes::default(),
        epoch: AtomicU64::new(FIRST_EPOCH),
        wanted: AtomicU64::new(0),
        aging: Aging::new(core.clone(), env.clone(), FIRST_EPOCH, dirty_expire, Core::look_at_ages),
        outside: RangeSet::new(OUTSIDE_MAX),
        writeback: Writeback::new(core.clone(), env.clone(), meter.clone()),
        pauses: Pauses::new(env.clone(), meter.clone()),
        decisions: Decisions::new(env.clone()),
        works,
        cursor: AtomicU64::new(0),
        has_failed: AtomicBool::new(false),
        meter,
        streams: AccessStreams::new(ahead),
        batches,
        queued: AtomicUsize::new(0),
        flushes: GroupFlush::default(),
        syncs: GroupFlush::default(),
        failure: StickyError::default(),
        sync_failure: StickyError::default(),
        ended: AtomicBool::new(false),
        counts,
        #[cfg(feature = "of-2011")]
        page_outs: Default::default(),
        verify_calls: AtomicU64::new(0),
        settings,
        env,
        dirtiable,
    });
    #[cfg(feature = "of-2011")]
    core.keep_free_as_in_2011();
    core.limit_unsaved();
    core
}

#[cfg(test)]
mod tests {
    use spillway_core::size::parse;

    use super::*;
    use crate::page_cache::config::Cut;

    #[test]
    fn what_is_said_to_be_enough_is() {
        for (block_size, folio_size, shards) in [
            (512, None, 0),
            (512, Some(4096), 8),
            (4096, None, 8),
            (4096, Some(4096), 0),
            (4096, Some(2 << 20), 0),
        ] {
            let cut = Cut { shards, ..Cut::default() };
            let config = Config { block_size: Some(block_size), folio_size, cut, ..Config::default() };
            let settings = Settings::new(&config).expect("they are in range");
            let given = (0..64).map(|step| step << 12).chain((1..16).map(|step| step << 19));
            let refused: Vec<String> = given
                .filter_map(|bytes| Fit::new(&settings, bytes).err())
                .map(|error| error.to_string())
                .collect();
            assert!(refused.len() > 5, "{config:?} is refused {} times", refused.len());
            for words in refused {
                let (_, least) = words.split_once("at least ").expect("what to give");
                let least = least.split(',').next().expect("a size");
                let fit = Fit::new(&settings, parse(least).expect("a size"));
                assert!(fit.is_ok(), "{words}");
            }
        }
    }
}
