//! A zram device in this process, set up as the server would.

use std::sync::Arc;

use anyhow::{Context, Result};
use spillway_core::{
    Answer, Attributes, Budget, ByteRange, Error, IoBuf, Op, Reply, Request, Seam, Submission,
};
use spillway_io::{MmapRegions, Workers, block_on};
use spillway_layers::zram::{Config, Zram, attributes};

use super::pages::PAGE;

/// A device and the ways to reach it.
pub(crate) struct Device {
    pub(crate) seam: Seam,
    zram: Arc<Zram>,
}

impl Device {
    pub(crate) fn new(
        workers: &Workers,
        bytes: u64,
        comp_algorithm: &'static str,
        streams: usize,
    ) -> Result<Self, Error> {
        let config =
            Config { disksize: bytes, comp_algorithm, max_comp_streams: streams, ..Config::default() };
        Self::with(workers, config)
    }

    pub(crate) fn with(workers: &Workers, config: Config) -> Result<Self, Error> {
        let zram = Zram::new(config, workers.env(), Arc::new(MmapRegions), Budget::new(16 << 30))?;
        Ok(Self { seam: Seam::new(zram.clone()), zram })
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64> {
        attributes(self.zram.clone()).get(name)?.number().context("a number")
    }

    /// Sets an attribute, and waits until what it begins is done.
    pub(crate) fn set(&self, name: &str, value: &str) -> Result<(), Error> {
        block_on(attributes(self.zram.clone()).store(name, value))
    }

    pub(crate) fn write(&self, offset: u64, buf: IoBuf) -> IoBuf {
        let reply = answer(self.seam.submit(Request::write(offset, buf)));
        assert_eq!(reply.result, Ok(()));
        reply.buf
    }

    pub(crate) fn discard(&self, offset: u64, len: u64) {
        let request = Request::bare(Op::Discard, ByteRange::new(offset, len));
        assert_eq!(answer(self.seam.submit(request)).result, Ok(()));
    }

    pub(crate) fn read(&self, offset: u64, buf: IoBuf) -> IoBuf {
        let reply = answer(self.seam.submit(Request::read(offset, buf)));
        assert_eq!(reply.result, Ok(()));
        reply.buf
    }
}

/// The reply, at once or by waiting for it as a client's worker would.
fn answer(submission: Submission) -> Reply {
    match submission {
        Answer::Done(reply) => reply,
        pending => block_on(pending),
    }
}

/// Offset of page `index`.
pub(crate) fn at(index: usize) -> u64 {
    (index * PAGE) as u64
}
