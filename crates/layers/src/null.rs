//! The origin that keeps nothing: writes vanish, reads give zero. For measuring what is above it.
//!
//! It promises an answer at once and never fails. It holds no memory and no lock, and needs nothing.

use std::sync::Arc;

use serde::Deserialize;
use spillway_core::{
    Answer, Attribute, BlockDevice, BlockSize, ByteRange, Error, Extent, Geometry, Kind, Op, Request,
    Submission, Table, Unit,
};

use crate::config::Size;

/// What a configuration says about a null origin.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Bytes; a multiple of 4096, at most 4E.
    pub size: Size,
}

/// See the head of this file.
pub struct Null {
    size: u64,
}

impl Null {
    /// A null device; [`Kind::Invalid`] for a size that is not allowed.
    pub fn new(config: &Config) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self { size: config.size.of_device("size", BlockSize::PAGE)? }))
    }
}

impl BlockDevice for Null {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_size: BlockSize::new(512).expect("a power of two"),
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

static ROWS: &[Attribute<Null>] =
    &[Attribute::read("size", Unit::Bytes, "Size of the device.", |null| null.size.to_string())];

/// The attributes of `null`.
pub fn attributes(null: Arc<Null>) -> Table<Null> {
    Table::new(null, ROWS)
}
