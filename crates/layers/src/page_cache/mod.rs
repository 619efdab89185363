//! Page cache: reads and writes at the speed of memory, over a device that keeps its data.
//!
//! ```text
//!   write -> so many blocks more may be unsaved -> memory of the folio -> copied, valid and dirty -> a pause  -> acknowledged
//!   read  -> what is valid is copied; each stretch that is missing is one read below, and fills the folios
//!   reads that follow each other, or at equal distances -> the next of them are read ahead, by a task of its own
//!   dirty above the background limit, or for too long, or waited for -> regions up the device: what is dirty of one is
//!            copied out and written in its runs; what is dirtied meanwhile stays dirty
//!   flush -> a new epoch; what became dirty before is written back, then the device below is flushed
//!   FUA, and every write in mode writethrough -> absorbed, written back, for FUA the device below flushed
//!   zeroes, discards -> the range is held, after writes that wait there; what is dirty of it written back, or given up by a
//!            discard; passed below; forgotten
//! ```
//!
//! Promises: what a flush or FUA acknowledged is durable below. What was written without is in memory, and lost when the process is
//! killed; a server that stops tries everything once more, whatever failed before, and says what is lost. A write never reads: its blocks are whole (parts of blocks are merged above, by `Aligned`).
//! Exactly the dirty blocks are written back. A block is on its way to the device below once at a time, and stays where it is until that has ended. The first
//! error of write-back sticks: flushes and FUA fail from then on, what is dirty stays dirty, reads go on, and it is tried again; a
//! write that would wait for room fails with it instead. A request that is dropped is withdrawn: what of a write was absorbed stays.
//!
//! Needs: a device below that is not memory itself, whose blocks are not larger than the cache's. Memory is charged when it is opened: folios,
//! what is kept of each, copies of what is written back and what its writes take, and what is on its way when it is read ahead.
//!
//! Locks: a shard, of folios and their memory; the ranges held beside the cache, the epochs, and the streams of reads and writes are leaves. Never two shards.
//! A read hit takes its shard shared; a write takes it alone.

mod attributes;
mod config;
mod device;
mod discard;
mod extents;
mod flush;
mod folios;
#[cfg(feature = "of-2011")]
mod of_2011;
mod opening;
mod read;
mod readahead;
mod reclaim;
#[cfg(test)]
mod tests;
#[cfg(all(test, feature = "shuttle"))]
mod threads;
mod throttle;
mod work;
mod write;
mod writeback;

use std::future::ready;
use std::sync::Arc;

use spillway_core::{
    Answer, AtRisk, BlockDevice, ByteRange, Error, Extent, Geometry, Grow, Kind, LocalFuture, Op, Request,
    Submission, Suspend,
};

use crate::open_context::{Below, Open, OpenContext, OpenDevice};
use device::counts::Count;
use write::WriteState;

pub use attributes::{attributes, declarations};
#[cfg(feature = "of-2011")]
pub use config::Of2011;
pub use config::{Config, Cut, Division, Mode};
pub use device::PageCache;

impl Open<Below> for Config {
    async fn open(&self, below: Below, context: &OpenContext) -> Result<OpenDevice, Error> {
        let division = Division { nodes: context.memory_nodes.clone(), ..self.division.clone() };
        let config = Config { division, ..self.clone() };
        let (cache, found) = PageCache::open(
            &config,
            below,
            context.env.clone(),
            &context.regions,
            &context.budget,
            context.works.clone(),
        )?;
        let suspend: Option<Arc<dyn Suspend>> = Some(cache.clone());
        let at_risk: Option<Arc<dyn AtRisk>> = Some(cache.clone());
        let grow: Option<Arc<dyn Grow>> = Some(cache.clone());
        Ok(OpenDevice { suspend, grow, at_risk, notes: vec![found], ..OpenDevice::new(cache, attributes) })
    }
}

impl Grow for PageCache {
    fn target(&self, size: Option<u64>) -> Result<Option<u64>, Error> {
        let (block, unit) = (self.core.block_size.bytes(), self.core.below.geometry().block_size.bytes());
        match size {
            Some(bytes) if !bytes.is_multiple_of(block) => Err(Error::invalid(format!(
                "{bytes} bytes are no whole blocks of {block}: make it {} bytes long, or start its server again, with block_size {unit} if \
                 one was given",
                bytes.next_multiple_of(block)
            ))),
            size => Ok(size),
        }
    }

    /// It has the size of the device below.
    fn grow(&self, _size: Option<u64>) -> LocalFuture<Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }
}

impl Suspend for PageCache {
    /// Makes everything durable: memory is gone afterwards.
    fn suspend(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move { core.end().await })
    }

    /// Ends writing back, which goes on for what could not be written, and then all waits for it: a flush that comes late would hold the
    /// cache, and the disk below, for ever. Ends reading ahead, which would hold them for as long as its windows are read.
    fn close(&self) -> LocalFuture<Result<(), Error>> {
        let core = self.core.clone();
        Box::pin(async move {
            core.writeback.end().await;
            core.failure.set(Kind::ShuttingDown);
            core.end_readahead().await;
            Ok(())
        })
    }
}

impl AtRisk for PageCache {
    fn at_risk_bytes(&self) -> u64 {
        self.core.unsaved.used() * self.core.places.block_bytes()
    }
}

impl PageCache {
    /// What is in memory is copied at once: this is a hit. So everything else is kept out of its way.
    fn read(&self, mut request: Request) -> Submission {
        let done = self.core.copy_hits(request.range, &mut request.buf);
        if done == request.range.len {
            return Answer::Done(request.answer(Ok(())));
        }
        self.read_rest(request, done)
    }

    #[cold]
    fn read_rest(&self, request: Request, done: u64) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move { core.read(request, done).await })
    }

    fn write(&self, request: Request) -> Submission {
        let core = &self.core;
        core.counts.add(Count::WriteBytes, request.range.len);
        let mut state = WriteState::new(core.clone());
        let absorbed = core.absorb(&request, &mut state);
        if absorbed.is_ok() && !core.goes_below(&request) && !core.is_throttled(state.dirtied()) {
            return Answer::Done(request.answer(Ok(())));
        }
        self.write_rest(request, state)
    }

    #[cold]
    fn write_rest(&self, request: Request, state: WriteState) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move { core.write(request, state).await })
    }

    #[cold]
    fn replace(&self, request: Request) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move { core.replace(request).await })
    }

    #[cold]
    fn flush(&self, request: Request) -> Submission {
        let core = self.core.clone();
        Answer::pending(async move {
            let result = core.flush().await;
            request.answer(result)
        })
    }
}

impl BlockDevice for PageCache {
    fn geometry(&self) -> Geometry {
        self.core.geometry()
    }

    fn size(&self) -> u64 {
        self.core.size()
    }

    fn submit(&self, request: Request) -> Submission {
        match request.op {
            Op::Read => self.read(request),
            Op::Write => self.write(request),
            Op::WriteZeroes | Op::Discard => self.replace(request),
            Op::Flush => self.flush(request),
        }
    }

    fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        let core = self.core.clone();
        Answer::pending(async move { core.extents(range, count_max).await })
    }

    fn verify(&self) {
        self.core.verify();
        self.core.below.verify();
    }
}
