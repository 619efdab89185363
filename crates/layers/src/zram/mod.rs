//! zram: compressed RAM as an origin.
//!
//! A device of 4096-byte slots. A page of one repeated word is kept in its slot; any other is compressed and kept as an
//! object of the pool, or raw if compression does not pay. What was never written, or was discarded, reads as zero and
//! costs nothing. Behaviour, attribute names, columns and errors follow the kernel's driver of this name; where that is
//! surprising, docs/zram.md says what is done here instead.
//!
//! *Promises upwards*: a write is answered after its memory is charged, and a failed one leaves the old content; reads see
//! whole pages; discards free memory; flush and forced unit access succeed at once, for nothing survives the process.
//! *Needs below*: [`Regions`] for memory, a [`Budget`] to charge it to, [`Env`] for a coarse clock and the compactor's task.
//!
//! *States*: without a size (0 bytes, attributes can be set) -> `disksize` -> in use -> `reset` -> without a size.
//!
//! | file | holds |
//! | --- | --- |
//! | `device` | what a device is made of |
//! | `store`, `load`, `discard` | the paths of a write, a read, a discard |
//! | `spread` | a large write shared out to idle workers |
//! | `page`, `table` | slots, in shards |
//! | `pool`, `shelf`, `spans`, `pages` | objects, a size class, what is known of spans, memory |
//! | `work` | how much one poll may do |
//! | `compactor`, `passes` | moving objects so that memory returns: who asks for it, and how it is done |
//! | `streams`, `decoders`, `codec` | compression, and how much of it at once |
//! | `attributes` | the control table |
//!
//! *Lock order*: a compression stream, taken with no other lock held; then a shard of the table, a shelf, pages. None is held
//! across an await, nor while memory goes back to the system.
//!
//! Spilling to a file, idle marking and recompression will each be a file here; a slot's mark has room for their flags.

mod attributes;
mod codec;
mod compactor;
mod decoders;
mod device;
mod discard;
mod load;
mod page;
mod pages;
mod passes;
mod pool;
mod shelf;
mod spans;
mod spread;
mod store;
mod streams;
mod table;
mod work;

use std::sync::Arc;

use spillway_core::stats::Counters;
use spillway_core::sync::{AtomicU64, Mutex};
use spillway_core::{
    Answer, BlockDevice, BlockSize, Budget, ByteRange, Env, Error, Extent, Geometry, Kind, Op, Regions,
    Request, Submission, Table as AttributeTable,
};

use codec::Params;
use compactor::Compactor;
use decoders::Decoders;
use device::Core;
use pages::Pages;
use pool::Pool;
use streams::{Choice, Streams};
use table::Table;

pub use device::{Config, Zram};
pub use page::DISKSIZE_MAX;

impl Zram {
    /// A device that charges what it holds to `budget`. [`Kind::Invalid`] for a value that its attribute would refuse.
    pub fn new(
        config: Config,
        env: Arc<dyn Env>,
        regions: Arc<dyn Regions>,
        budget: Arc<Budget>,
    ) -> Result<Arc<Self>, Error> {
        let name =
            if config.comp_algorithm.is_empty() { codec::CODECS[0].name } else { &config.comp_algorithm };
        let choice = Choice { codec: codec::find(name)?, params: Params::default() };
        let streams =
            if config.max_comp_streams == 0 { Config::default_streams() } else { config.max_comp_streams };
        let decoders = Decoders::default();
        decoders.choose(choice.codec, &budget).map_err(no_room_to_begin)?;
        let share = Budget::share(&budget, Budget::UNLIMITED);
        let core = Core {
            pages: Pages::new(regions, share.clone(), budget.clone())
                .with_reserve(Pool::RESERVE_BYTES)
                .map_err(no_room_to_begin)?,
            pool: Pool::new(&budget).map_err(no_room_to_begin)?,
            table: Table::new(),
            streams: Streams::new(attributes::checked_streams(streams)?, choice, budget.clone())
                .map_err(no_room_to_begin)?,
            decoders,
            compactor: Compactor::default(),
            counters: Counters::default(),
            size: AtomicU64::new(0),
            setup: Mutex::new(()),
            budget: share,
            fixed: budget,
            env,
        };
        let zram = Arc::new(Self { core: Arc::new(core) });
        zram.configure(&config)?;
        passes::start(&zram.core);
        Ok(zram)
    }

    fn configure(&self, config: &Config) -> Result<(), Error> {
        if let Some(params) = &config.algorithm_params {
            attributes::set_params(self, params)?;
        }
        attributes::set_limit(self, config.mem_limit);
        if config.disksize > 0 {
            attributes::set_size(self, config.disksize)?;
        }
        Ok(())
    }
}

fn no_room_to_begin(kind: Kind) -> Error {
    Error::new(
        kind,
        "a zram device takes up to 4 MiB before it holds anything, and --memory has less left: give more",
    )
}

/// The attributes of a device.
pub fn attributes(zram: Arc<Zram>) -> AttributeTable<Zram> {
    AttributeTable::new(zram, attributes::ROWS)
}

impl BlockDevice for Zram {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.core.size(),
            block_size: BlockSize::PAGE,
            optimal_io: 65536,
            read_only: false,
            volatile: true,
            discards: true,
            write_through: false,
            fast_zeroes: true,
            rotational: false,
            identity: None,
        }
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::Read => load::submit(&self.core, request),
            Op::Write => store::submit(&self.core, request),
            Op::WriteZeroes | Op::Discard => discard::submit(&self.core, request),
            Op::Flush => Answer::Done(request.answer(Ok(()))),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(discard::extents(&self.core, range, count_max)))
    }
}

#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
