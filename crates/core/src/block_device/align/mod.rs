//! Any byte range as whole-block requests.
//!
//! Clients of block protocols ask for whole sectors. A file has no such unit: a device that is also served as a file is
//! opened by [`Aligned::to_bytes`], and takes any range of bytes by [`Aligned::submit_bytes`].
//!
//! [`Aligned`] stands on top of a stack, below its exports. Whole-block requests pass through. A write that covers a block
//! in part becomes read, merge, write. So that no whole-block write of the same block slips in between (and is undone by
//! the merge), writers pass gates: whole-block writes share them, a merge has those of the blocks at its edges alone.
//!
//! Long requests go in pieces, each with its own gates, so that no request keeps a gate for long: merged writes and reads of
//! parts in pieces of 256 KiB, which also bounds their buffers, and zeroing and discards in pieces of 64 MiB. Which of two
//! overlapping writes wins may differ from piece to piece, as it may from block to block below; each sector is of one.
//!
//! Order: a piece takes its buffers from the [`Workspace`] first, then its gates in ascending order, then calls below. None
//! is held while another layer's lock is.

mod gates;
mod pieces;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use crate::block::{BlockSize, ByteRange, SECTOR};
use crate::block_device::device::{Answer, BlockDevice, Extent, Geometry, Submission};
use crate::block_device::request::{Flags, Op, Reply, Request};
use crate::block_device::seam::{self, Rules, Seam};
use crate::error::{Error, Kind};
use crate::memory::budget::Budget;
use crate::memory::buffer::{IoBuf, Workspace};
use crate::mutant;

use gates::{GateSet, Gates, HeldGates};
use pieces::{bare_pieces, edges, is_long, pieces, window};

/// Bytes of the buffers for all merges and reads of parts of a device together: three of the longest pieces, or a hundred
/// of a block of 4096.
const WORKSPACE_BYTES: usize = 1 << 20;

/// A device with 512-byte granularity over one with larger blocks.
#[derive(Clone)]
pub struct Aligned {
    below: Seam,
    /// Of the device below, and of requests in sectors.
    block: BlockSize,
    rules: Rules,
    gates: Arc<Gates>,
    workspace: Workspace,
    /// Whether parts of sectors may be asked for. Where not, and the device's blocks are sectors, nothing is ever merged.
    bytes: bool,
}

impl Aligned {
    /// Most bytes that one charges.
    pub const BYTES_MAX: u64 = WORKSPACE_BYTES as u64;

    /// Gives `device` a granularity of 512 bytes. Charges its own buffers to `budget`: 1 MiB, nothing where the device has
    /// that granularity itself. [`Kind::NoSpace`] where the budget has no room.
    pub fn charged(device: Arc<dyn BlockDevice>, budget: &Arc<Budget>) -> Result<Self, Error> {
        Self::open(device, budget, false)
    }

    /// The same, which takes any byte range as well, by [`Aligned::submit_bytes`]. Always charges 1 MiB; errors as for
    /// [`Aligned::charged`].
    pub fn to_bytes(device: Arc<dyn BlockDevice>, budget: &Arc<Budget>) -> Result<Self, Error> {
        Self::open(device, budget, true)
    }

    fn open(device: Arc<dyn BlockDevice>, budget: &Arc<Budget>, bytes: bool) -> Result<Self, Error> {
        let below = Seam::new(device);
        let geometry = below.geometry();
        let (block, rules) = (geometry.block_size, Rules::new(&geometry, SECTOR));
        let merges = bytes || block != BlockSize::SECTOR;
        let room = if merges { WORKSPACE_BYTES } else { 0 };
        let workspace = Workspace::new("buffers for parts of blocks", budget, room)?;
        Ok(Self { below, block, rules, gates: Arc::default(), workspace, bytes })
    }

    /// The same where no budget counts: for tests.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        let unlimited = Budget::new(Budget::UNLIMITED);
        Self::charged(device, &unlimited).expect("an unlimited budget has room")
    }

    /// The block size of the device below: requests of whole blocks need no merge.
    pub fn preferred_block(&self) -> BlockSize {
        self.block
    }

    /// See [`Seam::extents`], also for its errors; the range is the caller's to round to whole blocks.
    pub fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.below.extents(range, count_max)
    }

    /// The geometry below with a block size of 512.
    pub fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::SECTOR, ..self.below.geometry() }
    }

    /// Carries out a request of whole sectors, with the checks of [`Seam::submit`] at that granularity.
    pub fn submit(&self, request: Request) -> Submission {
        self.pass(self.rules, request)
    }

    /// Carries out a request of any bytes. Only for a device opened by [`Aligned::to_bytes`]: panics on another.
    pub fn submit_bytes(&self, request: Request) -> Submission {
        assert!(self.bytes, "a device that takes whole sectors only was asked for bytes");
        self.pass(self.rules.of_bytes(), request)
    }

    fn pass(&self, rules: Rules, request: Request) -> Submission {
        let len = request.buf.len();
        if let Some(result) = rules.answer(self.below.size(), request.op, request.range, len) {
            return Answer::Done(request.answer(result));
        }
        let submission = self.admitted(request);
        seam::assert_returned(&submission, len);
        submission
    }

    fn admitted(&self, request: Request) -> Submission {
        let block = self.block;
        if request.op == Op::Flush || (block == BlockSize::SECTOR && !self.bytes) {
            return self.below.submit(request);
        }
        match (request.op, request.range.aligned(block.bytes())) {
            (Op::Read, true) => self.below.submit(request),
            (Op::Read, false) => {
                let this = self.clone();
                Answer::pending(async move { this.read_in_part(block, request).await })
            }
            (_, true) => self.write_whole(request),
            (Op::Discard, false) => {
                let inside = block.inside(request.range);
                self.write_whole(Request { range: inside, ..request })
            }
            (_, false) => {
                let this = self.clone();
                Answer::pending(async move { this.write_in_part(block, request).await })
            }
        }
    }

    fn write_whole(&self, request: Request) -> Submission {
        assert!(request.range.aligned(self.block.bytes()), "{:?} has whole blocks", request.range);
        if request.op != Op::Write && is_long(request.range) {
            let this = self.clone();
            return Answer::pending(async move { this.change_in_pieces(request).await });
        }
        let set = GateSet::of(request.range);
        if !self.gates.try_share(&set) {
            let this = self.clone();
            return Answer::pending(async move {
                let _shared = HeldGates::shared(&this.gates, set).await;
                this.below.submit(request).await
            });
        }
        match self.below.submit(request) {
            Answer::Done(reply) => {
                self.gates.unshare(&set);
                Answer::Done(reply)
            }
            Answer::Pending(future) => {
                let shared = HeldGates::of_shared(&self.gates, set);
                Answer::pending(async move {
                    let _shared = shared;
                    future.await
                })
            }
        }
    }

    /// A long zeroing or discard. Durable by one flush at its end, where that was asked for: a piece with forced unit
    /// access each would cost a commit each.
    async fn change_in_pieces(&self, request: Request) -> Reply {
        let flags = Flags { fua: false, ..request.flags };
        let mut result = Ok(());
        for range in bare_pieces(request.range) {
            let piece = Request { op: request.op, range, flags, buf: IoBuf::empty() };
            let _shared = HeldGates::shared(&self.gates, GateSet::of(range)).await;
            result = self.below.submit(piece).await.result;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() && request.flags.fua {
            result = self.below.flush().await;
        }
        request.answer(result)
    }

    async fn read_in_part(&self, block: BlockSize, mut request: Request) -> Reply {
        for piece in pieces(block, request.range) {
            let whole = block.cover(piece);
            let buf = self.workspace.take(whole.len as usize).await;
            let reply = self.below.submit(Request::read(whole.offset, buf)).await;
            if reply.result.is_err() {
                return request.answer(reply.result);
            }
            let target = window(request.range, piece);
            request.buf[target].copy_from_slice(&reply.buf[window(whole, piece)]);
        }
        request.answer(Ok(()))
    }

    async fn write_in_part(&self, block: BlockSize, request: Request) -> Reply {
        let result = match request.op {
            Op::Write => self.merge_payload(block, &request).await,
            _ => self.merge_zeroes(block, &request).await,
        };
        request.answer(result)
    }

    async fn merge_payload(&self, block: BlockSize, request: &Request) -> Result<(), Kind> {
        for piece in pieces(block, request.range) {
            let payload = &request.buf[window(request.range, piece)];
            self.merge(block, piece, Some(payload), request.flags).await?;
        }
        Ok(())
    }

    /// The edges one after the other, then the middle as a zeroing of whole blocks.
    async fn merge_zeroes(&self, block: BlockSize, request: &Request) -> Result<(), Kind> {
        let flags = Flags { fua: request.flags.fua, ..Flags::default() };
        for edge in edges(block, request.range) {
            self.merge(block, edge, None, flags).await?;
        }
        let range = block.inside(request.range);
        if range.len == 0 {
            return Ok(());
        }
        let middle = Request { op: Op::WriteZeroes, range, flags: request.flags, buf: IoBuf::empty() };
        self.write_whole(middle).await.result
    }

    /// Writes `payload`, or zeroes, as the blocks around `piece`, with those that it covers only in part read in before.
    async fn merge(
        &self,
        block: BlockSize,
        piece: ByteRange,
        payload: Option<&[u8]>,
        flags: Flags,
    ) -> Result<(), Kind> {
        let whole = block.cover(piece);
        // A lone block is read where it stays.
        let edge_len = if whole.len == block.bytes() { 0 } else { block.bytes() };
        let [mut buf, edge_buf] = self.workspace.take_both([whole.len as usize, edge_len as usize]).await;
        let gated = if mutant::on("align: hold the gate of the first edge alone") { 1 } else { 2 };
        let alone = edges(block, piece)
            .take(gated)
            .map(|edge| GateSet::of(block.cover(edge)))
            .fold(GateSet::default(), GateSet::or);
        let held = HeldGates::merging(&self.gates, GateSet::of(whole), alone);
        let _held = if mutant::on("align: merge without the gates") { None } else { Some(held.await) };
        buf = self.read_edges(block, piece, buf, edge_buf).await?;
        let target = &mut buf[window(whole, piece)];
        match payload {
            Some(payload) => target.copy_from_slice(payload),
            None => target.fill(0),
        }
        self.below.submit(Request { op: Op::Write, range: whole, flags, buf }).await.result
    }

    /// Fills the blocks of `buf`, which is for all blocks around `piece`, that `piece` covers only in part.
    async fn read_edges(
        &self,
        block: BlockSize,
        piece: ByteRange,
        mut buf: IoBuf,
        mut edge_buf: IoBuf,
    ) -> Result<IoBuf, Kind> {
        if edge_buf.is_empty() {
            let whole = block.cover(piece);
            // Two edges may lie in the one block.
            if edges(block, piece).next().is_none() {
                return Ok(buf);
            }
            let reply = self.below.submit(Request::read(whole.offset, buf)).await;
            return reply.result.map(|()| reply.buf);
        }
        for edge in edges(block, piece) {
            let old = block.cover(edge);
            assert_eq!(old.len, edge_buf.len() as u64, "an edge lies in one block");
            let reply = self.below.submit(Request::read(old.offset, edge_buf)).await;
            reply.result?;
            edge_buf = reply.buf;
            buf[window(block.cover(piece), old)].copy_from_slice(&edge_buf);
        }
        Ok(buf)
    }
}
