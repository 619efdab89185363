//! Any byte range (512-byte granularity) as whole-block requests.
//!
//! [`Aligned`] stands on top of a stack, below its exports. Whole-block requests pass through. A write that covers a block
//! in part becomes read, merge, write. So that no whole-block write of the same block slips in between (and is undone by
//! the merge), writers pass a gate: whole-block writes share it, a merge has it alone. Gates are cut by 64 KiB regions;
//! a request over several regions takes its gates in ascending order, and none is held while another layer's lock is.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::block::{BlockSize, ByteRange};
use crate::buffer::IoBuf;
use crate::device::{Answer, BlockDevice, Extent, Geometry, Submission};
use crate::error::Kind;
use crate::mutant;
use crate::request::{Flags, Op, Reply, Request};
use crate::seam::Seam;
use crate::sync::{AtomicU32, Ordering, WaitList};

const REGION_SHIFT: u32 = 16;
const GATES: u64 = 64;
const MERGE_BYTES_MAX: u64 = 1 << 20;

/// A device with 512-byte granularity over one with larger blocks.
#[derive(Clone)]
pub struct Aligned {
    below: Seam,
    gates: Arc<Gates>,
}

impl Aligned {
    /// Gives `device` a granularity of 512 bytes.
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { below: Seam::new(device), gates: Arc::new(Gates::default()) }
    }

    /// The block size of the device below: requests of whole blocks need no merge.
    pub fn preferred_block(&self) -> BlockSize {
        self.below.geometry().block_size
    }

    /// See [`BlockDevice::extents`].
    pub fn extents(&self, range: ByteRange, count_max: usize) -> Answer<Result<Vec<Extent>, Kind>> {
        self.below.extents(range, count_max)
    }

    /// The geometry below with a block size of 512.
    pub fn geometry(&self) -> Geometry {
        Geometry { block_size: BlockSize::SECTOR, ..self.below.geometry() }
    }

    pub(crate) fn admitted(&self, request: Request) -> Submission {
        let block = self.below.geometry().block_size;
        if block == BlockSize::SECTOR || request.op == Op::Flush {
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
        let set = gate_set(request.range);
        if !self.gates.try_share(set) {
            let this = self.clone();
            return Answer::pending(async move {
                let _shared = Held::shared(&this.gates, set).await;
                this.below.submit(request).await
            });
        }
        match self.below.submit(request) {
            Answer::Done(reply) => {
                self.gates.unshare(set);
                Answer::Done(reply)
            }
            Answer::Pending(future) => {
                let shared = Held { gates: self.gates.clone(), set, alone: false };
                Answer::pending(async move {
                    let _shared = shared;
                    future.await
                })
            }
        }
    }

    async fn read_in_part(&self, block: BlockSize, mut request: Request) -> Reply {
        for piece in pieces(block, request.range) {
            let whole = block.cover(piece);
            let reply = self.below.submit(Request::read(whole.offset, IoBuf::new(whole.len as usize))).await;
            if reply.result.is_err() {
                return request.answer(reply.result);
            }
            let target = window(request.range, piece);
            request.buf[target].copy_from_slice(&reply.buf[window(whole, piece)]);
        }
        request.answer(Ok(()))
    }

    async fn write_in_part(&self, block: BlockSize, request: Request) -> Reply {
        let alone = Held::alone(&self.gates, gate_set(block.cover(request.range)));
        let _held = if mutant::on("align: merge without the gates") { None } else { Some(alone.await) };
        let result = match request.op {
            Op::Write => self.merge_payload(block, &request).await,
            _ => self.merge_zeroes(block, &request).await,
        };
        request.answer(result)
    }

    async fn merge_payload(&self, block: BlockSize, request: &Request) -> Result<(), Kind> {
        for piece in pieces(block, request.range) {
            let mut buf = self.blocks_around(block, piece).await?;
            buf[window(block.cover(piece), piece)]
                .copy_from_slice(&request.buf[window(request.range, piece)]);
            self.write_blocks(block.cover(piece), buf, request.flags).await?;
        }
        Ok(())
    }

    async fn merge_zeroes(&self, block: BlockSize, request: &Request) -> Result<(), Kind> {
        let inside = block.inside(request.range);
        for edge in edges(block, request.range) {
            let mut buf = self.blocks_around(block, edge).await?;
            buf[window(block.cover(edge), edge)].fill(0);
            self.write_blocks(block.cover(edge), buf, Flags { fua: request.flags.fua, no_hole: false })
                .await?;
        }
        if inside.len == 0 {
            return Ok(());
        }
        let middle =
            Request { op: Op::WriteZeroes, range: inside, flags: request.flags, buf: IoBuf::empty() };
        self.below.submit(middle).await.result
    }

    /// A buffer for the blocks around `piece`, with those that `piece` covers only in part read in.
    async fn blocks_around(&self, block: BlockSize, piece: ByteRange) -> Result<IoBuf, Kind> {
        let whole = block.cover(piece);
        let mut buf = IoBuf::new(whole.len as usize);
        for edge in edges(block, piece) {
            let old = block.cover(edge);
            let reply = self.below.submit(Request::read(old.offset, IoBuf::new(old.len as usize))).await;
            reply.result?;
            buf[window(whole, old)].copy_from_slice(&reply.buf);
        }
        Ok(buf)
    }

    async fn write_blocks(&self, range: ByteRange, buf: IoBuf, flags: Flags) -> Result<(), Kind> {
        self.below.submit(Request { op: Op::Write, range, flags, buf }).await.result
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
    [head, tail].into_iter().filter(|edge| edge.len > 0)
}

/// The gates of a range, as a set of bits.
fn gate_set(range: ByteRange) -> u64 {
    if range.len == 0 {
        return 0;
    }
    let first = range.offset >> REGION_SHIFT;
    let last = (range.offset + range.len - 1) >> REGION_SHIFT;
    if last - first + 1 >= GATES {
        return u64::MAX;
    }
    let run = (1u64 << (last - first + 1)) - 1;
    run.rotate_left((first % GATES) as u32)
}

fn members(set: u64) -> impl Iterator<Item = usize> {
    (0..GATES as usize).filter(move |index| set >> index & 1 == 1)
}

const ALONE: u32 = u32::MAX;

/// A gate: how many share it, or [`ALONE`].
#[derive(Default)]
struct Gate {
    holders: AtomicU32,
    wish_alone: AtomicU32,
    waiters: WaitList,
}

impl Gate {
    /// Shares the gate unless somebody has it alone, or, for a polite caller, wishes to.
    fn try_share(&self, polite: bool) -> bool {
        if polite && self.wish_alone.load(Ordering::Relaxed) > 0 {
            return false;
        }
        let more = |holders: u32| (holders != ALONE).then(|| holders + 1);
        self.holders.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).is_ok()
    }

    fn unshare(&self) {
        let before = self.holders.fetch_sub(1, Ordering::Release);
        assert!(before != 0 && before != ALONE, "a gate was left that nobody shared");
        if before == 1 {
            self.waiters.wake_all();
        }
    }

    fn try_alone(&self) -> bool {
        self.holders.compare_exchange(0, ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn leave(&self) {
        let before = self.holders.swap(0, Ordering::Release);
        assert_eq!(before, ALONE, "a gate was left that nobody had alone");
        self.waiters.wake_all();
    }
}

struct Gates {
    gates: Box<[CachePadded<Gate>]>,
}

impl Default for Gates {
    fn default() -> Self {
        Self { gates: (0..GATES).map(|_| CachePadded::default()).collect() }
    }
}

impl Gates {
    fn try_share(&self, set: u64) -> bool {
        let refused = members_fast(set).find(|&index| !self.gates[index].try_share(true));
        let Some(refused) = refused else { return true };
        self.unshare(set & ((1 << refused) - 1));
        false
    }

    fn unshare(&self, set: u64) {
        members_fast(set).for_each(|index| self.gates[index].unshare());
    }
}

/// Like [`members`], in as many steps as the set has members: on the path of every write.
fn members_fast(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let index = (set != 0).then(|| set.trailing_zeros() as usize)?;
        set &= set - 1;
        Some(index)
    })
}

/// Gates held, in part while they are being taken; left on drop.
struct Held {
    gates: Arc<Gates>,
    set: u64,
    alone: bool,
}

impl Held {
    async fn shared(gates: &Arc<Gates>, set: u64) -> Self {
        let mut held = Held { gates: gates.clone(), set: 0, alone: false };
        for index in members(set) {
            let gate = &gates.gates[index];
            // Polite until woken once: who has waited does not yield again, so that neither side starves.
            let mut looks = 0;
            let look = || {
                looks += 1;
                gate.try_share(looks <= WaitList::LOOKS_BEFORE_WAITING).then_some(())
            };
            gate.waiters.until(look).await;
            held.set |= 1 << index;
        }
        held
    }

    async fn alone(gates: &Arc<Gates>, set: u64) -> Self {
        let mut held = Held { gates: gates.clone(), set: 0, alone: true };
        for index in members(set) {
            let gate = &gates.gates[index];
            let _wish = Wish::new(gate);
            gate.waiters.until(|| gate.try_alone().then_some(())).await;
            held.set |= 1 << index;
        }
        held
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.alone {
            return self.gates.unshare(self.set);
        }
        members(self.set).for_each(|index| self.gates.gates[index].leave());
    }
}

/// Announces that somebody waits to have a gate alone.
struct Wish<'a>(&'a Gate);

impl<'a> Wish<'a> {
    fn new(gate: &'a Gate) -> Self {
        gate.wish_alone.fetch_add(1, Ordering::Relaxed);
        Self(gate)
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.0.wish_alone.fetch_sub(1, Ordering::Relaxed);
        self.0.waiters.wake_all();
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod threads {
    use super::*;
    use crate::sync::AtomicUsize;
    use crate::threads::every_order;
    use shuttle::future::block_on;
    use shuttle::thread;

    /// Goes through the gates of `set` and counts who is inside: a sharer by one, who is alone by a hundred.
    fn pass(gates: &Arc<Gates>, inside: &[AtomicUsize; 2], alone: bool, set: u64) {
        let weight = if alone { 100 } else { 1 };
        let held = block_on(async {
            if alone { Held::alone(gates, set).await } else { Held::shared(gates, set).await }
        });
        for gate in members(set) {
            let before = inside[gate].fetch_add(weight, Ordering::SeqCst);
            assert!(before < if alone { 1 } else { 100 }, "{before} in gate {gate} with {weight}");
        }
        for gate in members(set) {
            inside[gate].fetch_sub(weight, Ordering::SeqCst);
        }
        drop(held);
    }

    #[test]
    fn nobody_shares_a_gate_that_somebody_has_alone() {
        every_order(|| {
            let shared = Arc::new((Arc::new(Gates::default()), [const { AtomicUsize::new(0) }; 2]));
            let users: Vec<_> = [(false, 0b01), (true, 0b11), (false, 0b11), (true, 0b01)]
                .into_iter()
                .map(|(alone, set)| {
                    let shared = shared.clone();
                    thread::spawn(move || pass(&shared.0, &shared.1, alone, set))
                })
                .collect();
            users.into_iter().for_each(|user| user.join().expect("everybody gets in"));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_merge_that_waits_goes_before_newcomers_and_they_go_next() {
        use std::future::Future;
        use std::pin::pin;
        use std::task::{Context, Poll, Waker};
        let gates = Arc::new(Gates::default());
        let mut context = Context::from_waker(Waker::noop());
        let mut writer = pin!(Held::shared(&gates, 1));
        let Poll::Ready(held) = writer.as_mut().poll(&mut context) else { panic!("nobody is there") };
        let mut merge = pin!(Held::alone(&gates, 1));
        assert!(merge.as_mut().poll(&mut context).is_pending());
        let mut newcomer = pin!(Held::shared(&gates, 1));
        assert!(newcomer.as_mut().poll(&mut context).is_pending(), "the merge was there before");
        drop(held);
        let Poll::Ready(alone) = merge.as_mut().poll(&mut context) else { panic!("nobody holds the gate") };
        assert!(newcomer.as_mut().poll(&mut context).is_pending());
        drop(alone);
        assert!(newcomer.as_mut().poll(&mut context).is_ready());
    }

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
    fn a_range_takes_the_gates_of_its_regions() {
        assert_eq!(gate_set(ByteRange::new(0, 4096)), 1);
        assert_eq!(gate_set(ByteRange::new(65535, 2)), 3);
        assert_eq!(gate_set(ByteRange::new(63 << 16, 65537)), 1 << 63 | 1);
        assert_eq!(gate_set(ByteRange::new(0, 1 << 40)), u64::MAX);
        assert!(members(5).eq(members_fast(5)) && members(u64::MAX).eq(members_fast(u64::MAX)));
    }

    #[test]
    fn a_merge_waits_for_writers_and_writers_wait_for_a_merge() {
        use std::future::Future;
        use std::task::{Context, Waker};
        let gates = Arc::new(Gates::default());
        let mut context = Context::from_waker(Waker::noop());
        assert!(gates.try_share(1));
        let mut alone = Box::pin(Held::alone(&gates, 1));
        assert!(alone.as_mut().poll(&mut context).is_pending());
        assert!(!gates.try_share(1), "a newcomer yields to the wish");
        assert!(gates.try_share(2), "other gates are open");
        gates.unshare(1);
        let std::task::Poll::Ready(held) = alone.as_mut().poll(&mut context) else {
            panic!("the gate is free")
        };
        let mut shared = Box::pin(Held::shared(&gates, 1));
        assert!(shared.as_mut().poll(&mut context).is_pending());
        drop(held);
        assert!(shared.as_mut().poll(&mut context).is_ready());
        drop(shared);
    }
}
