//! The volatile write cache of a drive: unflushed writes are not on the device below, and a power cut loses a random part of them.
//!
//! It promises what a drive promises: reads return the last write; a flush writes everything acknowledged before it to the device
//! below and flushes that; a write with FUA passes through. Once a flush failed below, all later ones fail, unless what is below was
//! away or full for a while: its blocks stay cached for the next. A full cache evicts random blocks. `power_cut` draws from a seed which
//! unflushed data survives; all requests fail with [`Kind::Io`] until `power_on`.
//!
//! A discard becomes a zeroing if zeroing is free below, otherwise it does nothing: the content before a lost write must not be
//! read in its place.
//!
//! It needs a device below that completes its requests. Blocks are charged as they are cached. One task at a time has blocks
//! in flight, in buffers of a workspace. The lock of the cached blocks is a leaf, held for the copy of a request.

mod blocks;
mod config;
mod drive;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use spillway_core::{
    Answer, Attribute, BlockDevice, Budget, ByteRange, Env, Error, Extent, Geometry, Kind, Op, Request, Seam,
    Spec, Submission, Table, Type, Unit, Value, forward, mutant,
};

use self::config::Settings;
use self::drive::Drive;
use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use crate::options::Field;

pub use self::config::Config;

/// See the head of this file.
struct Volatile {
    drive: Arc<Drive>,
}

impl Volatile {
    /// An empty cache over `below`; [`Kind::Invalid`] for a value that is not allowed, [`Kind::NoSpace`] where `budget` has no
    /// room for a block.
    fn new(
        config: &Config,
        below: Below,
        env: Arc<dyn Env>,
        budget: &Arc<Budget>,
    ) -> Result<Arc<Self>, Error> {
        let drive = Drive::new(Settings::new(config)?, Seam::new(below), env, budget)?;
        Ok(Arc::new(Self { drive: Arc::new(drive) }))
    }
}

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        let volatile = Volatile::new(self, below, context.env.clone(), &context.budget)?;
        Ok(OpenDevice::new(volatile, attributes))
    }
}

impl BlockDevice for Volatile {
    fn geometry(&self) -> Geometry {
        let below = self.drive.below.geometry();
        Geometry { write_through: false, discards: below.discards && below.fast_zeroes, ..below }
    }

    fn submit(&self, mut request: Request) -> Submission {
        if request.op == Op::Discard {
            request.op = Op::WriteZeroes;
        }
        let drive = self.drive.clone();
        match request.op {
            Op::Read => drive.read(request),
            Op::Flush => Answer::pending(async move {
                let result = drive.flush().await;
                request.answer(result)
            }),
            _ if request.flags.fua && !mutant::on("volatile: cache a durable write") => {
                Answer::pending(async move { drive.write_through(request).await })
            }
            _ => drive.write(request),
        }
    }

    /// The device below does not know cached blocks.
    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        if self.drive.caches(range) {
            return Answer::Done(Ok(vec![Extent::stored(range.len)]));
        }
        self.drive.below.extents(range, count_max)
    }

    forward!(drive.below: verify);
}

static ROWS: &[Attribute<Volatile>] = &[
    Attribute::begin(
        Spec::command(
            "power_cut",
            Type::COUNT,
            "Cuts the power: a random part of the unflushed data, drawn from this seed, is lost. Requests fail until power_on",
        ),
        |volatile, value| volatile.drive.cut_power(u64::of(value)),
    ),
    Attribute::begin(
        Spec::command("power_on", Type::Text, "Serves requests again after a power cut, whatever is written"),
        |volatile, _| volatile.drive.power_on(),
    ),
    Attribute::read(Spec::fact("powered", Type::Switch, "Whether requests are served"), |volatile| {
        Value::Switch(volatile.drive.is_powered())
    }),
    Attribute::read(Spec::gauge("volatile_bytes", Unit::Bytes, "Unflushed bytes in the cache"), |volatile| {
        Value::U64(volatile.drive.cached_bytes())
    }),
];

/// The attributes of `volatile`.
fn attributes(volatile: Arc<Volatile>) -> Table<Volatile> {
    Table::new(volatile, ROWS).with(Settings::ROWS, |volatile| &volatile.drive.settings, |_, _| {})
}
