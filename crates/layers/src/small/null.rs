//! The origin that keeps nothing: writes vanish, reads give zero. For measuring what is above it.
//!
//! It promises an answer at once and never fails. It holds no memory and no lock, and needs nothing.

use std::future::ready;
use std::sync::Arc;

use spillway_core::sync::{AtomicU64, Ordering};
use spillway_core::{
    Answer, Attribute, BlockDevice, BlockSize, ByteRange, Error, Extent, Geometry, Grow, Kind, LocalFuture,
    Op, Preset, Request, Submission, Table, Unit, Value,
};

use crate::open_context::{Open, OpenContext, OpenDevice};
use crate::options::{Options, options};
use crate::sizes;

options! {
    /// What a configuration says about a null origin.
    pub struct Config;
    Start size: u64 = sizes::DEVICE, "Size of the device, a multiple of 4096"
        .unit(Unit::Bytes).preset(Preset::Required);
}

/// See the head of this file.
pub struct Null {
    size: AtomicU64,
}

impl Null {
    /// A null device; [`Kind::Invalid`] for a size that is not allowed.
    pub fn new(config: &Config) -> Result<Arc<Self>, Error> {
        config.check()?;
        let size = sizes::whole_blocks("size", config.size, BlockSize::PAGE)?;
        Ok(Arc::new(Self { size: AtomicU64::new(size) }))
    }

    fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }
}

impl Open<()> for Config {
    async fn open(&self, (): (), _: &OpenContext) -> Result<OpenDevice, Error> {
        let null = Null::new(self)?;
        Ok(OpenDevice { grow: Some(null.clone()), ..OpenDevice::new(null, attributes) })
    }
}

impl Grow for Null {
    fn grow(&self, size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        let size = sizes::given(&OPTIONS.size, size);
        let size = size.and_then(|size| sizes::whole_blocks("size", size, BlockSize::PAGE));
        Box::pin(ready(size.map(|size| {
            self.size.fetch_max(size, Ordering::Relaxed);
        })))
    }
}

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::SECTOR, optimal_io: 65536, ..Geometry::in_memory(self.size()) }
    }

    fn submit(&self, mut request: Request) -> Submission {
        if request.op == Op::Read {
            request.buf.fill(0);
        }
        Answer::Done(request.answer(Ok(())))
    }

    fn extents(&self, range: ByteRange, _count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        Answer::Done(Ok(vec![Extent::hole(range.len)]))
    }
}

static ROWS: &[Attribute<Null>] = &[Attribute::read(OPTIONS.size, |null| Value::U64(null.size()))];

/// The attributes of `null`.
pub fn attributes(null: Arc<Null>) -> Table<Null> {
    Table::new(null, ROWS)
}
