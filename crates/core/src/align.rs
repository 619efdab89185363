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

use std::sync::Arc;

use crate::block::{BlockSize, ByteRange, SECTOR};
use crate::budget::Budget;
use crate::buffer::{IoBuf, Workspace};
use crate::device::{Answer, BlockDevice, Extent, Geometry, Submission};
use crate::error::{Error, Kind};
use crate::mutant;
use crate::request::{Flags, Op, Reply, Request};
use crate::seam::{self, Seam};

use gates::{Gates, Held, Set};

/// Bytes of a piece of a merge or of a read of parts.
const MERGE_BYTES_MAX: u64 = 256 << 10;

/// Bytes of a piece of a zeroing or discard.
const BARE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of the buffers for all merges and reads of parts of a device together: three of the longest pieces, or a hundred
/// of a block of 4096.
const WORKSPACE_BYTES: usize = 1 << 20;

/// A device with 512-byte granularity over one with larger blocks.
#[derive(Clone)]
pub struct Aligned {
    below: Seam,
    gates: Arc<Gates>,
    workspace: Workspace,
    /// Whether parts of sectors may be asked for. Where not, and the device's blocks are sectors, nothing is ever merged.
    bytes: bool,
}

impl Aligned {
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
        let merges = bytes || below.geometry().block_size != BlockSize::SECTOR;
        let room = if merges { WORKSPACE_BYTES } else { 0 };
        let workspace = Workspace::new("buffers for parts of blocks", budget, room)?;
        Ok(Self { below, gates: Arc::default(), workspace, bytes })
    }

    /// The same where no budget counts: for tests.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        let unlimited = Budget::new(Budget::UNLIMITED);
        Self::charged(device, &unlimited).expect("an unlimited budget has room")
    }

    /// The block size of the device below: requests of whole blocks need no merge.
    pub fn preferred_block(&self) -> BlockSize {
        self.below.geometry().block_size
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
        seam::pass(&self.geometry(), SECTOR, request, |request| self.admitted(request))
    }

    /// Carries out a request of any bytes. Only for a device opened by [`Aligned::to_bytes`]: panics on another.
    pub fn submit_bytes(&self, request: Request) -> Submission {
        assert!(self.bytes, "a device that takes whole sectors only was asked for bytes");
        seam::pass(&self.geometry(), 1, request, |request| self.admitted(request))
    }

    fn admitted(&self, request: Request) -> Submission {
        let block = self.below.geometry().block_size;
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
        if request.op != Op::Write && is_long(request.range) {
            let this = self.clone();
            return Answer::pending(async move { this.change_in_pieces(request).await });
        }
        let set = Set::of(request.range);
        if !self.gates.try_share(&set) {
            let this = self.clone();
            return Answer::pending(async move {
                let _shared = Held::shared(&this.gates, set).await;
                this.below.submit(request).await
            });
        }
        match self.below.submit(request) {
            Answer::Done(reply) => {
                self.gates.unshare(&set);
                Answer::Done(reply)
            }
            Answer::Pending(future) => {
                let shared = Held::of_shared(&self.gates, set);
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
            let _shared = Held::shared(&self.gates, Set::of(range)).await;
            result = self.below.submit(piece).await.result;
            if result.is_err() {
                break;
            }
        }
        if result.is_ok() && request.flags.fua {
            result = self.below.submit(Request::flush()).await.result;
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
        let flags = Flags { fua: request.flags.fua, no_hole: false };
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
        let mut bufs = self.workspace.take_each(&[whole.len as usize, edge_len as usize]).await;
        let edge_buf = bufs.pop().expect("two were taken");
        let mut buf = bufs.pop().expect("two were taken");
        let gated = if mutant::on("align: hold the gate of the first edge alone") { 1 } else { 2 };
        let alone = edges(block, piece)
            .take(gated)
            .map(|edge| Set::of(block.cover(edge)))
            .fold(Set::default(), Set::or);
        let held = Held::merging(&self.gates, Set::of(whole), alone);
        let _held = if mutant::on("align: merge without the gates") { None } else { Some(held.await) };
        buf = self.read_edges(block, piece, buf, edge_buf).await?;
        let target = &mut buf[window(whole, piece)];
        match payload {
            Some(payload) => target.copy_from_slice(payload),
            None => target.fill(0),
        }
        self.below.submit(Request { op: Op::Write, range: whole, flags, buf }).await.result
    }
}

impl Aligned {
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
            let reply = self.below.submit(Request::read(old.offset, edge_buf)).await;
            reply.result?;
            edge_buf = reply.buf;
            buf[window(block.cover(piece), old)].copy_from_slice(&edge_buf);
        }
        Ok(buf)
    }
}

/// Where `part` lies in a buffer that holds `whole`.
fn window(whole: ByteRange, part: ByteRange) -> std::ops::Range<usize> {
    let start = (part.offset - whole.offset) as usize;
    start..start + part.len as usize
}

/// Cuts `range` at block boundaries into pieces whose blocks fit a buffer of [`MERGE_BYTES_MAX`].
fn pieces(block: BlockSize, range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let end = range.offset + range.len;
    let first = block.cover(ByteRange::new(range.offset, 0)).offset;
    (first..end).step_by(MERGE_BYTES_MAX as usize).map(move |start| {
        let from = start.max(range.offset);
        ByteRange::new(from, (start + MERGE_BYTES_MAX).min(end) - from)
    })
}

/// Whether [`bare_pieces`] are several.
fn is_long(range: ByteRange) -> bool {
    range.len > 0 && range.offset / BARE_BYTES_MAX != (range.offset + range.len - 1) / BARE_BYTES_MAX
}

/// Cuts `range` at multiples of [`BARE_BYTES_MAX`].
fn bare_pieces(range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let end = range.offset + range.len;
    let first = range.offset / BARE_BYTES_MAX * BARE_BYTES_MAX;
    (first..end).step_by(BARE_BYTES_MAX as usize).map(move |start| {
        let from = start.max(range.offset);
        ByteRange::new(from, (start + BARE_BYTES_MAX).min(end) - from)
    })
}

/// The parts of `range` that lie in blocks which it does not cover whole: none, one or two, each within one block.
fn edges(block: BlockSize, range: ByteRange) -> impl Iterator<Item = ByteRange> {
    let (start, end) = (range.offset, range.offset + range.len);
    let inside = block.inside(range);
    let (head, tail) = if inside.len > 0 {
        let inside_end = inside.offset + inside.len;
        (ByteRange::new(start, inside.offset - start), ByteRange::new(inside_end, end - inside_end))
    } else {
        let boundary = (block.index_of(start).0 + 1) * block.bytes();
        let split = boundary.min(end);
        (ByteRange::new(start, split - start), ByteRange::new(split, end - split))
    };
    let whole = if mutant::on("align: forget the second edge") { 1 } else { 2 };
    [head, tail].into_iter().take(whole).filter(|edge| edge.len > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::{AtomicUsize, Mutex, Ordering, WaitList};
    use std::future::Future;
    use std::task::{Context, Waker};

    #[test]
    fn edges_cover_exactly_what_inside_leaves() {
        let block = BlockSize::PAGE;
        for start in (0..8192).step_by(512) {
            for len in (512..20_000).step_by(512) {
                let range = ByteRange::new(start, len);
                let edges: Vec<_> = edges(block, range).collect();
                let sum: u64 = edges.iter().map(|edge| edge.len).sum();
                assert_eq!(sum + block.inside(range).len, len);
                assert!(
                    edges
                        .iter()
                        .all(|edge| block.cover(*edge).len == block.bytes() && edge.len < block.bytes())
                );
            }
        }
    }

    #[test]
    fn pieces_follow_each_other_and_start_on_blocks() {
        let range = ByteRange::new(512, 5 << 20);
        let mut at = range.offset;
        for piece in pieces(BlockSize::PAGE, range) {
            assert_eq!(piece.offset, at);
            assert!(BlockSize::PAGE.cover(piece).len <= MERGE_BYTES_MAX);
            at += piece.len;
        }
        assert_eq!(at, range.offset + range.len);
    }

    #[test]
    fn long_zeroing_goes_in_pieces_that_add_up() {
        let range = ByteRange::new(4096, 3 * BARE_BYTES_MAX);
        let pieces: Vec<_> = bare_pieces(range).collect();
        assert_eq!(pieces.len(), 4);
        for (start, len) in [(0, 0), (0, 512), (512, BARE_BYTES_MAX), (0, BARE_BYTES_MAX), (5 << 26, 1 << 27)]
        {
            let range = ByteRange::new(start, len);
            assert_eq!(is_long(range), bare_pieces(range).count() > 1, "{range:?}");
        }
        assert_eq!(pieces.iter().map(|piece| piece.len).sum::<u64>(), range.len);
        assert!(pieces[1..].iter().all(|piece| piece.offset % BARE_BYTES_MAX == 0));
    }

    /// A device of 1 TiB that keeps writes and zeroings waiting until they are let through, and notes what it has.
    struct Slow {
        permits: AtomicUsize,
        waiters: WaitList,
        log: Mutex<Vec<(Op, ByteRange, bool)>>,
        held: AtomicUsize,
    }

    struct Shared(Arc<Slow>, BlockSize);

    impl BlockDevice for Shared {
        fn geometry(&self) -> Geometry {
            Geometry { block_size: self.1, ..Geometry::in_memory(1 << 40) }
        }

        fn submit(&self, request: Request) -> Submission {
            let slow = self.0.clone();
            slow.held.fetch_add(request.buf.capacity(), Ordering::SeqCst);
            Answer::pending(async move {
                let take = |permits: usize| permits.checked_sub(1);
                let permit =
                    || slow.permits.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).ok().map(drop);
                if request.op.writes() {
                    slow.waiters.until(permit).await;
                }
                slow.held.fetch_sub(request.buf.capacity(), Ordering::SeqCst);
                slow.log.lock().push((request.op, request.range, request.flags.fua));
                request.answer(Ok(()))
            })
        }
    }

    impl Slow {
        fn new() -> (Arc<Self>, Aligned) {
            let slow = Arc::new(Slow {
                permits: AtomicUsize::new(0),
                waiters: WaitList::default(),
                log: Mutex::default(),
                held: AtomicUsize::new(0),
            });
            let aligned = Aligned::new(Arc::new(Shared(slow.clone(), BlockSize::PAGE)));
            (slow, aligned)
        }

        fn let_through(&self, count: usize) {
            self.permits.fetch_add(count, Ordering::SeqCst);
            self.waiters.wake_all();
        }

        fn logged(&self) -> Vec<(Op, ByteRange, bool)> {
            std::mem::take(&mut self.log.lock())
        }
    }

    fn poll(submission: &mut Submission) -> bool {
        std::pin::Pin::new(submission).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn merges_hold_no_more_memory_than_their_workspace() {
        let (slow, aligned) = Slow::new();
        let request = |at: u64| Request::write(at + 512, IoBuf::new(1 << 20));
        let mut writes: Vec<_> = (0..40).map(|at| aligned.submit(request(at << 21))).collect();
        for _ in 0..400 {
            writes.retain_mut(|write| !poll(write));
            let held = slow.held.load(Ordering::SeqCst);
            assert!(held <= WORKSPACE_BYTES, "merges hold {held} bytes");
            slow.let_through(1);
        }
        assert!(writes.is_empty(), "{} writes are left", writes.len());
    }

    #[test]
    fn a_read_of_parts_waits_for_memory_with_nothing_held() {
        let (slow, aligned) = Slow::new();
        let mut write = aligned.submit(Request::write(512, IoBuf::new(4096)));
        assert!(!poll(&mut write));
        let mut reads: Vec<_> =
            (0..30).map(|at| aligned.submit(Request::read((at << 20) + 512, IoBuf::new(1 << 20)))).collect();
        for _ in 0..40 {
            reads.retain_mut(|read| !poll(read));
        }
        assert!(reads.is_empty(), "reads pass a merge that waits for its write");
        slow.let_through(1);
        assert!(poll(&mut write));
    }

    #[test]
    fn a_write_of_whole_sectors_waits_for_a_merge_of_parts() {
        let (slow, _) = Slow::new();
        let unlimited = Budget::new(Budget::UNLIMITED);
        let device = Arc::new(Shared(slow.clone(), BlockSize::SECTOR));
        let aligned = Aligned::to_bytes(device, &unlimited).expect("there is room");
        let mut merge = aligned.submit_bytes(Request::write(100, IoBuf::new(50)));
        assert!(!poll(&mut merge), "it waits for its write");
        let mut whole = aligned.submit(Request::write(0, IoBuf::new(1024)));
        assert!(!poll(&mut whole));
        slow.let_through(1);
        assert!(!poll(&mut whole), "a write of sectors slipped between the read and the write of a merge");
        assert!(poll(&mut merge));
        slow.let_through(1);
        assert!(poll(&mut whole));
        let order: Vec<_> = slow.logged().into_iter().map(|(op, range, _)| (op, range.len)).collect();
        assert_eq!(order, [(Op::Read, 512), (Op::Write, 512), (Op::Write, 1024)]);
    }

    #[test]
    fn a_merge_waits_for_one_piece_of_a_long_zeroing_at_most() {
        let (slow, aligned) = Slow::new();
        let long = ByteRange::new(512, 20 * BARE_BYTES_MAX);
        let mut zeroing = aligned.submit(Request::bare(Op::WriteZeroes, long).with_fua());
        slow.let_through(2);
        assert!(!poll(&mut zeroing));
        let edges = slow.logged();
        assert_eq!(edges.len(), 4, "each edge was read and written: {edges:?}");
        let mut merge = aligned.submit(Request::write(512 << 30, IoBuf::new(512)));
        for pieces in 0.. {
            assert!(pieces < 3, "a merge waits for a third piece");
            slow.let_through(1);
            let (_, done) = (poll(&mut zeroing), poll(&mut merge));
            if done {
                break;
            }
        }
        slow.let_through(30);
        assert!(poll(&mut zeroing));
        let log = slow.logged();
        let zeroed: u64 =
            log.iter().filter(|(op, ..)| *op == Op::WriteZeroes).map(|(_, range, _)| range.len).sum();
        assert_eq!(zeroed, long.len - 4096);
        let last = log.last().expect("something was done");
        assert!(last.0 == Op::Flush && log.iter().all(|entry| !entry.2), "durable by one flush");
    }
}
