//! zram: compressed RAM as an origin.
//!
//! A device of 4096-byte slots. A page of one repeated word is kept in its slot; any other is compressed and kept as an
//! object of the pool, or raw if compression does not pay. What was never written, or was discarded, reads as zero and
//! costs nothing. With a spill file, pages that are written back to it leave memory, and are read from there. Behaviour, attribute names, columns and errors follow the kernel's driver of this name; where that is
//! surprising, docs/zram.md says what is done here instead.
//!
//! *Promises upwards*: a write is answered after its memory is charged, and a failed one leaves the old content; reads see
//! whole pages; discards free memory; flush and forced unit access succeed at once, for nothing survives the process.
//! *Needs below*: [`Regions`] for memory, a [`Budget`] to charge it to, [`Env`] for a coarse clock and the compactor's task; if it spills, a
//! file or block device for [`spill`](crate::spill).
//!
//! *States*: without a size (0 bytes, attributes can be set) -> `disksize` -> in use, where it may grow -> `reset` -> without a size.
//!
//! *Lock order*: a compression stream, taken with no other lock held; then one of: a slot; the count of a page of slots; an arena or the packed
//! spans; and last the locks of `pages`. None is held across an await, and of them only the count of a page of slots while memory goes back
//! to the system.

mod attributes;
mod codec;
mod commands;
mod config;
mod control;
mod device;
mod discard;
mod limit;
mod mover;
mod page;
mod pool;
mod read;
mod reclaim;
mod slots;
mod spill;
mod spread;
mod work;
mod write;

use std::sync::{Arc, OnceLock, Weak};

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicBool, AtomicU64, Mutex};
use spillway_core::{
    Answer, BlockDevice, Budget, ByteRange, Env, Error, Extent, Geometry, Grow, Kind, LocalFuture, Op,
    Reclaimer, Regions, Request, Submission,
};

use codec::Params;
use codec::codecs::Codecs;
use codec::decoders::Decoders;
use codec::encoder::Choice;
use codec::streams::Streams;
use config::Settings;
use device::Core;
use device::attaching::Attaching;
use device::backing::{Attached, Backing};
use device::pressure::Pressure;
use device::recompressor::Recompressor;
use limit::WritebackLimit;
use pool::Pool;
use pool::pages::Pages;
use slots::table::SlotTable;

use crate::decisions::Decisions;
use crate::open_context::{BackingDevice, Open, OpenContext, OpenDevice};
use crate::options::Live;
use crate::sizes;
use crate::writeback::{Meter, Writeback};

pub use attributes::{attributes, declarations};
pub use config::{Config, Promotion};
pub use device::Zram;
pub use page::DISKSIZE_MAX;

impl Zram {
    /// A device that charges what it holds to `budget`. [`Kind::Invalid`] for a value that its attribute would refuse.
    pub fn new(
        config: Config,
        env: Arc<dyn Env>,
        regions: Arc<dyn Regions>,
        budget: Arc<Budget>,
    ) -> Result<Arc<Self>, Error> {
        let settings = Settings::new(&config)?;
        let choice = Choice { codec: codec::find(config.comp_algorithm)?, params: Params::default() };
        let codecs = Codecs::default();
        codecs.set_primary(choice.codec);
        let streams =
            if config.max_comp_streams == 0 { Config::default_streams() } else { config.max_comp_streams };
        let decoders = Decoders::default();
        decoders.choose(Decoders::charge(&[choice.codec], &budget).map_err(no_room_to_begin)?);
        let share = Budget::share(&budget, Budget::UNLIMITED);
        let meter = Meter::new(env.clone());
        let core = Core {
            pages: Pages::new(regions.clone(), share.clone(), budget.clone())
                .with_reserve(Pool::RESERVE_BYTES)
                .map_err(no_room_to_begin)?,
            pool: Pool::new(&budget).map_err(no_room_to_begin)?,
            table: SlotTable::new(regions, budget.clone()),
            streams: Streams::new(streams, choice, budget.clone()).map_err(no_room_to_begin)?,
            codecs,
            decoders,
            recompressor: Recompressor::default(),
            compactor: Arc::default(),
            counters: Counters::default(),
            settings,
            compressed_writeback: Live::new(config.compressed_writeback),
            writeback_limit: WritebackLimit::new(config.writeback_limit),
            backing: Attached::default(),
            pressure: Arc::new(Pressure::none()),
            decisions: Decisions::new(env.clone()),
            meter: meter.clone(),
            spiller: OnceLock::new(),
            attaching: OnceLock::new(),
            size: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            resetting: Mutex::new(false),
            ending: AtomicBool::new(false),
            budget: share,
            fixed: budget,
            env,
        };
        let zram = Arc::new(Self { core: Arc::new(core) });
        let spiller = Writeback::new(Arc::downgrade(&zram.core), zram.core.env.clone(), meter);
        assert!(zram.core.spiller.set(spiller).is_ok(), "a device is made once");
        let core = Arc::downgrade(&zram.core);
        zram.core.budget.register(&(core as Weak<dyn Reclaimer>));
        zram.configure(&config)?;
        mover::passes::start(&zram.core);
        Ok(zram)
    }

    fn configure(&self, config: &Config) -> Result<(), Error> {
        if let Some(secondaries) = &config.recomp_algorithm {
            control::algorithms::set_secondaries(self, secondaries)?;
        }
        if let Some(params) = &config.algorithm_params {
            control::algorithms::set_params(self, params)?;
        }
        attributes::set_limit(self, config.mem_limit);
        attributes::set_deferred(self, config.deferred_bytes_max)?;
        if config.disksize > 0 {
            self.core.resize(config.disksize)?;
        }
        Ok(())
    }
}

impl Config {
    /// The device, with its spill file where it has one; and what is worth knowing about that.
    async fn open_device(&self, context: &OpenContext) -> Result<(Arc<Zram>, Vec<String>), Error> {
        let OpenContext { env, regions, budget, .. } = context;
        let backing = self.backing()?;
        let zram = Zram::new(self.clone(), env.clone(), regions.clone(), budget.clone())?;
        let attaching = Attaching::new(context);
        assert!(zram.core.attaching.set(attaching).is_ok(), "a device is opened once");
        let notes = match backing {
            Some(backing) => zram.open_spill(self, &backing).await?,
            None => Vec::new(),
        };
        Ok((zram, notes))
    }
}

impl Open<()> for Config {
    async fn open(&self, (): (), context: &OpenContext) -> Result<OpenDevice, Error> {
        let (zram, notes) = self.open_device(context).await?;
        let opened = OpenDevice::new(zram.clone(), attributes);
        Ok(OpenDevice { grow: Some(zram.clone()), suspend: Some(zram), notes, ..opened })
    }

    fn backing_devices(&self) -> Vec<BackingDevice> {
        self.backing().ok().flatten().into_iter().collect()
    }
}

impl Grow for Zram {
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        Box::pin(match sizes::given(&config::OPTIONS.disksize, size) {
            Ok(size) => {
                let short = |backing: &Backing| self.core.short_of_keeping(size, backing.store.size());
                let short = self
                    .core
                    .backing
                    .get()
                    .filter(|backing| backing.stays)
                    .and_then(|backing| short(&backing));
                short.inspect(|words| tracing::warn!("{words}"));
                commands::set_size(self, size)
            }
            Err(refused) => Answer::Done(Err(refused)),
        })
    }
}

fn no_room_to_begin(kind: Kind) -> Error {
    Error::new(
        kind,
        "a zram device takes up to 4 MiB before it holds anything, and --memory has less left: give more",
    )
}

impl BlockDevice for Zram {
    fn geometry(&self) -> Geometry {
        Geometry { optimal_io: 65536, ..Geometry::in_memory(self.core.size()) }
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::Read => read::submit(&self.core, request),
            Op::Write => write::submit(&self.core, request),
            Op::WriteZeroes | Op::Discard => discard::submit(&self.core, request),
            Op::Flush => Answer::Done(request.answer(Ok(()))),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(discard::extents(&self.core, range, count_max)))
    }

    fn verify(&self) {
        self.core.verify();
    }
}

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
